"""Hosts in processes of their own share a consumer group's partitions: evenly, stably, and after a death."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import pytest
from sqlalchemy import select
from tests.processor.faults.cluster import Cluster
from tests.processor.faults.publisher import Publisher
from tests.processor.faults.runs import check_all_transactional
from tests.processor.faults.surroundings import Surroundings, surroundings, wait_until
from tests.processor.faults.work import PARTITION_COUNT, committed_calls, consumer_of

from tidegate.processor.lease import Lease
from tidegate.sql import CheckpointReader, read_group_view
from tidegate.transport.tasks import TaskOwner

LEASE_S = 6.0
"""On a machine that other tests keep busy, hosts have come 3 s late with their renewals, for a minute."""
TAKEOVER_S = LEASE_S + 5.0
"""The promise on an idle machine: one lease duration, to notice, and five seconds to open everything anew."""
SHARED_S = 3 * LEASE_S
"""The promise on an idle machine: the time until all have their share."""
START_S = 60.0
"""For processes to come up on a busy machine, and to do what is promised: how long it took is printed."""


def leases(around: Surroundings) -> Mapping[str, Lease]:
    """The leases by partition."""
    return read_group_view(around.database, consumer_of(around.event_hub)).leases.leases


def owners(around: Surroundings) -> dict[str, tuple[str, int]]:
    """Who has which partition under which epoch; released ones are left out."""
    return {key: (lease.owner, lease.epoch) for key, lease in leases(around).items() if lease.owner}


def is_shared(around: Surroundings, expected: list[int]) -> bool:
    """Whether the hosts have so many partitions, ascending, and none has asked for another's."""
    found = leases(around).values()
    counts = Counter(lease.owner for lease in found if lease.owner)
    return sorted(counts.values()) == expected and not any(lease.requested_by for lease in found)


def epochs_read(around: Surroundings) -> dict[str, int]:
    """The highest epoch under which something of each partition was committed."""
    columns = committed_calls.c
    with around.database.read() as connection:
        rows = connection.execute(select(columns.partition_id, columns.epoch).order_by(columns.epoch))
        return {row.partition_id: row.epoch for row in rows}


def is_read_since(around: Surroundings, epochs: dict[str, int]) -> bool:
    """Whether each partition named was read under a higher epoch than the one given."""
    now = epochs_read(around)
    return all(now.get(partition_id, -1) > epoch for partition_id, epoch in epochs.items())


async def start_hosts(cluster: Cluster, names: list[str]) -> None:
    """Start hosts and wait until all have registered."""
    for name in names:
        cluster.start(name)
    await wait_until(lambda: all(map(cluster.is_ready, names)), START_S, cluster.logs)


async def wait_shared(around: Surroundings, expected: list[int]) -> None:
    """Until the partitions are shared evenly, and none asks for another's."""
    took_s = await wait_until(
        lambda: is_shared(around, expected), START_S, lambda: f"{owners(around)}, not {expected}"
    )
    print(f"{expected} after {took_s:.1f} s; promised: {SHARED_S:g}")


@pytest.mark.repeats
async def test_hosts_share_evenly_stay_so_and_replace_a_dead_one(seed: int) -> None:
    """3/3/3/3/4, no change for five leases; another host reads a killed one's partitions; even again.

    Events come all the time, and in the end each was processed once, by one owner at a time.
    """
    async with surroundings(None, seed=seed) as around, TaskOwner("convergence") as tasks:
        with Cluster(around.host_settings(seed=seed, lease_duration_s=LEASE_S)) as cluster:
            publisher = Publisher(
                around.service.connection_string, around.event_hub, events=16_000_000, events_per_s=800.0
            )
            publishing = tasks.start(publisher.run(), name="publisher")
            await start_hosts(cluster, [f"host-{number}" for number in range(5)])
            await wait_shared(around, [3, 3, 3, 3, 4])
            await stay_unchanged(around, cluster, 5 * LEASE_S)

            await wait_until(lambda: len(epochs_read(around)) == PARTITION_COUNT, START_S, cluster.logs)
            victim = f"host-{seed % 5}"
            lost = {key: epoch for key, (owner, epoch) in owners(around).items() if owner == victim}
            cluster.kill(victim)
            took_s = await wait_until(lambda: is_read_since(around, lost), START_S, cluster.logs)
            print(
                f"the partitions of {victim} were read again after {took_s:.1f} s; promised: {TAKEOVER_S:g}"
            )
            await wait_shared(around, [4, 4, 4, 4])

            await start_hosts(cluster, ["host-5", "host-6"])
            await wait_shared(around, [2, 2, 3, 3, 3, 3])

            publisher.finish()
            await publishing
            await wait_until(lambda: processed(around) == publisher.published, START_S, cluster.logs)
            assert cluster.reap() == {}
        assert check_all_transactional(around, publisher.published) == []


async def stay_unchanged(around: Surroundings, cluster: Cluster, seconds: float) -> None:
    """No lease changes hands: look again and again, for the whole time."""
    first = owners(around)
    began = time.monotonic()

    def is_over() -> bool:
        assert owners(around) == first, cluster.logs()
        return time.monotonic() - began >= seconds

    await wait_until(is_over, seconds + START_S, lambda: "the machine stands still")


def processed(around: Surroundings) -> int:
    """Events before the checkpoints."""
    checkpoints = CheckpointReader(around.database).read(consumer_of(around.event_hub))
    return sum(each.next_sequence_number or 0 for each in checkpoints.values())
