"""Redrives in a separate process, ``tidegate dlq redrive``, so that users' code never runs in the service.

Secrets (the database's password, the service's key) are passed in its environment, because every user of the
machine can read arguments.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from tidegate.console.frame.parts import OwnAddress
from tidegate.console.jobs.jobs import Job, JobState, JobTable
from tidegate.model.errors import TidegateError
from tidegate.sql import DeadLetterFilter
from tidegate.transport.tasks import TaskOwner

_OUTPUT_LINES_MAX: Final = 200
_OUTPUT_LINE_BYTES_MAX: Final = 2_000
"""Maximum length of each line kept: together 400 KB for each job (our choice)."""
_LINE_BYTES_MAX: Final = 1024 * 1024
"""Maximum length of a line that is read; the report has at most 2,000 reasons."""
_REPORT_BYTES_MAX: Final = 16 * 1024 * 1024
_ROWS_MAX: Final = 100
_STOP_S: Final = 5.0
"""Seconds that the process gets to end after SIGTERM; its transactions make SIGKILL harmless."""
_USAGE: Final = 2
"""The command's exit code for what was asked wrongly (``cli.shell.exit_codes``)."""
_COUNTS: Final = (
    "considered",
    "redriven",
    "rows",
    "failed",
    "waiting",
    "lost",
    "exhausted",
    "taken_by_others",
)

_OPTIONS: Final = {
    "hub": "--hub",
    "group": "--group",
    "partition": "--partition",
    "error_type": "--error-type",
    "reason": "--reason",
    "reason_is": "--reason-is",
    "from": "--failed-since",
    "until": "--failed-until",
    "enqueued_from": "--enqueued-since",
}
"""The command's options, by field of ``DeadLetterFilter.to_fields``; each number has an option of its own."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Which dead letters to process again, and how."""

    pipeline: str
    """One of the service's ``redrive_pipelines``."""
    filter: DeadLetterFilter
    """Only open dead letters are redriven; its time ends at the request."""
    maximum: int | None
    attempts_max: int
    is_dry_run: bool
    actor: str
    database: str = ""
    """The name of the one that has them; empty: the only one."""


class RedriveFailedError(TidegateError):
    """A redrive's process ended without a report."""


class RedriveProcess:
    """One run of the command."""

    def __init__(self, database_url: str, service: OwnAddress, request: RedriveRequest) -> None:
        self._database_url = database_url
        self._service = service
        self._request = request
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES_MAX)

    async def run(self, job: Job) -> None:
        """Run the command. Raises RedriveFailedError. Cancellation: ends the process first."""
        process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=self._environment(),
            limit=_LINE_BYTES_MAX,
            # Keeps Ctrl-C from reaching it: the service ends it.
            start_new_session=True,
        )
        try:
            async with TaskOwner("redrive") as tasks:
                progress = tasks.start(self._follow(process, job), name="progress")
                report = await _read(process)
                await progress
                code = await process.wait()
        finally:
            await _end(process)
            job.output = "\n".join(self._output)
        self._report_end(job, code, report)

    def _command(self) -> Sequence[str]:
        request = self._request
        options: list[tuple[str, object]] = [
            ("--pipeline", request.pipeline),
            ("--limit", request.maximum),
            ("--attempts-max", request.attempts_max),
            ("--actor", request.actor),
        ]
        fields = request.filter.to_fields()
        options += [(option, fields.get(name)) for name, option in _OPTIONS.items()]
        options += [("--sequence-number", each) for each in request.filter.sequence_numbers or ()]
        command = [sys.executable, "-m", "tidegate.cli", "dlq", "redrive", "--json", "--progress"]
        # One argument each, so that a reason that begins with a dash is not read as an option.
        command += [f"{name}={value}" for name, value in options if value is not None]
        if request.is_dry_run:
            command.append("--dry-run")
        if self._service.ca_file is not None:
            command.append(f"--ca-file={self._service.ca_file}")
        return command

    def _environment(self) -> Mapping[str, str]:
        return os.environ | {
            "TIDEGATE_DATABASE": self._database_url,
            "TIDEGATE_CONNECTION_STRING": self._service.connection_string,
        }

    async def _follow(self, process: Process, job: Job) -> None:
        """Read the progress from the process's output, and keep the rest."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                continue  # a line beyond the limit, whose beginning was dropped
            if not line:
                return
            counts = _progress(line)
            if counts is None:
                self._output.append(line[:_OUTPUT_LINE_BYTES_MAX].decode(errors="replace").rstrip())
                job.output = "\n".join(self._output)
                continue
            total = counts.pop("total", None)
            job.update(done=counts.get("considered", 0), total=total, counts=counts)

    def _report_end(self, job: Job, code: int, report: bytes) -> None:
        try:
            found = orjson.loads(report) if report else None
        except orjson.JSONDecodeError:
            found = None
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if not isinstance(found, dict):
            # Else it may name the database, or be of a traceback: not for a policy of one hub.
            why = f" {self._output[-1]}" if self._output and code == _USAGE else ""
            raise RedriveFailedError(
                f"The redrive ended with {how} and no report.{why}".rstrip(),
                next_step="Batches that it had committed stay.",
            )
        counts = {name: found[name] for name in _COUNTS if isinstance(found.get(name), int)}
        job.update(
            state=JobState.DONE if code == 0 else JobState.INCOMPLETE,
            done=counts.get("considered", job.done),
            total=counts.get("considered", job.total),
            counts=counts,
            tables=[table for table in _tables(found) if table.rows],
            message="" if code == 0 else f"It ended with {how}: the counts say what stays open.",
            follow_up=self._follow_up() if self._request.is_dry_run else {},
        )

    def _follow_up(self) -> Mapping[str, str]:
        request = self._request
        fields: dict[str, object] = {
            "pipeline": request.pipeline,
            "database": request.database or None,
            "maximum": request.maximum,
            "attempts_max": request.attempts_max,
        }
        return request.filter.to_fields() | {
            name: str(value) for name, value in fields.items() if value is not None
        }


def _progress(line: bytes) -> dict[str, int] | None:
    if not line.startswith(b'{"progress"'):
        return None
    try:
        found = orjson.loads(line)["progress"]
        return {str(name): int(value) for name, value in found.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _tables(report: Mapping[str, object]) -> list[JobTable]:
    failures = ("error_type", "reason", "count", "partition", "sequence_number")
    reasons = ("error_type", "reason", "considered", "redriven", "failed", "waiting")
    return [
        JobTable(
            "Why they failed again",
            ("Error", "Reason", "Dead letters", "First: partition", "First: number"),
            _rows(report.get("failures"), failures),
        ),
        JobTable(
            "By the reason they had before",
            ("Error", "Reason", "Considered", "Redriven", "Failed", "Waiting"),
            _rows(report.get("by_reason"), reasons),
        ),
    ]


def _rows(found: object, names: Sequence[str]) -> list[tuple[object, ...]]:
    if not isinstance(found, list):
        return []
    return [tuple(each.get(name) for name in names) for each in found[:_ROWS_MAX] if isinstance(each, dict)]


async def _read(process: Process) -> bytes:
    assert process.stdout is not None
    pieces: list[bytes] = []
    size = 0
    while piece := await process.stdout.read(64 * 1024):
        size += len(piece)
        if size <= _REPORT_BYTES_MAX:
            pieces.append(piece)
    return b"".join(pieces)


async def _end(process: Process) -> None:
    """End the process and its children: SIGTERM, then SIGKILL if needed."""
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
            await process.wait()


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
