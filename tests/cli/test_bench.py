"""``tidegate bench``: every figure is measured, compared with its limit, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.support import COMMAND, run_tidegate

from tidegate.cli.service.measuring import SYNC, WRITE, Measured, measure_service, records_of
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.mark.slow
async def test_a_service_is_measured(hub_service: HubService) -> None:
    """Appends, sends one at a time and together, and delivery."""
    found: list[Measured] = []
    await measure_service(hub_service.connection_string, 0.02, found.append)
    append, one, many, delivery = found
    assert append.count >= 1000
    assert append.byte_count == 1000 * append.count
    assert (one.count >= 1, many.count >= 64) == (True, True)
    assert 0 < delivery.count <= append.count + one.count + many.count + 1
    assert delivery.byte_count == 1000 * delivery.count


def test_figures_are_compared_with_their_limits() -> None:
    """Streams by bytes, sends by number; a limit has none itself."""
    found = [
        Measured(WRITE, 100, 100_000_000, 1.0),
        Measured(SYNC, 500, 2_000_000, 1.0),
        Measured("append", 50_000, 50_000_000, 2.0, WRITE),
        Measured("send", 250, 250_000, 1.0, SYNC),
    ]
    records = records_of(found)
    assert [each["ratio"] for each in records] == [None, None, 0.25, 0.5]
    assert (records[2]["per_s"], records[2]["MB_per_s"], records[2]["to"]) == (25_000.0, 25.0, WRITE)


@pytest.mark.slow
def test_nothing_is_left(lonely: dict[str, str], tmp_path: Path) -> None:
    """Neither at the end nor after Ctrl-C; a directory that is none is named."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ("bench", "--data-dir", str(disk), "--seconds", "0.01")
    found = run_tidegate(*words, "--nl", environment=lonely)
    assert (found.code, len(found.out.splitlines()), [*disk.iterdir()]) == (0, 7, []), found.err
    with subprocess.Popen(
        [*COMMAND, *words[:-1], "60"], env=lonely, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not [*disk.iterdir()]:
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err, [*disk.iterdir()]) == (130, b"", b"", [])
    refused = run_tidegate("bench", "--data-dir", str(disk / "no"), environment=lonely)
    assert (refused.code, "is not a directory" in refused.err) == (2, True)
