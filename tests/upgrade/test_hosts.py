"""Old and new hosts in one group at the same time, against a service that changes its version as well."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient
from tests.processor.faults.chaos import ChaosSettings, Fault
from tests.processor.faults.checker import check_journal
from tests.processor.faults.cluster import Cluster
from tests.processor.faults.host_process import CONTAINER, NAME_PREFIX, HostSettings, container_store
from tests.processor.faults.publisher import Publisher
from tests.processor.faults.runs import run_chaos
from tests.processor.faults.surroundings import wait_until
from tests.processor.faults.work import PARTITION_COUNT, partition_ids
from tests.support.blob_storage import OwnStorage
from tests.upgrade.versions import IS_WHOLE, TODAY, ServiceProcess, Version

pytestmark = pytest.mark.timeout(600)

_EVENTS = (48_000 if IS_WHOLE else 16_000) // PARTITION_COUNT * PARTITION_COUNT
_HOSTS = 4
_KILLS = 8
_LEASE_S = 4.0
_DRAIN_S = 120.0


def _environments(*versions: Version) -> tuple[dict[str, str], ...]:
    """Each version's, with its name before that of its hosts."""
    return tuple(each.environment | {NAME_PREFIX: f"{each.name}/"} for each in versions)


def _service(old: Version) -> ServiceProcess:
    """Of both versions in turn; one without accounts has no place for reports or a container, and refuses the
    control log with them."""
    return ServiceProcess([TODAY, old] if old.has_accounts else [TODAY])


@pytest.fixture(params=["sqlite", "postgresql"] if IS_WHOLE else ["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """What ``run_chaos`` takes: None for SQLite, else the server's URL."""
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("postgresql").create_database()
    return url


async def test_rows_are_exact_whichever_version_commits_them(
    old: Version, database_url: str | None, seed: int
) -> None:
    """Rows + dead letters = events, none twice, none missing, while hosts of both versions are killed, paused
    and stopped, starts are of either version, and the service is killed and comes back as the other one."""
    settings = ChaosSettings(
        _EVENTS, seed, hosts=_HOSTS, environments=_environments(old, TODAY), events_per_s=2_500.0
    )
    result = await run_chaos(settings, database_url, service=_service(old))
    assert result.findings == []
    assert result.totals.rows + result.totals.dead_letters == _EVENTS
    assert {owner.partition("/")[0] for owner in result.totals.owners} == {old.name, TODAY.name}
    assert result.report.faults[Fault.KILL] > 0
    assert result.report.faults[Fault.SERVICE_KILL] > 0


@pytest.mark.repeats
async def test_hosts_share_a_container(old: Version, tmp_path: Path, seed: int) -> None:
    """Leases and checkpoints as blobs: at least once, nothing left out, in order, under kills of hosts of
    both versions and of the service; and every checkpoint stands at the end."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        service = _service(old)
        stack.callback(service.close)
        event_hub = service.create_hub(partition_count=PARTITION_COUNT)
        service.start()
        address = OwnStorage(service).connection_string()
        with ContainerClient.from_connection_string(address, CONTAINER) as client:
            client.create_container()
        settings = HostSettings(
            name="",
            connection_string=service.connection_string,
            event_hub=event_hub,
            database_url="",
            folder=str(tmp_path),
            seed=seed,
            lease_duration_s=_LEASE_S,
            is_transactional=False,
            container=address,
        )
        cluster = stack.enter_context(Cluster(settings, _environments(old, TODAY)))
        publisher = Publisher(
            service.connection_string, event_hub, events=_EVENTS, events_per_s=_EVENTS / (_KILLS * 1.5)
        )

        def are_ready() -> bool:
            return all(map(cluster.is_ready, cluster.running))

        for number in range(_HOSTS):
            cluster.start(f"host-{number}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.run())
            for kill in range(_KILLS):
                await asyncio.sleep(rng.uniform(0.5, 2.5))
                assert cluster.reap() == {}, cluster.logs()
                name = rng.choice(cluster.running)
                cluster.kill(name)
                cluster.start(name)
                if kill == _KILLS // 2:
                    # A host that registers without a service ends, as it should.
                    await wait_until(are_ready, _DRAIN_S, cluster.logs)
                    service.kill()
                    await asyncio.to_thread(service.start)
        findings: list[str] = []

        def is_done() -> bool:
            findings[:] = check_journal(tmp_path / "journal", _EVENTS)
            return not findings

        await wait_until(is_done, _DRAIN_S, lambda: "\n".join((*findings, cluster.logs())), pause_s=0.5)
        await wait_until(are_ready, _DRAIN_S, cluster.logs)
        for name in cluster.running:
            cluster.send(name, signal.SIGTERM)
        codes: dict[str, int] = {}

        def is_ended() -> bool:
            codes.update(cluster.reap())
            return not cluster.running

        await wait_until(is_ended, _DRAIN_S, cluster.logs)
        assert set(codes.values()) == {0}, (codes, cluster.logs())
        store = container_store(address)
        (group,) = await store.groups_of(event_hub)  # both versions name the namespace alike
        checkpoints = await store.list_checkpoints(group)
        await store.close()
        last = _EVENTS // PARTITION_COUNT - 1
        assert {key: each.sequence_number for key, each in checkpoints.items()} == dict.fromkeys(
            partition_ids(), last
        )
