"""``tidegate check`` as it is run: what it finds, its progress, and that it may be interrupted."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
from array import array
from pathlib import Path

import pytest
from tests.broker.catalogs import edit_value
from tests.cli.support import COMMAND, run_tidegate

from tidegate.server.opening import open_broker
from tidegate.storage.check import check_log_directory
from tidegate.storage.options import LogOptions
from tidegate.storage.segments.segment import SEGMENT_SUFFIX
from tidegate.transport.clock import SystemClock
from tidegate.wire.batch import wrap_event

pytestmark = pytest.mark.usefixtures("forked_python")

_EVENTS = 400
_EVENT_BYTES = 20_000
_SEGMENT_BYTES = 1024 * 1024


@pytest.fixture
async def data_directory(tmp_path: Path) -> Path:
    """A data directory with 8 MB of events in several segments of two partitions; nobody runs on it."""
    directory = tmp_path / "log"
    options = LogOptions(segment_bytes_max=_SEGMENT_BYTES)
    broker = await open_broker(directory, clock=SystemClock(), options=options)
    await broker.create_event_hub("hub", partition_count=2, retention_hours=1)
    section = wrap_event(b"\x00\x53\x75\xb0" + _EVENT_BYTES.to_bytes(4, "big") + bytes(_EVENT_BYTES))
    for number in range(_EVENTS):
        partition = broker.event_hub("hub").partitions[number % 2]
        await partition.append(section, array("I", (len(section),)))
    await broker.close()
    return directory


def _contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in sorted(files)}


def _damage(directory: Path) -> Path:
    """Change a byte amid an event in the first segment."""
    segment = min(directory.glob("logs/*/0/*.log"))
    contents = bytearray(segment.read_bytes())
    contents[len(contents) // 2] ^= 1
    segment.write_bytes(contents)
    return segment


def _on_a_terminal(
    *words: str, environment: dict[str, str], interrupt_at: bytes | None = None
) -> tuple[int, bytes]:
    """Exit code, and what a terminal is shown; SIGINT once it was shown ``interrupt_at``."""
    terminal, stderr = pty.openpty()
    environment = environment | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        (*COMMAND, *words), env=environment, stderr=stderr, stdout=subprocess.DEVNULL
    ) as process:
        os.close(stderr)
        said = b""
        try:
            with contextlib.suppress(OSError):  # EIO: the terminal has no other end any more
                while more := os.read(terminal, 4096):
                    said += more
                    if interrupt_at is not None and interrupt_at in said:
                        process.send_signal(signal.SIGINT)
                        interrupt_at = None
            return process.wait(60), said
        finally:
            process.kill()
            os.close(terminal)


@pytest.mark.slow
async def test_what_a_later_version_has_written_is_not_called_damage(
    data_directory: Path, lonely: dict[str, str]
) -> None:
    """Nothing is repaired, not even a log that is damaged: the later version knows what else belongs to it.
    Nor is a backup recommended, which would lose what was stored since."""
    _damage(data_directory)
    await edit_value(data_directory, "hub/", lambda document: document.update(compaction=True))
    before = _contents(data_directory)
    for words in ([], ["--repair"]):
        found = run_tidegate("check", str(data_directory), *words, environment=lonely)
        assert found.code == 4
        assert "settings (compaction) that this version does not know" in found.err
        assert "Run the version of Tidegate that wrote it, or a later one." in found.err
        assert "backup" not in found.err
    assert _contents(data_directory) == before


@pytest.mark.slow
def test_its_progress_is_shown_to_terminals_alone(data_directory: Path, lonely: dict[str, str]) -> None:
    """A bar where somebody watches a table come; with ``--json``, or in a pipe, none."""
    code, said = _on_a_terminal("check", str(data_directory), environment=lonely)
    assert code == 0
    assert b"Checking" in said
    assert b"400 events" in said
    code, said = _on_a_terminal("check", str(data_directory), "--json", environment=lonely)
    assert code == 0
    assert b"Checking" not in said
    assert b"\x1b" not in said
    piped = run_tidegate("check", str(data_directory), environment=lonely)
    assert piped.code == 0
    assert piped.err.startswith("Read 8.")
    assert piped.err.count("\n") == 2


@pytest.mark.slow
def test_the_bar_counts_to_its_end(data_directory: Path) -> None:
    """Each byte of the segments once, in steps, whatever is read twice; a damaged segment, too."""
    from tidegate.cli.service.check import segment_bytes

    _damage(data_directory)
    shown: list[int] = []

    total = segment_bytes(data_directory)
    (data_directory / "logs/x/0").mkdir(parents=True)
    (data_directory / f"logs/x/0/1{SEGMENT_SUFFIX}").symlink_to("removed")  # listed, and not there any more
    assert segment_bytes(data_directory) == total
    shutil.rmtree(data_directory / "logs/x")
    report = check_log_directory(data_directory, on_progress=shown.append)
    assert report.damages
    assert total == report.bytes_read > _EVENTS * _EVENT_BYTES
    assert shown == sorted(shown)
    assert shown[-1] == total
    assert len(shown) > total // _SEGMENT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("repair", [False, True], ids=["check", "repair"])
async def test_an_interrupted_check_does_no_harm(
    data_directory: Path, lonely: dict[str, str], repair: bool
) -> None:
    """Its code says what ended it; a check has changed nothing, what a repair has left can be repaired."""
    _damage(data_directory)
    words = ("check", str(data_directory), *(("--repair",) if repair else ()))
    before = _contents(data_directory)
    # Nobody writes to it, so whoever opens it waits: the signal comes before the end.
    waiting = next((data_directory / "logs").iterdir()) / "2"
    waiting.mkdir()
    os.mkfifo(waiting / f"{0:020}{SEGMENT_SUFFIX}")
    code, said = _on_a_terminal(*words, environment=lonely, interrupt_at=b"Checking")
    assert code == 128 + signal.SIGINT, said
    assert b"Interrupted. " in said
    assert b"Traceback" not in said
    if not repair:
        assert b"Nothing changed." in said
        after = _contents(data_directory)
        assert {name: after[name] for name in before} == before
        return
    shutil.rmtree(waiting)
    mended = run_tidegate("check", str(data_directory), "--repair", environment=lonely)
    assert mended.code == 0, mended.err
    again = run_tidegate("check", str(data_directory), environment=lonely)
    assert again.code == 0, again.err
