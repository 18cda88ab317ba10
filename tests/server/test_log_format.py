"""The log's lines: one per event, whatever is in it, and complete for programs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from tidegate.server.log_format import LogFormat, start_logging
from tidegate.transport.clock import SystemClock

_AWKWARD = 'peer said "no"\nInjected: line\r\x1b[31m\u2028\x85\u202e'


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """What pytest set up is back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("tidegate")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def _log(log_format: LogFormat) -> list[str]:
    stream = io.StringIO()
    start_logging(log_format, stream, clock=SystemClock())
    log = logging.getLogger("tidegate.test")
    log.debug("not of note")
    log.info("%s", _AWKWARD, extra={"event_hub": "telemetry", "partitions": 4})
    logging.getLogger("other").info("not of note, either")
    logging.getLogger("other").warning("of note")
    try:
        raise ValueError(f"unexpected: {_AWKWARD}")
    except ValueError:
        log.exception("a failure")
    return stream.getvalue().splitlines()


def test_a_line_of_text_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    """What a peer says can neither forge a line nor reach the terminal; a traceback follows its line."""
    lines = _log(LogFormat.TEXT)
    assert "INFO tidegate.test: " in lines[0]
    assert lines[0].endswith('peer said "no"\\nInjected: line\\r\\x1b[31m\\u2028\\x85\\u202e')
    assert "WARNING other: of note" in lines[1]
    assert "ERROR tidegate.test: a failure" in lines[2]
    assert lines[-2] == '  ValueError: unexpected: peer said "no"'
    assert lines[-1] == "  Injected: line\\r\\x1b[31m\\u2028\\x85\\u202e"
    assert all(line.startswith("  ") for line in lines[3:])
    assert capsys.readouterr().err == ""


def test_each_line_is_one_json_object() -> None:
    """Programs get time, level, message, what the event is about, and tracebacks, one object per line."""
    first, second, third = (json.loads(line) for line in _log(LogFormat.JSON))
    assert first["message"] == _AWKWARD
    assert (first["level"], first["logger"]) == ("INFO", "tidegate.test")
    assert first["time"].endswith("Z")
    assert (first["event_hub"], first["partitions"]) == ("telemetry", 4)
    assert set(second) == {"time", "level", "logger", "message"}
    assert third["exception"].endswith(f"ValueError: unexpected: {_AWKWARD}")


def test_starting_again_replaces_the_format() -> None:
    """A line is never written twice."""
    _log(LogFormat.JSON)
    assert len([line for line in _log(LogFormat.JSON) if "of note" in line]) == 1


class _Clock:
    """Time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def now_utc(self) -> datetime:
        """Some day."""
        return datetime(2026, 9, 1, tzinfo=UTC)


def test_what_is_long_in_a_line_that_clients_cause_is_cut() -> None:
    """Protects the disk: a request of 64 KB was quoted in lines of 180 KB. The number of lines that were left
    out is told in short ones."""
    stream, clock = io.StringIO(), _Clock()
    start_logging(LogFormat.TEXT, stream, clock=clock)
    gateway = logging.getLogger("tidegate.gateway.amqp.request_node")
    gateway.info("refused: %s", "x" * 100_000)
    gateway.info("refused: %s", "100 %s")
    logging.getLogger("tidegate.server.app").info("our own: %s", "x" * 5_000)
    cut, short, own = stream.getvalue().splitlines()
    assert len(cut) < 2_200
    assert cut.endswith("xx…")
    assert short.endswith("refused: 100 %s")
    assert len(own) > 5_000


@pytest.mark.slow
def test_clients_cannot_flood_the_log() -> None:
    """Of what clients cause, errors too, some lines of each kind pass, and later how many did not; changes by
    an administrator and the service's own lines always pass."""
    stream, clock = io.StringIO(), _Clock()
    start_logging(LogFormat.TEXT, stream, clock=clock)
    gateway = logging.getLogger("tidegate.gateway.amqp.ingress")
    console = logging.getLogger("tidegate.console.frame.live")
    guard = logging.getLogger("tidegate.broker.key_guard")
    letters = logging.getLogger("tidegate.server.dead_letters")
    for number in range(1000):
        gateway.info("%s: a batch was refused", number)
        gateway.info("%s: another kind", number)
        console.info("a live page ends: %s", number)
        guard.info("a wrong key from %s", number)
        letters.warning("dead letters of %s", number)
        logging.getLogger("tidegate.server.stored_groups").info("no metrics: %s", number)
        logging.getLogger("asyncio").error("socket.accept() failed: %s", number)
        logging.getLogger("tidegate.audit").info("made %s", number, extra={"audit": {"number": number}})
        gateway.error("failed %s", number)
        logging.getLogger("tidegate.server.app").info("our own %s", number)
    lines = stream.getvalue().splitlines()

    def count(text: str) -> int:
        return sum(text in line for line in lines)

    assert 0 < count("a batch was refused") == count("another kind") == count("a wrong key") < 100
    assert 0 < count("dead letters") < 100
    assert 0 < count("no metrics") == count("socket.accept()") < 100
    assert 0 < count("a live page ends") < 100
    assert 0 < count("failed") < 100
    assert [count(text) for text in ("made", "our own")] == [1000, 1000]
    clock.now += 60
    gateway.info("%s: a batch was refused", "at last")
    last = stream.getvalue().splitlines()[-1]
    left_out = 1000 - count("a batch was refused")
    assert last.endswith(f"at last: a batch was refused (since the last such line, {left_out} were left out)")


def test_garbled_forms_leave_no_lines() -> None:
    """Protects the disk: their parser wrote one for each, of a kind of its own, and a stranger can send them
    to the console's sign-in page."""
    stream = io.StringIO()
    start_logging(LogFormat.TEXT, stream, clock=_Clock())
    for number in range(10):
        with pytest.raises(FormParserError):
            MultipartParser("b", {}).write(b"--b\r\n" + b"x" * number + b"?: y\r\n")
    assert stream.getvalue() == ""
