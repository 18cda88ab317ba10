"""``tidegate host run``: hosts as processes, which end in order and are restarted; their metrics."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.cli.support import COMMAND, run_tidegate
from tests.processor.hosts import publish, until

from tidegate.cli.hosts.metrics import HOST_METRICS, HostCollector
from tidegate.cli.hosts.report import DECODER, ENCODER, HostReport, PartitionReport
from tidegate.cli.hosts.supervisor import WINDOW_S, RestartPolicy
from tidegate.processor import DirectoryStore, GroupKey
from tidegate.processor.lease import NAMES_SUFFIX
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

PROGRAM = """
import asyncio, os
from pathlib import Path
from beside import STORE
from tidegate import EventProcessorHost
from tidegate.processor import PartitionManagerOptions

async def handle(context, events):
    print("begun", flush=True)
    while not Path("may_end").exists():
        await asyncio.sleep(0.01)
    await context.checkpoint()
    print("done", context.partition_id, events[-1].sequence_number, flush=True)

def host():
    return EventProcessorHost.from_connection_string(
        os.environ["TIDEGATE_CONNECTION_STRING"], os.environ["HUB"], store=STORE, handler=handle,
        host_name="mine", manager_options=PartitionManagerOptions(
            lease_duration_s=6, renew_interval_s=2, stall_timeout_s=60))

def without_handler():
    found = host()
    found.handler = None
    return found

def dying():
    os._exit(9)
"""


@dataclass(slots=True)
class Place:
    """A folder with a program, and what its command writes into it."""

    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    @contextmanager
    def running(self, *options: str, name: str = "host") -> Iterator[None]:
        """The command, in the folder; killed at the end where it still runs."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*COMMAND, "host", "run", f"program.py:{name}", *options],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=err,
            )
        try:
            yield
        finally:
            self.process.kill()
            self.process.wait()

    def lines(self) -> list[str]:
        """What the handlers printed."""
        return (self.folder / "out").read_text().splitlines()

    def log(self) -> str:
        """What the command wrote to standard error."""
        return (self.folder / "err").read_text()

    def children(self) -> list[int]:
        """The process ids of the host processes that were started, in order."""
        return [int(found) for found in re.findall(r"has started: process id (\d+)", self.log())]

    def metrics(self) -> str:
        """What the metrics port serves."""
        address = re.search(r"Metrics: (\S+)", self.log())
        assert address is not None
        with urllib.request.urlopen(address[1], timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    async def owners(self) -> list[str]:
        """The owner of each lease in the store."""
        store = DirectoryStore(self.folder / "leases")
        try:
            files = (self.folder / "leases").rglob("leases.json")
            (file,) = [each for each in files if NAMES_SUFFIX not in unquote(each.parent.name)]
            group = GroupKey(*map(unquote, file.parent.relative_to(self.folder / "leases").parts))
            return [lease.owner for lease in (await store.list_leases(group)).leases.values()]
        except ValueError:  # no file yet
            return []
        finally:
            await store.close()

    async def owned_by(self, *names: str) -> None:
        """Wait until these, and no others, own all partitions."""
        async with asyncio.timeout(60):
            while {*await self.owners()} != {*names}:
                assert self.process.poll() is None, self.log()
                await asyncio.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path, hub_service: HubService, environment: dict[str, str]) -> Place:
    """The program, for a hub with two partitions."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text(
        "from tidegate import DirectoryStore\nSTORE = DirectoryStore('leases')\n"
    )
    hub = hub_service.create_hub(partition_count=2)
    return Place(tmp_path, environment | {"HUB": hub, "PYTHONUNBUFFERED": "1"})


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("options", [(), ("--processes", "1")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
async def test_it_ends_in_order(
    place: Place, hub_service: HubService, options: tuple[str, ...], number: signal.Signals
) -> None:
    """The running call finishes and its checkpoint counts; leases are free, and the code is 0."""
    await publish(hub_service, place.environment["HUB"], 10, partition_id="0")
    with place.running("--metrics-port", "0", *options):
        await until(lambda: "begun" in place.lines() or place.process.poll() is not None)
        await place.owned_by("mine-1" if options else "mine")
        await until(lambda: 'tidegate_host_partitions{host="mine' in place.metrics())
        assert 'consumer_group="$Default"' in place.metrics()  # as in the service's, not as in leases
        place.process.send_signal(number)
        (place.folder / "may_end").touch()
        await until(lambda: place.process.poll() is not None)
        assert place.process.returncode == 0, place.log()
    assert place.lines() == ["begun", "done 0 9"]
    assert {*await place.owners()} == {""}
    assert "has stopped: 10 events processed" in place.log()
    assert "Traceback" not in place.log()


@pytest.mark.slow
async def test_a_dead_process_is_restarted_under_another_name(place: Place) -> None:
    """Two hosts of one file have two names; a killed one comes back, and all end together."""
    with place.running("--processes", "2", "--metrics-port", "0"):
        await place.owned_by("mine-1", "mine-2")
        first, second = place.children()
        os.kill(first, signal.SIGKILL)
        await place.owned_by("mine-1.1", "mine-2")
        await until(lambda: 'tidegate_host_partitions{host="mine-1.1"} 1.0' in place.metrics())
        assert "tidegate_host_restarts_total 1.0" in place.metrics()
        assert 'host="mine-1"' not in place.metrics()
        assert "Host process 1 has ended, by SIGKILL; it starts again in 1 s" in place.log()
        place.process.send_signal(signal.SIGTERM)
        await until(lambda: place.process.poll() is not None)
        assert place.process.returncode == 0, place.log()
    assert not [each for each in (first, second, *place.children()) if is_running(each)]
    assert {*await place.owners()} == {""}


@pytest.mark.slow
async def test_no_host_outlives_its_parent(place: Place) -> None:
    """A parent that is killed leaves no host behind: each ends in order."""
    with place.running("--processes", "2"):
        await place.owned_by("mine-1", "mine-2")
        place.process.kill()
        await until(lambda: not any(map(is_running, place.children())))
    assert {*await place.owners()} == {""}


@pytest.mark.slow
async def test_a_process_that_always_dies_ends_all(place: Place) -> None:
    """The limit of restarts is told with the last exit code, and the command fails."""
    with place.running("--processes", "2", "--restarts", "1", name="dying"):
        await until(lambda: place.process.poll() is not None)
        assert place.process.returncode == 1
    assert "has ended again, with exit code 9, after 1 restarts in 10 min" in place.log()
    assert len(place.children()) in (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "has no attribute 'nothing'"), ("without_handler", "has no handler"), ("os", "is a module")],
)
async def test_what_is_no_host_is_said(place: Place, options: tuple[str, ...], name: str, words: str) -> None:
    """Invalid usage (2), at once: no restart helps."""
    with place.running(*options, name=name):
        await until(lambda: place.process.poll() is not None)
        assert place.process.returncode == 2
    assert words in place.log()
    assert "starts again" not in place.log()


def test_a_metrics_port_that_is_taken(place: Place) -> None:
    """It is said before a host starts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = run_tidegate(
            *("host", "run", f"{place.folder}/program.py:host"),
            *("--metrics-port", str(taken.getsockname()[1])),
            environment=place.environment,
        )
    assert (found.code, "Choose another --metrics-port" in found.err) == (2, True)


def test_restarts_wait_longer_and_end() -> None:
    """1, 2, 4 … s, at most 30; never more than the limit in a window, which moves."""
    policy = RestartPolicy(7)
    assert [policy.next_pause_s(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, None]
    assert policy.next_pause_s(WINDOW_S) == 1
    assert RestartPolicy(0).next_pause_s(0.0) is None


def test_a_report_travels_and_becomes_metrics() -> None:
    """Every metric has its number, by host and partition; what is unknown is left out."""
    known = PartitionReport("0", "running", 7, 1.5, None)
    unknown = PartitionReport("1", "paused", None, None, "no")
    report = HostReport("a", 12, 2, "flights", "reports", (known, unknown), 5, 40, "gone")
    assert DECODER.decode(ENCODER.encode(report)) == report
    families = list(HostCollector({1: report}, lambda: 3).collect())
    samples = {
        (each.name, *each.labels.values()): each.value for family in families for each in family.samples
    }
    assert samples == {
        ("tidegate_host_partitions", "a"): 2,
        ("tidegate_host_events_total", "a"): 12,
        ("tidegate_host_dead_letters_total", "a", "flights", "reports"): 2,
        ("tidegate_host_outbox_events", "a"): 5,
        ("tidegate_host_relayed_events_total", "a"): 40,
        ("tidegate_host_outbox_failing", "a"): 1,
        ("tidegate_host_partition_state", "a", "0", "running"): 1,
        ("tidegate_host_partition_state", "a", "1", "paused"): 1,
        ("tidegate_host_partition_next_sequence_number", "a", "flights", "reports", "0"): 7,
        ("tidegate_host_partition_last_progress_seconds", "a", "0"): 1.5,
        ("tidegate_host_partition_failing", "a", "0"): 0,
        ("tidegate_host_partition_failing", "a", "1"): 1,
        ("tidegate_host_restarts_total",): 3,
    }
    assert len(families) == len(HOST_METRICS) + 1
