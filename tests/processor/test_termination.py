"""SIGTERM to a program with hosts: what runs is finished, leases are free, and the program ends as usual."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest
from tests.docs_support import environment_of
from tests.processor.hosts import publish, until

from tidegate.processor import DirectoryStore, GroupKey
from tidegate.processor.lease import NAMES_SUFFIX
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

PROGRAM: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from tidegate import DirectoryStore, EventProcessorHost

async def handle(context, events):
    print("begun", flush=True)
    while not Path("may_end").exists():
        await asyncio.sleep(0.01)
    await context.checkpoint()

async def run(store, number):
    host = EventProcessorHost.from_connection_string(
        os.environ["TIDEGATE_CONNECTION_STRING"], sys.argv[1], store=store, host_name=f"host-{number}")
    async with host.running(handle, **OPTIONS):
        print("running", flush=True)
        await asyncio.Event().wait()
    print("after the block", flush=True)

async def main():
    store = DirectoryStore("leases")
    HOSTS
    await store.close()
    print("end", flush=True)

asyncio.run(main())
"""
ONE: Final = "await run(store, 0)"
TWO: Final = "await asyncio.gather(run(store, 0), run(store, 1))"
OWN: Final = """asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: sys.exit(7))
    await run(store, 0)"""


@contextmanager
def _running(
    service: HubService, hub: str, folder: Path, hosts: str, options: str = "{}"
) -> Iterator[subprocess.Popen[bytes]]:
    text = PROGRAM.replace("HOSTS", hosts).replace("OPTIONS", options)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", text, hub],
            cwd=folder,
            env=environment_of(service),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _lines(folder: Path) -> list[str]:
    return (folder / "out").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "count"), [(ONE, 1), (TWO, 2)])
async def test_sigterm_ends_hosts_in_order(
    hub_service: HubService, hub: str, tmp_path: Path, hosts: str, count: int
) -> None:
    """The call ends and its checkpoint counts; the program continues after the block, and ends with 0."""
    await publish(hub_service, hub, 10)
    with _running(hub_service, hub, tmp_path, hosts) as process:
        await until(lambda: _lines(tmp_path).count("running") == count and "begun" in _lines(tmp_path))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "may_end").touch()
        await until(lambda: process.poll() is not None)
        assert process.returncode == 0, _lines(tmp_path)
    assert sorted(_lines(tmp_path)) == sorted(["begun", *["running", "after the block"] * count, "end"])
    store = DirectoryStore(tmp_path / "leases")
    files = (tmp_path / "leases").rglob("leases.json")
    (file,) = [each for each in files if NAMES_SUFFIX not in unquote(each.parent.name)]
    group = GroupKey(*map(unquote, file.parent.relative_to(tmp_path / "leases").parts))
    assert [lease.owner for lease in (await store.list_leases(group)).leases.values()] == [""]
    assert (await store.list_checkpoints(group))["0"].sequence_number == 9
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "options", "code"),
    [(ONE, "{'is_sigterm_handled': False}", -signal.SIGTERM), (OWN, "{}", 7)],
)
async def test_a_program_may_handle_it_itself(
    hub_service: HubService, hub: str, tmp_path: Path, hosts: str, options: str, code: int
) -> None:
    """By the option, or by having a handler."""
    with _running(hub_service, hub, tmp_path, hosts, options) as process:
        await until(lambda: "running" in _lines(tmp_path))
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None)
        assert process.returncode == code, _lines(tmp_path)
    assert "after the block" not in _lines(tmp_path)
