"""Commands in pipes: readers that go, writers that stay and Ctrl-C end them quietly, by the right code."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.support import COMMAND, run_tidegate

from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

WAIT_S = 60.0
BROKEN_PIPE = 128 + signal.SIGPIPE


@pytest.fixture
def filled(hub_service: HubService, environment: dict[str, str]) -> str:
    """A hub with a hundred events, sent through a pipe."""
    hub = hub_service.create_hub(partition_count=2)
    lines = "".join(json.dumps({"flight": f"AA{n % 7}", "n": n}) + "\n" for n in range(100))
    sent = run_tidegate("send", hub, "--key", ".flight", environment=environment, input_bytes=lines.encode())
    assert sent.code == 0, sent.err
    return hub


@contextmanager
def running(*words: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose ends are pipes; nothing of it is left."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, *words], env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stderr_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


@pytest.mark.parametrize("output_format", ["--table", "--json", "--nl", "--csv", "--body"])
@pytest.mark.slow
def test_the_reader_of_a_tail_goes(output_format: str, filled: str, environment: dict[str, str]) -> None:
    """``receive … | head -1``: it shows an event and ends by itself, though it would wait for more."""
    words = ("receive", filled, "--from", "2h", output_format)
    with running(*words, environment=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == BROKEN_PIPE
        assert stderr_of(process) == ""


def test_the_reader_of_a_tail_goes_and_no_event_comes(filled: str, environment: dict[str, str]) -> None:
    """It does not wait for an event to notice that nobody would read it."""
    with running("receive", filled, "--from", "latest", environment=environment) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(WAIT_S) == BROKEN_PIPE
        assert stderr_of(process) == ""


def test_the_reader_of_a_list_goes(filled: str, environment: dict[str, str]) -> None:
    """What is written at the end in one go is no exception."""
    with running("hub", "show", filled, "--json", environment=environment) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(WAIT_S) == BROKEN_PIPE
        assert stderr_of(process) == ""


def test_from_pipe_to_pipe(filled: str, environment: dict[str, str]) -> None:
    """What is received is sent on: a line is an event, and a key is found in it."""
    received = run_tidegate("receive", filled, "--no-follow", "--body", environment=environment)
    assert (received.code, received.out.count("\n")) == (0, 100)
    again = run_tidegate(
        "send", filled, "--key", ".flight", environment=environment, input_bytes=received.out.encode()
    )
    assert again.code == 0
    records = run_tidegate("receive", filled, "--no-follow", "--nl", environment=environment)
    found = [json.loads(line) for line in records.out.splitlines()]
    assert len(found) == 200
    assert all(json.loads(record["body"])["flight"] == record["partition_key"] for record in found)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sender_has_sent_what_it_took(
    number: signal.Signals, filled: str, environment: dict[str, str]
) -> None:
    """Lines that were read are sent and counted, and the code says what ended it; no traceback."""
    with running("send", filled, "--key", ".flight", environment=environment) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"flight": "UA1"}\n')
        process.stdin.flush()
        seen = run_tidegate("receive", filled, "--count", "101", "--body", environment=environment)
        assert '{"flight": "UA1"}' in seen.out
        process.send_signal(number)
        assert process.wait(WAIT_S) == 128 + number
        said = stderr_of(process)
        assert said.startswith("Sent 1 event in ")
        assert said.count("\n") == 1


@pytest.mark.slow
def test_a_long_file_shows_progress_and_can_be_interrupted(
    event_hub: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """A terminal sees a bar; Ctrl-C amid the file leaves as many events in the hub as it then says."""
    file = tmp_path / "lines"
    file.write_bytes(b'{"flight": "AA1"}\n' * 3_000_000)
    terminal, stderr = pty.openpty()
    words = (*COMMAND, "send", event_hub, "--file", str(file))
    with subprocess.Popen(words, env=environment | {"TERM": "xterm"}, stderr=stderr) as process:
        os.close(stderr)
        said = b""
        try:
            while b"Sending" not in said:
                said += os.read(terminal, 4096)
            first = run_tidegate("receive", event_hub, "--count", "1", "--body", environment=environment)
            assert first.code == 0, first.err
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # EIO: the terminal has no other end any more
                while more := os.read(terminal, 4096):
                    said += more
            assert process.wait(WAIT_S) == 128 + signal.SIGINT
        finally:
            process.kill()
            os.close(terminal)
    told = re.search(rb"Sent ([0-9,]+) events?", said)
    assert told is not None, said
    shown = run_tidegate("hub", "show", event_hub, "--nl", environment=environment)
    held = sum(json.loads(line)["events"] for line in shown.out.splitlines())
    assert 0 < held < 3_000_000
    assert held == int(told[1].replace(b",", b""))
