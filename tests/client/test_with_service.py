"""The client against the real service: every API, broken lines, and a service that is killed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from tests.client.fake_service import until

from tidegate.amqp.message import Message
from tidegate.client import (
    BlockingConsumer,
    EventHubAdministrator,
    EventHubConsumer,
    EventHubProducer,
    Namespace,
    PartitionEnds,
    PartitionReceiver,
    RetryPolicy,
    SharedKeyCredential,
    SharedSignatureCredential,
)
from tidegate.client.request_channel import RequestChannel
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import (
    AlreadyExistsError,
    ClockSkewError,
    EventTooLargeError,
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    PositionOutOfRangeError,
    QuotaExceededError,
    ReceiverStolenError,
    UnauthorizedError,
)
from tidegate.model.events import EventData
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.model.position import EventPosition
from tidegate.model.sas import make_sas_token
from tidegate.testing.hub import HubProcess, HubService
from tidegate.testing.proxy import CuttingProxy
from tidegate.transport.clock import SystemClock
from tidegate.wire.management import ManagementRequest, Operation

EARLIEST = EventPosition.earliest()
PATIENT = RetryPolicy(retries_max=200, delay_s=0.01, delay_s_max=0.1)


def _events(count: int, start: int = 0, size: int = 0) -> list[EventData]:
    return [EventData(b"%d" % number + b"." * size) for number in range(start, start + count)]


async def _read(receiver: PartitionReceiver, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += [event.body for event in await receiver.receive(count - len(bodies))]
    return bodies


def _through(proxy: CuttingProxy, connection_string: str) -> str:
    return replace(ConnectionString.parse(connection_string), host=proxy.host, port=proxy.port).format()


@pytest.fixture
def connection_string(hub_service: HubService, event_hub: str) -> str:
    return hub_service.hub_connection_string(event_hub)


@pytest.mark.parametrize("is_batched", [True, False])
async def test_what_is_sent_is_received(connection_string: str, is_batched: bool) -> None:
    """Single sends, batches and buffered events arrive in order, by both kinds of delivery."""
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        await producer.send(_events(10), partition_id="1")
        batch = await producer.create_batch(partition_id="1")
        assert all(batch.try_add(event) for event in _events(10, 10))
        await producer.send_batch(batch)
        await producer.enqueue_many(_events(1000, 20), partition_id="1")
        await producer.flush()
    consumer = EventHubConsumer.from_connection_string(connection_string, is_batch_delivery_wanted=is_batched)
    async with consumer:
        properties = await consumer.get_partition_properties("1")
        assert (properties.begin_sequence_number, properties.next_sequence_number) == (0, 1020)
        receiver = await consumer.open_receiver("1", EARLIEST)
        assert await _read(receiver, 1020) == [b"%d" % number for number in range(1020)]
        assert receiver.is_batched is is_batched


async def test_events_keep_all_they_carry(connection_string: str) -> None:
    """Properties of each type, content type, ids and the key survive the whole way."""
    sent = EventData(
        b"\x00body",
        {"text": "ü", "number": -7, "float": 0.5, "flag": True, "nothing": None, "bytes": b"\xff"},
        content_type="application/json",
        message_id="m1",
        correlation_id="c1",
    )
    async with (
        EventHubProducer.from_connection_string(connection_string) as producer,
        EventHubConsumer.from_connection_string(connection_string) as consumer,
    ):
        await producer.send([sent], partition_key="device-1")
        partition_id = str(partition_for_key("device-1", 2))
        receiver = await consumer.open_receiver(partition_id, EARLIEST)
        (event,) = await receiver.receive(max_wait_s=10.0)
    contents = event.contents
    assert (contents.body, contents.properties, contents.partition_key) == (
        sent.body,
        sent.properties,
        "device-1",
    )
    assert (contents.content_type, contents.message_id, contents.correlation_id) == (
        "application/json",
        "m1",
        "c1",
    )


async def test_hubs_are_managed_over_the_wire(hub_service: HubService) -> None:
    """Create, show, list, delete; and the errors of doing each wrongly."""
    administrator = EventHubAdministrator.from_connection_string(hub_service.connection_string)
    async with administrator:
        made = await administrator.create_event_hub("managed", partition_count=3, retention_hours=2)
        assert (made.name, made.partition_ids, made.retention_hours) == ("managed", ("0", "1", "2"), 2)
        assert await administrator.get_event_hub("managed") == made
        assert made in await administrator.list_event_hubs()
        with pytest.raises(AlreadyExistsError):
            await administrator.create_event_hub("managed", partition_count=3)
        with pytest.raises(InvalidArgumentError):
            await administrator.create_event_hub("a/b/c", partition_count=3)
        await administrator.delete_event_hub("managed")
        with pytest.raises(NotFoundError):
            await administrator.delete_event_hub("managed")


async def test_consumer_groups_are_managed_over_the_wire(hub_service: HubService, event_hub: str) -> None:
    """A group can be read in once it is made, and no more once it is deleted; the errors of each."""
    earliest = EventPosition.earliest()
    administrator = EventHubAdministrator.from_connection_string(hub_service.connection_string)
    consumer = EventHubConsumer.from_connection_string(
        hub_service.connection_string, event_hub, consumer_group="Reports"
    )
    async with administrator, consumer:
        with pytest.raises(NotFoundError, match="consumergroups"):
            await consumer.open_receiver("0", earliest)
        await administrator.create_consumer_group(event_hub, "reports")
        await (await consumer.open_receiver("0", earliest)).close()
        assert await administrator.list_consumer_groups(event_hub) == ["$Default", "reports"]
        with pytest.raises(AlreadyExistsError):
            await administrator.create_consumer_group(event_hub, "REPORTS")
        with pytest.raises(InvalidArgumentError):
            await administrator.create_consumer_group(event_hub, "a/b")
        with pytest.raises(InvalidArgumentError, match="cannot be deleted"):
            await administrator.delete_consumer_group(event_hub, "$Default")
        await administrator.delete_consumer_group(event_hub, "reports")
        with pytest.raises(NotFoundError):
            await consumer.open_receiver("0", earliest)
        for call in (administrator.list_consumer_groups, administrator.delete_event_hub):
            with pytest.raises(NotFoundError):
                await call("no-such-hub")


async def test_tls_with_the_services_own_authority(hub_service: HubService, event_hub: str) -> None:
    """ca_file makes the service's certificate trusted; without it the error is immediate and clear."""
    ready = hub_service.ready
    secure = ConnectionString.parse(ready.connection_string).with_entity_path(event_hub)
    assert not secure.use_development_emulator
    async with EventHubProducer.from_connection_string(secure, ca_file=ready.ca_file) as producer:
        await producer.send(_events(1), partition_id="0")
    async with EventHubConsumer.from_connection_string(secure) as consumer:
        with pytest.raises(UnauthorizedError, match="not trusted"):
            await consumer.get_event_hub_properties()


async def test_wrong_keys_and_names_are_clear_errors(connection_string: str, event_hub: str) -> None:
    """A wrong key, an unknown policy, hub, partition or group: one error each, of the right kind, at once."""
    good = ConnectionString.parse(connection_string)
    for bad in (replace(good, shared_access_key="wrong"), replace(good, shared_access_key_name="nobody")):
        producer = EventHubProducer.from_connection_string(bad)
        with pytest.raises(UnauthorizedError) as caught:
            await producer.send(_events(1))
        assert "wrong" not in str(caught.value)
        await producer.close()
    async with EventHubConsumer.from_connection_string(connection_string, "no-such-hub") as consumer:
        with pytest.raises(NotFoundError, match="no-such-hub"):
            await consumer.get_event_hub_properties()
    async with EventHubConsumer.from_connection_string(connection_string, event_hub) as consumer:
        with pytest.raises(NotFoundError):
            await consumer.open_receiver("99", EARLIEST)
    group = EventHubConsumer.from_connection_string(connection_string, consumer_group="nobody-made-it")
    async with group:
        with pytest.raises(NotFoundError):
            await group.open_receiver("0", EARLIEST)


async def test_a_ready_made_signature_lets_in(hub_service: HubService, event_hub: str) -> None:
    """A SharedAccessSignature for the hub is enough to send and to receive, until it ends."""
    full = ConnectionString.parse(hub_service.connection_string)
    assert full.shared_access_key_name is not None
    assert full.shared_access_key is not None
    for expiry, is_good in ((4_102_444_800, True), (1_000_000_000, False)):
        token = make_sas_token(
            audience=f"sb://{full.host}/{event_hub}",
            key_name=full.shared_access_key_name,
            key=full.shared_access_key,
            expiry=expiry,
        )
        namespace = Namespace.from_credential(
            full.host, SharedSignatureCredential(token), port=full.port, use_tls=False
        )
        async with EventHubProducer(namespace, event_hub) as producer:
            if is_good:
                await producer.send(_events(1), partition_id="0")
            else:
                with pytest.raises(UnauthorizedError):
                    await producer.send(_events(1), partition_id="0")


async def test_a_named_publisher(hub_service: HubService, event_hub: str) -> None:
    """With a token for one publisher alone its events arrive under its key, and another cannot be played."""
    full = ConnectionString.parse(hub_service.connection_string)
    assert full.shared_access_key_name is not None
    assert full.shared_access_key is not None
    token = make_sas_token(
        audience=f"sb://{full.host}/{event_hub}/publishers/device-1",
        key_name=full.shared_access_key_name,
        key=full.shared_access_key,
        expiry=4_102_444_800,
    )
    namespace = Namespace.from_credential(
        full.host, SharedSignatureCredential(token), port=full.port, use_tls=False
    )
    async with EventHubProducer(namespace, event_hub, publisher="device-1") as producer:
        await producer.send(_events(5))
        await producer.enqueue_many(_events(5, 5))
        await producer.flush()
        for arguments in ({"partition_key": "device-2"}, {"partition_id": "0"}):
            with pytest.raises(InvalidArgumentError, match="device-1"):
                await producer.send(_events(1), **arguments)
    async with EventHubProducer(namespace, event_hub, publisher="device-2") as other:
        with pytest.raises(UnauthorizedError):
            await other.send(_events(1))
    connection_string = hub_service.hub_connection_string(event_hub)
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        partition_ids = (await consumer.get_event_hub_properties()).partition_ids
        partition_id = str(partition_for_key("device-1", len(partition_ids)))
        receiver = await consumer.open_receiver(partition_id, EARLIEST)
        assert await _read(receiver, 10) == [b"%d" % number for number in range(10)]


def _namespace(service: HubService, *, token_lifetime_s: int) -> Namespace:
    full = ConnectionString.parse(service.connection_string)
    key_name, key = full.shared_access_key_name or "", full.shared_access_key or ""
    credential = SharedKeyCredential(key_name, key, token_lifetime_s=token_lifetime_s)
    return Namespace.from_credential(full.host, credential, port=full.port, use_tls=False)


@pytest.mark.slow
async def test_short_lived_tokens_are_renewed(hub_service: HubService, event_hub: str) -> None:
    """With tokens of two seconds, a receiver and a producer work on after the first ones ended."""
    namespace = _namespace(hub_service, token_lifetime_s=2)
    async with (
        EventHubProducer(namespace, event_hub) as producer,
        EventHubConsumer(namespace, event_hub) as consumer,
    ):
        receiver = await consumer.open_receiver("0", EARLIEST)
        started = asyncio.get_running_loop().time()
        count = 0
        while asyncio.get_running_loop().time() - started < 3.5:
            await producer.send(_events(1, count), partition_id="0")
            count += 1
            await asyncio.sleep(0.25)
        assert await _read(receiver, count) == [b"%d" % number for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("partition_count", [3, 1024])
async def test_all_partitions_of_a_hub_are_told_at_once(
    hub_service: HubService, partition_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one request, with any claim; what each of them says is what its own properties say."""
    hub = hub_service.create_hub(partition_count=partition_count)
    asked: list[Operation] = []
    to_message = ManagementRequest.to_message

    def noted(self: ManagementRequest) -> Message:
        asked.append(self.operation)
        return to_message(self)

    connection_string = hub_service.hub_connection_string(hub)
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        await producer.send(_events(3), partition_id="2")
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        single = [await consumer.get_partition_properties(str(each)) for each in range(3)]
        monkeypatch.setattr(ManagementRequest, "to_message", noted)
        found = await consumer.get_all_partition_properties()
    assert asked == [Operation.READ_EVENT_HUB, Operation.QUERY_PARTITIONS]
    assert [each.partition_id for each in found] == [str(each) for each in range(partition_count)]
    assert found[:3] == single
    assert found[2].next_sequence_number == 3


@pytest.mark.parametrize("is_telling", [True, False], ids=["an earlier version", "Azure"])
async def test_partitions_are_asked_for_one_by_one_where_they_must_be(
    hub_service: HubService, event_hub: str, monkeypatch: pytest.MonkeyPatch, *, is_telling: bool
) -> None:
    """A service that refuses the question, and one that is not asked it, for it does not tell a retention."""

    def refuse(*_: object) -> list[PartitionEnds]:
        assert is_telling
        raise InvalidArgumentError("$management has no QUERY for 'com.microsoft:partition'.")

    monkeypatch.setattr("tidegate.client.management.partitions_from_list", refuse)
    async with EventHubConsumer.from_connection_string(
        hub_service.hub_connection_string(event_hub)
    ) as consumer:
        hub = await consumer.get_event_hub_properties()
        hub = hub if is_telling else replace(hub, retention_hours=None)
        found = await consumer.get_all_partition_properties(hub)
        assert [each.partition_id for each in found] == list(hub.partition_ids)


@pytest.mark.slow
@pytest.mark.parametrize("are_links_ended", [True, False], ids=["links are ended", "batches are refused"])
async def test_tokens_that_run_out_before_they_are_replaced_end_nothing(
    hub_service: HubService, event_hub: str, monkeypatch: pytest.MonkeyPatch, *, are_links_ended: bool
) -> None:
    """As on a machine that has slept: their renewal comes too late, each time."""
    monkeypatch.setattr("tidegate.client.connector.refresh_delay_s", lambda expiry, now: 3600.0)
    if not are_links_ended:
        monkeypatch.setattr("tidegate.gateway.amqp.claims.ConnectionClaims._on_timer", lambda claims: None)
    namespace = _namespace(hub_service, token_lifetime_s=4)
    async with (
        EventHubProducer(namespace, event_hub) as producer,
        EventHubConsumer(namespace, event_hub) as consumer,
    ):
        receiver = await consumer.open_receiver("0", EARLIEST)
        started, count = asyncio.get_running_loop().time(), 0
        while asyncio.get_running_loop().time() - started < 5:
            await producer.send(_events(1, count), partition_id="0")
            assert await _read(receiver, 1) == [b"%d" % count]
            assert (await consumer.get_partition_properties("0")).next_sequence_number == count + 1
            count += 1
            await asyncio.sleep(0.02)


async def test_oversize_events_are_refused_here_and_there(connection_string: str) -> None:
    """The largest event fits, a larger one does not, and nothing of it is stored."""
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        with pytest.raises(EventTooLargeError):
            await producer.send([EventData(b"x" * EVENT_BYTES_MAX)], partition_id="0")
        await producer.send([EventData(b"x" * (EVENT_BYTES_MAX - 1000))], partition_id="0")
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        assert (await consumer.get_partition_properties("0")).next_sequence_number == 1
        receiver = await consumer.open_receiver("0", EARLIEST, prefetch_bytes=1000)
        assert [len(body) for body in await _read(receiver, 1)] == [EVENT_BYTES_MAX - 1000]


async def test_owner_levels_decide_who_reads(connection_string: str) -> None:
    """A higher level steals, a lower or none is refused, and the sixth shared reader is too many."""
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        first = await consumer.open_receiver("0", EARLIEST, owner_level=1)
        second = await consumer.open_receiver("0", EARLIEST, owner_level=2)
        with pytest.raises(ReceiverStolenError):
            await first.receive()
        with pytest.raises(ReceiverStolenError):
            await consumer.open_receiver("0", EARLIEST, owner_level=1)
        with pytest.raises(ReceiverStolenError):
            await consumer.open_receiver("0", EARLIEST)
        await second.close()
        for _ in range(5):
            await consumer.open_receiver("1", EARLIEST)
        with pytest.raises(QuotaExceededError, match="5"):
            await consumer.open_receiver("1", EARLIEST)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_lines_cut_at_random_lose_and_double_nothing(connection_string: str, seed: int) -> None:
    """Producer and consumer work through a proxy that cuts at random; all events come once, in order."""
    print(f"seed {seed}")
    ready = connection_string
    parsed = ConnectionString.parse(ready)
    numbers = random.Random(seed)
    count = 4000
    async with CuttingProxy(
        parsed.host, parsed.effective_port, seed=seed, cut_after_bytes=(20_000, 150_000)
    ) as proxy:
        through = _through(proxy, ready)
        producer = EventHubProducer.from_connection_string(
            through, retry=PATIENT, timeout_s=10.0, batch_bytes_max=9_000, linger_ms=1.0
        )
        consumer = EventHubConsumer.from_connection_string(through, retry=PATIENT, timeout_s=10.0)
        async with producer, consumer:
            receiver = await consumer.open_receiver("0", EARLIEST)

            async def send() -> None:
                sent = 0
                while sent < count:
                    more = min(numbers.randint(1, 300), count - sent)
                    await producer.enqueue_many(_events(more, sent, size=200), partition_id="0")
                    sent += more
                    await asyncio.sleep(0)
                await producer.flush()

            _, bodies = await asyncio.gather(send(), _read(receiver, count))
            assert [body.rstrip(b".") for body in bodies] == [b"%d" % number for number in range(count)]
            assert proxy.cut_count > 3
            proxy.stop_cutting()
            assert (await consumer.get_partition_properties("0")).next_sequence_number == count


@pytest.fixture
def hub_process() -> Iterator[tuple[HubProcess, str]]:
    """A service that can be killed, and a connection string for its hub of two partitions."""
    hub = HubProcess()
    name = hub.create_hub(partition_count=2)
    with hub:
        yield hub, hub.hub_connection_string(name)


@pytest.mark.slow
async def test_a_killed_service_stores_each_event_once(hub_process: tuple[HubProcess, str]) -> None:
    """SIGKILL in mid-stream and a restart, three times: every event is there once, in order."""
    hub, connection_string = hub_process
    producer = EventHubProducer.from_connection_string(
        connection_string, retry=PATIENT, timeout_s=10.0, batch_bytes_max=20_000, linger_ms=1.0
    )
    sent = 0
    async with producer:
        for _ in range(3):
            for _ in range(10):
                keys = [f"key-{number % 10}" for number in range(sent, sent + 400)]
                await producer.enqueue_many(_events(400, sent, size=100), partition_keys=keys)
                sent += 400
            await until(lambda: producer.buffered_bytes < 350_000)
            await asyncio.to_thread(hub.kill)
            await asyncio.to_thread(hub.start)
        await producer.flush()
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        for partition_id in ("0", "1"):
            expected = [
                b"%d" % number
                for number in range(sent)
                if str(partition_for_key(f"key-{number % 10}", 2)) == partition_id
            ]
            receiver = await consumer.open_receiver(partition_id, EARLIEST)
            bodies = await _read(receiver, len(expected))
            assert [body.rstrip(b".") for body in bodies] == expected
            properties = await consumer.get_partition_properties(partition_id)
            assert properties.next_sequence_number == len(expected)


@pytest.mark.slow
async def test_a_service_that_goes_quiet_is_given_up(connection_string: str) -> None:
    """A line that swallows everything is an OperationTimeoutError; a fresh one works again."""
    parsed = ConnectionString.parse(connection_string)
    async with CuttingProxy(parsed.host, parsed.effective_port) as proxy:
        producer = EventHubProducer.from_connection_string(
            _through(proxy, connection_string), retry=RetryPolicy(retries_max=0), timeout_s=2.0
        )
        await producer.send(_events(1), partition_id="0")
        proxy.hold()
        with pytest.raises(OperationTimeoutError):
            await producer.send(_events(1, 1), partition_id="0")
        proxy.hold(False)
        await producer.send(_events(1, 2), partition_id="0")
        await producer.close()


@pytest.mark.slow
async def test_a_stalled_line_holds_up_all_partitions_and_loses_nothing(connection_string: str) -> None:
    """Megabytes stuck on a line that moves nothing go out on the next one, each event once."""
    parsed = ConnectionString.parse(connection_string)
    async with CuttingProxy(parsed.host, parsed.effective_port) as proxy:
        producer = EventHubProducer.from_connection_string(
            _through(proxy, connection_string), retry=PATIENT, timeout_s=0.5, linger_ms=0.0
        )
        async with producer:
            await producer.start()
            proxy.hold()
            for partition_id in ("0", "1"):
                await producer.enqueue_many(_events(200, size=100_000), partition_id=partition_id)
            await until(lambda: proxy.connection_count > 1)
            proxy.hold(False)
            await producer.flush()
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        for partition_id in ("0", "1"):
            receiver = await consumer.open_receiver(partition_id, EARLIEST)
            bodies = [body.rstrip(b".") for body in await _read(receiver, 200)]
            assert bodies == [b"%d" % number for number in range(200)]
            assert (await consumer.get_partition_properties(partition_id)).next_sequence_number == 200


# --- blocking -------------------------------------------------------------------------------------------


@pytest.fixture
def filled(hub_service: HubService) -> str:
    """A connection string of a hub whose partition 0 holds the events 0..2999."""
    connection_string = hub_service.hub_connection_string(hub_service.create_hub(partition_count=2))

    async def fill() -> None:
        async with EventHubProducer.from_connection_string(connection_string) as producer:
            for start in range(0, 3000, 500):
                await producer.send(_events(500, start), partition_id="0")

    asyncio.run(fill())
    return connection_string


def test_exact_ranges_are_read_without_a_loop(filled: str) -> None:
    """Half-open ranges, in chunks, exactly; the receiver continues from one range to the next."""
    with BlockingConsumer(filled) as consumer:
        assert consumer.get_event_hub_properties().partition_ids == ("0", "1")
        assert [each.next_sequence_number for each in consumer.get_all_partition_properties()] == [3000, 0]
        for start, until_number in ((0, 700), (700, 1999), (1999, 2000), (100, 101), (5, 5), (2990, 3000)):
            numbers: list[int] = []
            for chunk in consumer.read_encoded("0", start, until_number):
                assert len(chunk) == len(chunk.messages) > 0
                numbers += chunk.sequence_numbers
            assert numbers == list(range(start, until_number))


def test_an_abandoned_range_does_not_disturb_the_next(filled: str) -> None:
    """A reader that stops half-way leaves nothing behind that a later range would trip over."""
    with BlockingConsumer(filled) as consumer:
        for _ in range(8):  # more than the five receivers that a group may have
            next(iter(consumer.read_encoded("0", 0, 3000)))
        (chunk,) = consumer.read_encoded("0", 3, 5)
        assert list(chunk.sequence_numbers) == [3, 4]


@pytest.mark.slow
def test_ranges_that_cannot_be_had_are_clear_errors(filled: str) -> None:
    """Not written yet: a time-out that says what is missing; beyond the end and backwards: at once."""
    with BlockingConsumer(filled) as consumer:
        chunks = consumer.read_encoded("0", 2999, 3001, timeout_s=1.0)
        assert list(next(chunks).sequence_numbers) == [2999]
        with pytest.raises(OperationTimeoutError, match="number 3000 of partition 0"):
            next(chunks)
        with pytest.raises(PositionOutOfRangeError, match="4000"):
            next(consumer.read_encoded("0", 4000, 4001))
        with pytest.raises(InvalidArgumentError):
            next(consumer.read_encoded("0", 5, 4))


def test_single_events_are_read_again(filled: str) -> None:
    """Redrive's way in: any numbers, in any order, each once, ascending."""
    event_hub = ConnectionString.parse(filled).entity_path
    assert event_hub is not None
    with BlockingConsumer(filled) as consumer:
        events = list(consumer.read_events(event_hub, "0", [2500, 7, 9, 7, 2501]))
    assert [(event.sequence_number, event.body) for event in events] == [
        (7, b"7"),
        (9, b"9"),
        (2500, b"2500"),
        (2501, b"2501"),
    ]


@pytest.mark.slow
def test_a_forked_child_reads_by_itself(filled: str) -> None:
    """Spark's worker daemon forks: the child gets its own loop and connection, the parent keeps its own."""
    script = textwrap.dedent("""
        import os, sys
        from tidegate.client import BlockingConsumer
        consumer = BlockingConsumer(sys.argv[1])
        def count():
            return sum(len(chunk) for chunk in consumer.read_encoded("0", 0, 3000))
        assert count() == 3000
        child = os.fork()
        if child == 0:
            os._exit(0 if count() == 3000 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert count() == 3000
        consumer.close()
    """)
    done = subprocess.run([sys.executable, "-c", script, filled], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


class _ShiftedClock(SystemClock):
    """The clock of a machine that is set wrong."""

    def __init__(self, hours: float) -> None:
        self.hours = hours

    def now_utc(self) -> datetime:
        return super().now_utc() + timedelta(hours=self.hours)


@pytest.mark.parametrize("hours", [-23.0, -2.0, 2.0])
async def test_a_client_with_a_wrong_clock_says_so_and_works(
    connection_string: str, hours: float, caplog: pytest.LogCaptureFixture
) -> None:
    """D20: its tokens were born expired, which looked like a wrong key."""
    parsed = ConnectionString.parse(connection_string)
    consumer = EventHubConsumer(
        Namespace.from_connection_string(connection_string),
        parsed.entity_path or "",
        clock=_ShiftedClock(hours),
    )
    async with consumer:
        await consumer.get_event_hub_properties()
        await consumer.open_receiver("0", EARLIEST)
    assert caplog.text.count("Correct this machine's clock") == (hours < 0)


async def test_a_clock_that_is_too_far_behind_is_told_from_a_wrong_key(connection_string: str) -> None:
    """An error of its own, with the remedy."""
    parsed = ConnectionString.parse(connection_string)
    namespace = Namespace.from_connection_string(connection_string)
    consumer = EventHubConsumer(namespace, parsed.entity_path or "", clock=_ShiftedClock(-72.0))
    async with consumer:
        with pytest.raises(ClockSkewError, match="clock"):
            await consumer.get_event_hub_properties()


async def test_a_producer_uses_added_partitions(
    hub_service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is told a new partition's id at once; keys after the next look at the hub, and then they go
    where the service would put them.
    """
    monkeypatch.setattr("tidegate.client.producer._PARTITIONS_READ_S", 0.2)
    hub = hub_service.create_hub(partition_count=2)
    connection_string = hub_service.hub_connection_string(hub)
    async with (
        EventHubAdministrator.from_connection_string(hub_service.connection_string) as administrator,
        EventHubProducer.from_connection_string(connection_string) as producer,
    ):
        await producer.send(_events(1), partition_id="1")
        grown = await administrator.update_event_hub(hub, partition_count=4)
        assert grown.partition_ids == ("0", "1", "2", "3")
        await producer.send(_events(1), partition_id="3")
        with pytest.raises(NotFoundError, match="no partition '4'"):
            await producer.send(_events(1), partition_id="4")
        await administrator.update_event_hub(hub, partition_count=5)
        while "5 partitions" not in repr(producer):
            await producer.send(_events(1), partition_id="0")
            await asyncio.sleep(0.05)
        keys = [f"device-{number}" for number in range(50)]
        await producer.enqueue_many(_events(50), partition_keys=keys)
        await producer.flush()
    counts = Counter(str(partition_for_key(key, 5)) for key in keys)
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        ends = {each.partition_id: each for each in await consumer.get_all_partition_properties()}
        assert [ends[each].next_sequence_number for each in "124"] == [
            counts["1"] + 1, counts["2"], counts["4"],
        ]  # fmt: skip


@pytest.mark.slow
async def test_requests_wait_for_credit_in_turns(
    connection_string: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 500 at once, as a host with many partitions has at its start, each looks for credit about once; all
    that waited looked each time that there was some."""
    sendable, looks = RequestChannel._sendable, []

    def counted(self: RequestChannel) -> int:
        looks.append(sendable(self))
        return looks[-1]

    monkeypatch.setattr(RequestChannel, "_sendable", counted)
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        await asyncio.gather(*(consumer.get_partition_properties("0") for _ in range(500)))
    assert 500 <= len(looks) < 1500


async def test_a_send_sets_one_timer(connection_string: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the answer: a socket that is writable is not waited for."""
    timeout, delays = asyncio.timeout, []

    def counted(delay_s: float | None) -> asyncio.Timeout:
        delays.append(delay_s)
        return timeout(delay_s)

    async with EventHubProducer.from_connection_string(connection_string) as producer:
        await producer.send(_events(1), partition_id="0")
        monkeypatch.setattr(asyncio, "timeout", counted)
        for _ in range(50):
            await producer.send(_events(1), partition_id="0")
    assert 50 <= len(delays) < 80
