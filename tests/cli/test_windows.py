"""Client and command line without what only POSIX has: modules, functions, signals, loops with signals.

That is not Windows: the locks are a stand-in, and files and processes are this system's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.testing.hub import HubService

_WITHOUT_POSIX = """
import os, select, signal, sys, types
import asyncio.unix_events, multiprocessing.util, subprocess, tempfile, shutil, socket, ssl, getpass, pathlib

import fcntl as _fcntl
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.LK_UNLCK = 2, 0

def locking(descriptor, mode, count):
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 2**40 and count == 1
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_UN if mode == 0 else _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(*error.args) from None

msvcrt.locking = locking
sys.modules["msvcrt"] = msvcrt
for name in ("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty", "uvloop"):
    sys.modules[name] = None
for name in (
    "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "fdatasync", "fork", "getuid", "killpg", "posix_fallocate",
    "pread", "pwrite", "pwritev", "register_at_fork", "sched_getaffinity", "setsid", "sysconf",
):
    delattr(os, name)
del select.poll
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGWINCH"):
    delattr(signal, name)

def refused(*arguments):
    raise NotImplementedError

loop = asyncio.unix_events._UnixSelectorEventLoop
loop.add_signal_handler = loop.remove_signal_handler = refused
"""
"""Takes it away once Python's own modules, which know this system, have been imported."""

_ALL = """
import importlib, pkgutil
import tidegate
for name in ("amqp", "cli", "client", "columns", "model", "processor", "spark", "sql", "transport", "wire"):
    package = importlib.import_module(f"tidegate.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(("__main__", "spark.runtime.daemon")):  # PySpark has no daemon there
            importlib.import_module(module.name)
"""

_HOST = """
import asyncio, os
from pathlib import Path
from tidegate import DirectoryStore, EventHubProducer, EventData, EventProcessorHost
from tidegate.processor import MemoryStore

async def main(connection_string, hub, folder):
    async with EventHubProducer.from_connection_string(connection_string, hub) as producer:
        await producer.send([EventData(b"one\\r\\n"), EventData(b"two\\n")])
    done, bodies = asyncio.Event(), []

    async def handle(context, events):
        bodies.extend(bytes(event.body) for event in events)
        await context.checkpoint()
        if len(bodies) >= 2:
            done.set()

    store = DirectoryStore(Path(folder))
    host = EventProcessorHost(event_hub=hub, connection_string=connection_string, store=store)
    async with host.running(handle):
        await asyncio.wait_for(done.wait(), 60)
    checkpoints = await store.list_checkpoints(host.group)
    await store.close()
    print(sorted(bodies), sorted(each.sequence_number for each in checkpoints.values()))

asyncio.run(main(os.environ["CONNECTION"], os.environ["HUB"], os.environ["FOLDER"]))
"""

_DATABASE = """
import os
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from tidegate.sql import Database

table = Table("rows", MetaData(), Column("number", Integer, primary_key=True))
database = Database.open(f"sqlite:///{os.environ['FOLDER']}/rows.db")
database.ensure_table(table)
with database.writing() as connection, connection.begin():
    connection.execute(insert(table).values(number=7))
with database.read() as connection:
    print(connection.execute(select(table.c.number)).scalar_one())
database.close()
"""


def _run(
    program: str, *arguments: str, folder: Path, text: str = "", **variables: str
) -> tuple[int, str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    own = {"TIDEGATE_CONFIG_DIR": str(folder / "configuration"), "FOLDER": str(folder)}
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_POSIX + program, *arguments],
        env=kept | own | variables,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return found.returncode, found.stdout, found.stderr


def _command(*arguments: str, folder: Path, text: str = "") -> tuple[int, str, str]:
    return _run("from tidegate.cli import main; main()", *arguments, folder=folder, text=text)


@pytest.mark.slow
def test_every_module_can_be_imported(tmp_path: Path) -> None:
    """But those of the service itself."""
    assert _run(_ALL, folder=tmp_path) == (0, "", "")


@pytest.mark.slow
def test_commands_run(hub_service: HubService, tmp_path: Path) -> None:
    """Send and receive, entities, and the lag of a directory."""
    hub = hub_service.create_hub(partition_count=1)
    own = ("--connection-string", hub_service.connection_string)
    assert _command("send", hub, *own, folder=tmp_path, text="one\ntwo\n")[0] == 0
    code, out, err = _command(
        "receive", hub, "--from", "earliest", "--count", "2", "--nl", *own, folder=tmp_path
    )
    assert code == 0, err
    assert [json.loads(line)["body"] for line in out.splitlines()] == ["one", "two"]
    code, out, err = _command("hub", "list", "--json", *own, folder=tmp_path)
    assert code == 0, err
    assert hub in out
    code, out, err = _command("lag", hub, "--checkpoint-dir", str(tmp_path), *own, folder=tmp_path)
    assert code == 0, err


@pytest.mark.slow
def test_hosts_in_processes_are_refused(tmp_path: Path) -> None:
    """They report through pipes that such a system does not have."""
    code, out, err = _command("host", "run", "hosted.py:host", "--processes", "2", folder=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("Error: --processes is not possible on Windows.")


@pytest.mark.slow
def test_a_host_runs_with_a_directory(hub_service: HubService, tmp_path: Path) -> None:
    """Leases, checkpoints and their locks; bytes stay as they are."""
    code, out, err = _run(
        _HOST,
        folder=tmp_path,
        CONNECTION=hub_service.connection_string,
        HUB=hub_service.create_hub(partition_count=1),
    )
    assert (code, out) == (0, "[b'one\\r\\n', b'two\\n'] [1]\n"), err


@pytest.mark.slow
def test_a_database_is_written(tmp_path: Path) -> None:
    """The lock of its writers."""
    assert _run(_DATABASE, folder=tmp_path) == (0, "7\n", "")


@pytest.mark.slow
def test_the_service_says_that_it_does_not_run_there(tmp_path: Path) -> None:
    """Before it touches anything."""
    code, out, err = _command("serve", "--data-dir", str(tmp_path / "data"), folder=tmp_path)
    assert (code, out) == (2, "")
    assert err == (
        "Error: The service does not run on Windows. Run it in a container or in WSL; clients and the other "
        "commands run here.\n"
    )
    assert not (tmp_path / "data").exists()
