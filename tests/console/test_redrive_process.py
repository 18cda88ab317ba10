"""The process of a redrive: what it writes is kept, and not without bound."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from tidegate.cli.dead_letters.redrive import redrive
from tidegate.console.dead_letters.redrive import RedriveFailedError, RedriveProcess, RedriveRequest
from tidegate.console.frame.parts import OwnAddress
from tidegate.console.frame.rendering import rendered
from tidegate.console.frame.rights import Rights
from tidegate.console.jobs.jobs import Job, JobKind
from tidegate.sql import DeadLetterFilter
from tidegate.transport.clock import SystemClock


class _Talking(RedriveProcess):
    """A command that writes long lines, and a report."""

    def _command(self) -> Sequence[str]:
        script = "import sys; [print('x' + 'ä' * 4_000, file=sys.stderr) for _ in range(300)]; print('{}')"
        return [sys.executable, "-X", "utf8", "-c", script]


async def test_long_lines_are_cut() -> None:
    """A job keeps 200 lines of 2,000 bytes each, not of a megabyte; one may be cut within a character."""
    service = OwnAddress("", None)
    request = RedriveRequest("", DeadLetterFilter(), None, 1, is_dry_run=True, actor="")
    job = Job("1", JobKind.DRY_RUN, "", None, "", SystemClock().now_utc())
    await _Talking("", service, request).run(job)
    assert job.output.splitlines() == ["x" + "ä" * 999 + "\N{REPLACEMENT CHARACTER}"] * 200


class _Failing(RedriveProcess):
    """A command that ends as one without its database, perhaps after a report."""

    report = ""

    def _command(self) -> Sequence[str]:
        script = f"print({self.report!r}); exit('Error: There is no SQLite database /srv/letters.db.')"
        return [sys.executable, "-c", script]


class _FailingAtItsEnd(_Failing):
    report = '{"considered": 1, "failed": 1}'


@pytest.mark.parametrize("process", [_Failing, _FailingAtItsEnd])
async def test_a_hubs_policy_does_not_see_where_the_database_is(process: type[RedriveProcess]) -> None:
    """Neither in the reason nor in the output; the namespace's sees both."""
    request = RedriveRequest("", DeadLetterFilter(), None, 1, is_dry_run=True, actor="")
    now = SystemClock().now_utc()
    job = Job("1", JobKind.DRY_RUN, "", "hub", "", now, ended_at=now)
    try:
        await process("", OwnAddress("", None), request).run(job)
    except RedriveFailedError as failed:
        job.problem = failed

    def shown_to(hub: str | None) -> str:
        rights = Rights("policy", True, True, True, hub)
        return str(rendered("jobs/job_now.html", {"job": job, "look": "", "rights": rights, "now": now}))

    assert "/srv/letters.db" in shown_to(None)
    assert "exit code 1" in shown_to("hub")
    assert "/srv" not in shown_to("hub")


@pytest.mark.parametrize("number", ["7", "7,9"])
def test_the_command_has_all_its_options(number: str) -> None:
    """A renamed option made each redrive with a limit fail."""
    times = dict.fromkeys(("from", "until", "enqueued_from"), "2026-11-01T10:00:00Z")
    texts = dict.fromkeys(("hub", "group", "partition", "error_type", "reason"), "-x")
    chosen = DeadLetterFilter.from_fields(
        {**times, **texts, "number": number}, now_utc=SystemClock().now_utc()
    )
    request = RedriveRequest("pipelines.py:p", chosen, 5, 3, is_dry_run=True, actor="someone")
    words = RedriveProcess("", OwnAddress("", "ca.pem"), request)._command()
    assert words[1:5] == ["-m", "tidegate.cli", "dlq", "redrive"]
    found = redrive.make_context("redrive", [*words[5:]]).params
    assert (found["maximum"], found["attempts_max"], found["hub"]) == (5, 3, "-x")
