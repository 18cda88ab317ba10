"""What the service asks of its process takes effect, and is harmless where it cannot."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.server.test_held_memory import Client

from tidegate.model.connection_string import ConnectionString
from tidegate.server.memory import memory_max_bytes_default
from tidegate.server.settings import MEMORY_BYTES_MIN

_PROGRAM = """
import resource
from tidegate.server.memory import keep_freed_memory
print(keep_freed_memory())
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    block = b"".join((b"x" * 1_000_000, b"y" * 1_000_000))
before = faults()
for _ in range(100):
    block = b"".join((b"x" * 1_000_000, b"y" * 1_000_000))
print(faults() - before)
"""


@pytest.mark.slow
def test_large_buffers_are_reused() -> None:
    """A hundred buffers of 2 MB, one after the other, cost next to no page faults (else 500 each)."""
    completed = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    is_tuned, faults = completed.stdout.split()
    assert is_tuned == str(platform.libc_ver()[0] == "glibc")
    if is_tuned == "True":
        assert int(faults) < 5_000


_LIMITS = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from tidegate.server.memory import allow_open_files
print(allow_open_files() == hard, resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard)
"""


@pytest.mark.slow
def test_connections_are_not_limited_by_the_shell() -> None:
    """A shell's soft limit on open files, often 1,024, does not decide how many clients can be served."""
    completed = subprocess.run(
        [sys.executable, "-c", _LIMITS], capture_output=True, text=True, check=True, timeout=60
    )
    assert completed.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("group", ["", "system.slice/tidegate.service"])
def test_the_limit_of_a_container_or_unit_counts(tmp_path: Path, group: str) -> None:
    """A service that systemd allows 400 MB does not hold more for its clients than it may have altogether."""

    def default(limit: str | None) -> int:
        directory = tmp_path / "sys/fs/cgroup" / group
        directory.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/\n0::/{group}\n")
        if limit is not None:
            (directory / "memory.max").write_text(limit)
        return memory_max_bytes_default(root=tmp_path)

    of_the_machine = default(None)
    assert of_the_machine > 100_000_000
    assert default("400000000\n") == 100_000_000
    assert default("max\n") == of_the_machine
    assert default("1000000\n") == MEMORY_BYTES_MIN


_SERVING = """
import asyncio, gc, sys
from pathlib import Path
from tidegate.server.app import run_server
from tidegate.server.settings import ServerSettings

async def serve():
    served = asyncio.get_running_loop().create_future()
    settings = ServerSettings(Path(sys.argv[1]), amqp_port=0, http_port=None)
    task = asyncio.get_running_loop().create_task(run_server(settings, on_ready=served.set_result))
    await served
    print(gc.get_freeze_count() > 20_000, len(gc.get_objects()) < 20_000)
    task.cancel()
    await asyncio.wait([task])
    print(gc.get_freeze_count())

asyncio.run(serve())
"""


@pytest.mark.slow
def test_collections_do_not_walk_what_the_start_has_made(tmp_path: Path) -> None:
    """While it serves, a full collection is about what clients have left, and not about all modules."""
    completed = subprocess.run(
        [sys.executable, "-c", _SERVING, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert completed.stdout.split() == ["True", "True", "0"]


_COLLECTING = """
import gc
from tidegate.server.memory import Collections, full_collections_put_off

class Part: ...

def cycles(count):
    made = []
    for _ in range(count):
        one, other = Part(), Part()
        one.other, other.other = other, one
        made.append(one)
    return made

full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
thresholds, held_bytes, connections = gc.get_threshold(), 0, 0
with full_collections_put_off():
    collections = Collections(lambda: held_bytes, lambda: connections)
    def collect():
        collections.collect()
        collections.collect()

    held_bytes = 300_000_000
    full.clear()
    of_clients = cycles(100_000)
    collect()
    print("held:", len(full))
    held_bytes, connections = 0, 5_000
    collect()
    print("of connections:", len(full))
    del of_clients
    connections = 0
    collect()
    print("garbage:", len(full), len(gc.get_objects()) < 2_000)
    kept = cycles(100_000)
    for _ in range(10):
        collect()
    print("kept:", len(full))
    del kept
    collect()
    print("few:", len(full))
    most = 0
    for _ in range(20):
        old = cycles(50_000)
        gc.collect(1)
        del old
        collect()
        most = max(most, len(gc.get_objects()))
    print("bounded:", most < 1_000_000)
print("as before:", gc.get_threshold() == thresholds)
"""


@pytest.mark.slow
def test_full_collections_are_for_garbage() -> None:
    """Each phase of a collection is counted. What clients hold is not walked, however much that is: 0.5 s for
    100,000 links, 40 ms for 1,000 connections. Garbage is collected, and what is none is not walked often."""
    completed = subprocess.run(
        [sys.executable, "-c", _COLLECTING], capture_output=True, text=True, check=True, timeout=60
    )
    assert completed.stdout.splitlines() == [
        "held: 0",
        "of connections: 0",
        "garbage: 2 True",
        "kept: 4",
        "few: 4",
        "bounded: True",
        "as before: True",
    ]


_SERVING_CLIENTS = """
import asyncio, gc, sys
from pathlib import Path
from tidegate.server.app import run_server
from tidegate.server.settings import ServerSettings

async def serve():
    loop = asyncio.get_running_loop()
    served = loop.create_future()
    settings = ServerSettings(Path(sys.argv[1]), amqp_port=0, http_port=None)
    task = loop.create_task(run_server(settings, on_ready=served.set_result))
    print((await served).connection_string_plain, flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(len(gc.get_objects()), flush=True)
    task.cancel()
    await asyncio.wait([task])

asyncio.run(serve())
"""


@pytest.mark.slow
def test_nothing_of_ended_clients_stays(tmp_path: Path) -> None:
    """Thousands of links and connections come and go; full collections are rare, and yet nothing leaks."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVING_CLIENTS, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        key = process.stdout.readline().strip()
        port = ConnectionString.parse(key).effective_port

        def objects() -> int:
            print(file=process.stdin)
            return int(process.stdout.readline())  # type: ignore[union-attr]

        before = objects()
        clients = [Client(port) for _ in range(10)]
        for client in clients:
            client.authorize(key, "")
            for number in range(250):
                client.session.attach_sender(f"s{number}", target="$cbs")
            client.attach_sender("$cbs", "last")
        assert objects() - before > 10_000
        for client in clients:
            client.socket.close()
        for _ in range(1_000):
            client = Client(port)
            client.flush()
            client.socket.close()
        deadline = time.monotonic() + 60
        while (left := objects() - before) > 10_000:
            assert time.monotonic() < deadline, f"{left} objects are left"
            time.sleep(0.5)
        process.stdin.close()
