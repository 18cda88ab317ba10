"""Old and new service on one data directory, in turn: everything is served, or refused with a sentence."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture.support import capture_files, captured_numbers
from tests.capture.test_kill import Sender
from tests.upgrade.contents import CAPTURED, Contents, contents, create_captured, fill
from tests.upgrade.versions import IS_WHOLE, TODAY, ServiceProcess, Version

from tidegate.client import BlockingConsumer
from tidegate.model.errors import BrokenError

pytestmark = pytest.mark.timeout(600)

_DEADLINE_S = 120.0
_REFUSALS = ("which this version does not know", "The control log is damaged")
"""What an old version may say of a directory that a new one has written: the second is what first-journal
calls a record with changes of several keys."""
_CAPTURE_REFUSAL = "This version cannot read the capture state"
"""What an old version says of a file that a new one had begun and not finished when it was killed."""


class _Life:
    """One version's time with the directory: what was there before is served, and more comes."""

    def __init__(self, service: ServiceProcess, files: Path, rng: random.Random, *, is_killed: bool) -> None:
        self._service, self._files, self._rng, self._is_killed = service, files, rng, is_killed
        self.acknowledged: list[bytes] = []
        """Bodies in the captured hub."""
        self.is_capture_refused = False
        """Whether the version that lived last did not continue what another one had begun."""

    def live(self, phase: str, *, has_accounts: bool) -> Contents:
        """Fill the running service, capture a file at least, and end it: in order, or killed amid more.

        An old version may refuse to capture.

        Returns what it holds but for the captured hub.
        """
        service = self._service
        fill(service, phase, has_accounts=has_accounts)
        held = contents(service, has_accounts=has_accounts)
        sender = Sender(service.connection_string, CAPTURED, phase)
        sender.start()
        count = len(capture_files(self._files))

        def is_refused() -> bool:
            said = service.log_file.read_text(errors="replace")
            self.is_capture_refused = service.version != TODAY and _CAPTURE_REFUSAL in said
            return self.is_capture_refused

        _wait_until(lambda: len(capture_files(self._files)) > count or is_refused())
        if self._is_killed:
            time.sleep(self._rng.uniform(0.0, 0.2))
            service.kill()
        sender.stop_requested = True
        sender.join(_DEADLINE_S)
        assert not sender.is_alive()
        service.stop()
        self.acknowledged += sender.acknowledged
        return held

    def check_captured(self) -> None:
        """Everything acknowledged is in the log, in order, and the files have what the log has, each once."""
        with BlockingConsumer(self._service.connection_string, CAPTURED) as consumer:
            (ends,) = consumer.get_all_partition_properties()
            events = consumer.read_events(CAPTURED, "0", range(ends.next_sequence_number))
            bodies = [event.body.rstrip(b".") for event in events]
        assert len(bodies) == ends.next_sequence_number
        known = set(self.acknowledged)
        assert [body for body in bodies if body in known] == self.acknowledged
        numbers = captured_numbers(self._files)
        assert numbers == list(range(len(numbers)))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not get on"
        time.sleep(0.01)


def _refusal_of(service: ServiceProcess) -> str:
    """What the next version says instead of starting; empty: it runs."""
    try:
        service.start()
    except BrokenError as error:
        return str(error)
    return ""


def _without(held: Contents, *keys: str) -> Contents:
    return {key: value for key, value in held.items() if key not in keys}


@pytest.mark.parametrize(
    "is_killed", [True, False] if IS_WHOLE else [True], ids=lambda is_it: "kill" if is_it else "stop"
)
def test_a_directory_that_changes_hands(old: Version, tmp_path: Path, seed: int, is_killed: bool) -> None:
    """Old, new, old, new: hubs, settings, groups, policies and keys, publishers, checkpoints of official
    processors, every event's bytes, number and time, and Capture's files. Where the old one refuses what the
    new one has written, it says so, and nothing is lost when the new one returns."""
    files, data_dir = tmp_path / "files", tmp_path / "data"
    data_dir.mkdir()
    service = ServiceProcess([old, TODAY], data_dir)
    life = _Life(service, files, random.Random(seed), is_killed=is_killed)
    try:
        service.start()
        create_captured(service, str(files))
        before = life.live("first", has_accounts=old.has_accounts)

        service.start()
        assert (
            _without(contents(service, has_accounts=True), *(() if old.has_accounts else ("blobs",)))
            == before
        )
        life.check_captured()
        before = life.live("second", has_accounts=True)

        refusal = _refusal_of(service)
        if refusal:
            print(f"{old.name} refuses: {refusal}")
            assert any(words in refusal for words in _REFUSALS), refusal
            assert "Traceback" not in refusal
        else:
            mine = before if old.has_accounts else _without(before, "blobs")
            assert contents(service, has_accounts=old.has_accounts) == mine
            life.check_captured()
            before |= life.live("third", has_accounts=old.has_accounts)

        service.start()
        assert service.version == TODAY
        assert contents(service, has_accounts=True) == before
        if life.is_capture_refused:
            count = len(capture_files(files))
            _wait_until(lambda: len(capture_files(files)) > count)
        life.check_captured()
    finally:
        service.close()
    checked = TODAY.run("-m", "tidegate.cli", "check", str(data_dir))
    assert checked.returncode == 0, checked


@pytest.mark.parametrize(
    "is_service_old",
    [True, pytest.param(False, marks=pytest.mark.repeats)],
    ids=["old-service", "old-command-line"],
)
def test_a_command_line_of_the_other_version(old: Version, tmp_path: Path, is_service_old: bool) -> None:
    """What both know works, and shows the same; what one lacks is refused with a sentence and a status."""
    served, asking = (old, TODAY) if is_service_old else (TODAY, old)
    commands = (
        ("hub", "create", "telemetry", "--partitions", "2"),
        ("hub", "update", "telemetry", "--retention-hours", "5"),
        ("group", "create", "telemetry", "reports"),
        ("policy", "create", "reader", "--claim", "Listen", "--hub", "telemetry"),
        ("send", "telemetry"),
        ("throughput", "set", "3"),
        ("hub", "list", "--json"),
        ("hub", "show", "telemetry", "--json"),
        ("group", "list", "telemetry", "--json"),
        ("policy", "list", "--hub", "telemetry", "--json"),
        ("throughput", "show", "--json"),
        ("tier", "show", "--json"),
        ("publisher", "list", "telemetry", "--json"),
        ("receive", "telemetry", "--no-follow", "--nl"),
    )
    with ServiceProcess([served]) as service:
        variables = {
            "TIDEGATE_CONNECTION_STRING": service.connection_string,
            "TIDEGATE_CONFIG_DIR": str(tmp_path),
        }

        def ask(version: Version, words: tuple[str, ...]) -> tuple[int, str, str]:
            done = version.run("-m", "tidegate.cli", *words, stdin="one\ntwo\n", **variables)
            return done.returncode, done.stdout, done.stderr

        for words in commands:
            status, shown, said = ask(asking, words)
            assert status == 0, (words, shown, said)
            if "--json" in words:
                assert ask(served, words)[1] == shown, words
        for asked in ("lag telemetry", "doctor"):  # perhaps more than the other version has
            status, _, said = ask(asking, tuple(asked.split()))
            assert status in range(5), asked
            assert "Traceback" not in said
