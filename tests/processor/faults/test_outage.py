"""A database that is away for longer than the leases last: transactional hosts stop, and go on afterwards."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.needs import ci_has
from tests.processor.faults.cluster import Cluster
from tests.processor.faults.publisher import Publisher
from tests.processor.faults.runs import check_all_transactional
from tests.processor.faults.surroundings import Surroundings, surroundings, wait_until
from tests.processor.faults.work import consumer_of, partition_ids

from tidegate.sql import CheckpointReader
from tidegate.sql.core.writer_lock import WriterLock
from tidegate.transport.tasks import TaskOwner

LEASE_S = 4.0
"""A third of it is what the database has to answer: other programs of the run share the processors."""

OUTAGE_S = 3 * LEASE_S
WAIT_S = 180.0
"""A deadline, not a promise."""


def checkpoints(around: Surroundings) -> dict[str, int]:
    """Each partition's first event that is not processed."""
    found = CheckpointReader(around.database).read(consumer_of(around.event_hub))
    return {key: each.next_sequence_number or 0 for key, each in found.items()}


def has_moved_everywhere(around: Surroundings, before: dict[str, int]) -> bool:
    """Whether every partition is further than it was."""
    now = checkpoints(around)
    return all(now.get(partition_id, 0) > before.get(partition_id, 0) for partition_id in partition_ids())


def last_words(folder: Path) -> dict[str, str]:
    """The last thing that each partition's handlers wrote into the journal."""
    return {path.name: path.read_text().splitlines()[-1].split()[0] for path in folder.iterdir()}


@asynccontextmanager
async def working_hosts(around: Surroundings, seed: int) -> AsyncIterator[Cluster]:
    """Three hosts that have processed something of every partition; at the end everything is, once."""
    async with TaskOwner("outage") as tasks:
        with Cluster(around.host_settings(seed=seed, lease_duration_s=LEASE_S)) as cluster:
            publisher = Publisher(
                around.service.connection_string, around.event_hub, events=16_000_000, events_per_s=800.0
            )
            publishing = tasks.start(publisher.run(), name="publisher")
            for number in range(3):
                cluster.start(f"host-{number}")
            await wait_until(lambda: has_moved_everywhere(around, {}), WAIT_S, cluster.logs)
            yield cluster
            before = checkpoints(around)
            await wait_until(lambda: has_moved_everywhere(around, before), WAIT_S, cluster.logs)
            publisher.finish()
            await publishing
            await wait_until(
                lambda: sum(checkpoints(around).values()) == publisher.published, WAIT_S, cluster.logs
            )
            assert cluster.reap() == {}
        assert check_all_transactional(around, publisher.published) == []


async def pass_time(seconds: float) -> None:
    """The outage itself: nothing can be waited for but its end."""
    until = time.monotonic() + seconds
    await wait_until(lambda: time.monotonic() >= until, seconds + WAIT_S, lambda: "the machine stands still")


@ci_has("server_url", "postgresql", "mariadb")
async def test_hosts_close_their_partitions_while_the_database_refuses(server_url: str, seed: int) -> None:
    """Leases that cannot be renewed run out: every handler is closed, and opened again when it is over."""
    async with surroundings(server_url, seed=seed) as around, working_hosts(around, seed) as cluster:
        assert around.proxy is not None
        around.proxy.refuse()
        around.proxy.cut_now()
        began = time.monotonic()
        journal = cluster.folder / "journal"
        await wait_until(
            lambda: set(last_words(journal).values()) == {"close"},
            WAIT_S,
            lambda: f"{last_words(journal)}\n{cluster.logs()}",
        )
        await pass_time(began + OUTAGE_S - time.monotonic())
        around.proxy.refuse(False)


@ci_has("server_url", "mariadb", "postgresql")
async def test_hosts_go_on_after_the_database_hung(server_url: str, seed: int) -> None:
    """Nothing is refused and nothing answered for three leases: what hung is finished or done anew, once."""
    async with surroundings(server_url, seed=seed) as around, working_hosts(around, seed):
        assert around.proxy is not None
        around.proxy.hold()
        await pass_time(OUTAGE_S)
        around.proxy.hold(False)


async def test_hosts_go_on_after_somebody_held_the_sqlite_file(seed: int) -> None:
    """Another writer keeps the file for three leases, renewals included: afterwards all goes on."""
    async with surroundings(None, seed=seed) as around, working_hosts(around, seed):
        with WriterLock(around.folder / "chaos.db", wait_s=WAIT_S):
            await pass_time(OUTAGE_S)
