"""What the service knows of the consumer groups that official processors keep in it: owners, lag, whose."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.access.support import RawHttp, token_for
from tests.gateway.blob_client import BlobClient
from tests.support.blob_storage import OwnStorage

from tidegate.broker import (
    ROOT_POLICY_NAME,
    Actor,
    Broker,
    Claim,
    Door,
    EventHub,
    Peer,
    acting_as,
    current_actor,
)
from tidegate.broker.blobs.blob import NO_CONDITIONS
from tidegate.client import EventHubAdministrator
from tidegate.client.entities import ConsumerProperties
from tidegate.console.consumers import groups, progress
from tidegate.console.consumers.kept import kept_views
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.frame.rights import Rights
from tidegate.console.jobs.jobs import Jobs
from tidegate.gateway.administration import operations
from tidegate.gateway.administration.partition_lists import in_slices
from tidegate.gateway.counts import ConnectionCounts
from tidegate.gateway.metrics import METRICS, MetricsPage, Sources
from tidegate.model.connection_string import ConnectionString
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.admission import Admission
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import TaskOwner

LABELS = ("event_hub", "consumer_group", "partition")
NEW = {"x-ms-blob-type": "BlockBlob"}


@pytest.fixture
def service() -> Iterator[HubService]:
    """Two event hubs of two partitions; alpha has five events in partition 0, and the group reports."""
    with HubService(is_http_used=True) as service:

        async def prepare(server: TidegateServer) -> None:
            for name in ("alpha", "beta"):
                hub = await server.broker.create_event_hub(name, partition_count=2)
                await hub.create_consumer_group("reports")
                await server.broker.create_policy(name, "reader", [Claim.LISTEN])
            alpha = server.broker.event_hub("alpha")
            await alpha.partition("0").append_nowait(b"12345", [1, 1, 1, 1, 1])

        service.call(prepare)
        yield service


def _client(service: HubService, hub: str | None = None) -> BlobClient:
    storage = OwnStorage(service, event_hub=hub, policy=ROOT_POLICY_NAME if hub is None else "reader")
    client = BlobClient(f"{storage.host}:{storage.port}", storage.account_name, storage.account_key)
    client.ask("PUT", "/store", {"restype": "container"})
    return client


def _keep(
    client: BlobClient, hub: str, group: str, partition: str, *, host: str = "localhost:5672", **metadata: str
) -> None:
    """What official processors write: an ownership, or a checkpoint."""
    kind = "ownership" if "ownerid" in metadata else "checkpoint"
    headers = NEW | {f"x-ms-meta-{name}": value for name, value in metadata.items()}
    path = f"/store/{host}/{hub}/{group}/{kind}/{partition}"
    assert client.ask("PUT", path, {}, headers).status == 201


def _consumers(service: HubService, hub: str) -> list[ConsumerProperties]:
    key = service.ask(lambda server: server.broker.policy(hub, "reader")).key
    root = ConnectionString.parse(service.connection_string)

    async def ask() -> list[ConsumerProperties]:
        connection_string = replace(
            root, shared_access_key_name="reader", shared_access_key=key, entity_path=hub
        ).format()
        async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
            return await administrator.list_consumers(hub)

    return asyncio.run(ask())


def _metrics(service: HubService, name: str) -> dict[tuple[str, ...], float]:
    assert service.ready.http is not None
    with RawHttp(service.ready.http) as http:
        status, body = http.ask("GET", "/metrics", [("Host", "localhost")])
    assert status == 200
    return {
        tuple(sample.labels[name] for name in LABELS if name in sample.labels): sample.value
        for family in text_string_to_metric_families(body.decode())
        if family.name == f"tidegate_{name}"
        for sample in family.samples
    }


def test_owners_and_lag_of_each_partition(service: HubService) -> None:
    """Over AMQP with Listen on the hub, over HTTP, and in /metrics; without a restart."""
    client = _client(service, "alpha")
    assert _consumers(service, "alpha") == []
    _keep(client, "alpha", "$default", "0", ownerid="one")
    _keep(client, "alpha", "$default", "0", offset="2", sequencenumber="2")
    _keep(client, "alpha", "$default", "1", ownerid="")
    rows = _consumers(service, "alpha")
    assert [(each.partition_id, each.owner, each.sequence_number, each.lag_events) for each in rows] == [
        ("0", "one", 2, 2),
        ("1", "", None, 0),
    ]
    assert {(each.store, each.namespace, each.consumer_group) for each in rows} == {
        ("alpha.blob/store", "localhost:5672", "$default")
    }
    assert rows[0].lease_age_ms is not None
    assert _metrics(service, "consumer_lag_messages") == {
        ("alpha", "$default", "0"): 2,
        ("alpha", "$default", "1"): 0,
    }
    (labels,) = _metrics(service, "consumer_lease_renewed_timestamp_seconds")
    assert labels == ("alpha", "$default", "0")
    assert _metrics(service, "consumer_checkpoint_sequence_number") == {("alpha", "$default", "0"): 2}
    assert service.ready.http is not None
    key = service.ask(lambda server: server.broker.policy("alpha", "reader")).key
    with RawHttp(service.ready.http) as http:
        token = ("Authorization", token_for("sb://localhost/alpha", "reader", key))
        path = "/api/v1/event-hubs/alpha/consumers"
        status, body = http.ask("GET", path, [("Host", "localhost"), token])
    assert status == 200
    assert json.loads(body)[0]["lag_events"] == 2
    client.ask("DELETE", "/store/localhost:5672/alpha/$default/ownership/0")
    client.ask("DELETE", "/store/localhost:5672/alpha/$default/checkpoint/0")
    assert [each.partition_id for each in _consumers(service, "alpha")] == ["1"]


def test_a_hubs_account_counts_for_that_hub_alone(service: HubService) -> None:
    """Its tenant cannot show checkpoints of another hub; whoever has the namespace's key can."""
    _keep(_client(service, "alpha"), "beta", "reports", "0", ownerid="forged")
    assert _consumers(service, "beta") == []
    _keep(_client(service), "BETA", "reports", "0", ownerid="true", offset="5")
    assert [(each.owner, each.store) for each in _consumers(service, "beta")] == [("true", "blob/store")]
    assert _consumers(service, "alpha") == []


def test_only_groups_and_partitions_that_there_are_count(service: HubService) -> None:
    """Whoever may listen can write any number of blobs, and adds no lines to the list and the metrics."""
    client = _client(service, "alpha")
    for number in range(3):
        _keep(client, "alpha", f"made-up-{number}", "0", ownerid="one")
    _keep(client, "alpha", "Reports", "0", ownerid="one")
    _keep(client, "alpha", "reports", "7", offset="1", sequencenumber="1")
    assert [each.partition_id for each in _consumers(service, "alpha")] == ["0"]
    assert set(_metrics(service, "consumer_lag_messages")) == {("alpha", "reports", "0")}


def test_rows_are_few_and_short(service: HubService) -> None:
    """Whoever may listen can write other names of the service, and long owners: the list has one row for
    a partition, as it was written last."""
    client = _client(service, "alpha")
    for number in range(3):
        _keep(client, "alpha", "reports", "0", host=f"{number}" * 500, ownerid=f"{number}" * 2_000)
    (row,) = _consumers(service, "alpha")
    assert (row.namespace, row.owner) == ("2" * 260, "2" * 260)


def test_the_console_reads_a_group_at_a_time(service: HubService, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be hundreds, of which whoever may listen can write: others have their turns between them.
    So it is where they are compared with the logs."""
    turns, seen = 0, list[int]()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            seen.append(turns)
            return work(*given)

        return call

    monkeypatch.setattr(groups, "of_this_hub", noted(progress.of_this_hub))
    monkeypatch.setattr(groups, "unread_of", noted(progress.unread_of))

    async def read(server: TidegateServer) -> None:
        nonlocal turns
        hub, store = server.broker.event_hub("alpha"), server.broker.blobs
        await store.create_container(hub.description.hub_id, "store", {})
        for number in range(10):
            await hub.create_consumer_group(f"g{number}")
            await store.put(
                hub.description.hub_id, "store", f"host/alpha/g{number}/checkpoint/0", NO_CONDITIONS,
                lease_id=None, content=b"", metadata={"sequencenumber": "1"},
            )  # fmt: skip

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with TaskOwner("test") as tasks:
            tasks.start(count(), name="count")
            assert len(await kept_views(server.broker, None)) == 10
            assert turns >= 10
            clock = SystemClock()
            parts = cast(ConsoleParts, SimpleNamespace(broker=server.broker, clock=clock))
            consumers = groups.Consumers(parts, {}, cast(Jobs, None))
            rights = cast(Rights, SimpleNamespace(hub="alpha", since=clock.now_utc()))
            found = await consumers.groups(rights, at_most_s=None)
            assert found is not None
            assert len(found.groups) == 10
            await consumers.close()
        assert len(set(seen)) == len(seen) == 20

    service.call(read)


async def _requests(server: TidegateServer) -> int:
    """Requests over HTTP that are being answered."""
    return sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not in a minute")


def test_a_policy_has_one_list_at_a_time_while_its_client_is_there(
    service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests it sends; other policies do not wait for it, and work ends with its client."""
    begun, ended = list[str](), list[str]()

    def endless(broker: Broker, hub: EventHub) -> Iterator[None]:
        begun.append(current_actor().policy)
        try:
            while True:
                yield None
        finally:
            ended.append("")

    monkeypatch.setattr(operations, "consumer_rows", endless)
    assert service.ready.http is not None
    host, port = service.ready.http.rsplit(":", 1)
    clients: list[socket.socket] = []

    def ask(policy: str, key: str) -> None:
        token = token_for("sb://localhost/alpha", policy, key)
        clients.append(socket.create_connection((host, int(port))))
        head = f"GET /api/v1/event-hubs/alpha/consumers HTTP/1.1\r\nHost: h\r\nAuthorization: {token}\r\n\r\n"
        clients[-1].sendall(head.encode())

    reader = service.ask(lambda server: server.broker.policy("alpha", "reader")).key
    root = service.ask(lambda server: server.broker.policy(None, ROOT_POLICY_NAME)).key
    for _ in range(5):
        ask("reader", reader)
    _until(lambda: service.call(_requests) == 5)
    ask(ROOT_POLICY_NAME, root)
    _until(lambda: len(begun) == 2)
    assert begun == ["reader", ROOT_POLICY_NAME]
    for client in clients:
        client.close()
    _until(lambda: service.call(_requests) == 0)
    assert len(ended) == len(begun)


class _OneBusyAddress(SlicedWork):
    """Its work is not done before that of another address."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def collect(self, items: Iterator[Any], *, address: object = None) -> list[Any]:
        if address == site_at("192.0.2.1"):
            self.is_asked.set()
            await self.is_over.wait()
        return await super().collect(items, address=address)


@pytest.mark.parametrize("kind", ["list", "metrics"])
def test_a_busy_address_holds_up_no_other(service: HubService, kind: str) -> None:
    """200 connections that ask for /metrics kept Prometheus, elsewhere, waiting for ten seconds."""

    async def ask(server: TidegateServer) -> None:
        work = _OneBusyAddress()
        budget, admission = MemoryBudget(1 << 20), Admission()
        sources = Sources(
            server.broker, lambda: ConnectionCounts(0, 0), dict, budget.statistics, admission.statistics
        )
        page = MetricsPage(sources, SystemClock())

        async def made(address: str) -> None:
            with acting_as(Actor(Peer(Door.HTTP, address), "reader")):
                if kind == "list":
                    await in_slices(iter(["row"]), work)
                else:
                    await page.render("", work, address=site_at(address))

        async with asyncio.timeout(60), TaskOwner("test") as tasks:
            busy = tasks.start(made("192.0.2.1"), name="busy")
            await work.is_asked.wait()
            await made("192.0.2.2")
            work.is_over.set()
            await busy

    service.call(ask)


def test_partitions_without_a_number_are_steps_as_well(service: HubService) -> None:
    """If no checkpoint is of this log, no partition has a lag: others have their turns nevertheless."""
    client = _client(service, "alpha")
    for partition in "01":
        _keep(client, "alpha", "reports", partition, sequencenumber="99")

    async def read(server: TidegateServer) -> list[object]:
        (row,) = (each for each in METRICS if each.name == "consumer_lag_messages")
        nothing: Any = None
        return list(row.read(Sources(server.broker, nothing, nothing, nothing, nothing)))

    assert service.call(read) == [None, None]
    assert _metrics(service, "consumer_lag_messages") == {}


def test_a_hub_created_again_begins_without_groups(service: HubService) -> None:
    """Checkpoints in the namespace's account that are older than the hub are of another log."""
    _keep(_client(service), "alpha", "reports", "0", offset="4", sequencenumber="4")
    assert len(_consumers(service, "alpha")) == 1

    async def recreate(server: TidegateServer) -> None:
        await server.broker.delete_event_hub("alpha")
        # The clock has milliseconds, and so have blobs.
        await asyncio.sleep(0.002)
        await server.broker.create_event_hub("alpha", partition_count=1)
        await server.broker.create_policy("alpha", "reader", [Claim.LISTEN])

    service.call(recreate)
    assert _consumers(service, "alpha") == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"offset": "x", "sequencenumber": "--1"},
        {"offset": "", "sequencenumber": "9" * 30},
        {"sequencenumber": "99"},
        {},
    ],
)
@pytest.mark.slow
def test_odd_checkpoints_do_no_harm(service: HubService, metadata: dict[str, str]) -> None:
    """Whoever may write them gets a row that says less."""
    _keep(_client(service, "alpha"), "alpha", "reports", "0", **metadata)
    (row,) = _consumers(service, "alpha")
    assert row.lag_events == (None if row.sequence_number == 99 else 5)
