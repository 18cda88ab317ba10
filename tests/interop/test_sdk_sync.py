"""The unmodified official SDK, synchronous, over plain TCP, verified TLS and WebSocket."""

from __future__ import annotations

import time
from array import array
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    EventHubError,
    OwnershipLostError,
)
from tests.interop.support import Reader, SdkTarget, bodies, enqueued_time, read, target_of

from tidegate.model.events import EventData as ModelEvent
from tidegate.model.partition_key import partition_for_key
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event


@pytest.fixture(params=["plain", "tls", "websocket"])
def sdk(request: pytest.FixtureRequest, hub_service: HubService) -> SdkTarget:
    """The service by each transport."""
    return target_of(hub_service, request.param)


@pytest.fixture
def plain(hub_service: HubService) -> SdkTarget:
    """The service over plain TCP, for what does not depend on the transport."""
    return target_of(hub_service, "plain")


@pytest.fixture
def five_events(hub_service: HubService, event_hub: str) -> str:
    """A hub whose partition 0 holds the events e0..e4 (not sent by the SDK, which takes 1.3 s to connect)."""
    sections = [wrap_event(encode_event(event)) for event in (ModelEvent(b"e%d" % n) for n in range(5))]

    async def append(server: TidegateServer) -> None:
        partition = server.broker.event_hub(event_hub).partition("0")
        await partition.append(b"".join(sections), array("I", map(len, sections)))

    hub_service.call(append)
    return event_hub


def test_send_and_receive(sdk: SdkTarget, event_hub: str) -> None:
    """Single events, lists and batches arrive in order with their system properties, by either transport."""
    with sdk.producer(event_hub) as producer:
        producer.send_event(EventData(b"single"), partition_id="1")
        producer.send_batch([EventData("a"), EventData("b")], partition_id="1")
        batch = producer.create_batch(partition_id="1")
        for number in range(100):
            batch.add(EventData(f"batch {number}"))
        producer.send_batch(batch)
    events = read(sdk.consumer(event_hub), 103, "1")
    assert bodies(events) == ["single", "a", "b", *(f"batch {number}" for number in range(100))]
    assert [event.sequence_number for event in events] == list(range(103))
    offsets = [event.offset for event in events]
    assert all(isinstance(offset, str) for offset in offsets)
    assert len(set(offsets)) == len(offsets)
    enqueued = [enqueued_time(event) for event in events]
    assert enqueued == sorted(enqueued)
    assert abs(enqueued[0] - datetime.now(UTC)) < timedelta(minutes=1)  # noqa: TID251 - compared with real time


def test_partition_key_chooses_the_partition_and_is_kept(sdk: SdkTarget, event_hub: str) -> None:
    """Events of one key share the partition that Event Hubs' own hash names, and say their key."""
    keys = ["device-1", "device-2", "漢字", "AA-1"]
    with sdk.producer(event_hub) as producer:
        for key in keys:
            producer.send_batch([EventData(f"{key} {number}") for number in range(2)], partition_key=key)
            producer.send_event(EventData(f"{key} 2"), partition_key=key)
    for partition in range(2):
        expected = [key for key in keys if partition_for_key(key, 2) == partition]
        wanted = [f"{key} {number}" for key in expected for number in range(3)]
        if not wanted:
            continue
        events = read(sdk.consumer(event_hub), len(wanted), str(partition))
        assert bodies(events) == wanted
        assert [event.partition_key for event in events] == [
            key.encode() for key in expected for _ in range(3)
        ]


def test_events_without_key_are_spread(plain: SdkTarget, event_hub: str) -> None:
    """Batches without key or partition go round all partitions."""
    with plain.producer(event_hub) as producer:
        for number in range(4):
            producer.send_batch([EventData(f"e{number}")])
        counts = [
            producer.get_partition_properties(partition)["last_enqueued_sequence_number"] + 1
            for partition in producer.get_partition_ids()
        ]
    assert counts == [2, 2]


def test_buffered_producer(plain: SdkTarget, event_hub: str) -> None:
    """The SDK's buffered mode, with many sends in flight on its own threads, loses and reorders nothing."""
    failures: list[object] = []

    def on_error(events: object, partition_id: object, error: Exception) -> None:
        failures.append(error)

    producer = EventHubProducerClient.from_connection_string(
        plain.connection_string,
        eventhub_name=event_hub,
        buffered_mode=True,
        on_success=lambda events, partition_id: None,
        on_error=on_error,
        max_wait_time=0.1,
    )
    with producer:
        for number in range(500):
            producer.send_event(EventData(str(number)), partition_id="0")
        producer.flush()
    assert not failures
    assert bodies(read(plain.consumer(event_hub), 500)) == [str(number) for number in range(500)]


@pytest.mark.parametrize(
    ("position", "is_inclusive", "expected"),
    [
        ("-1", False, ["e0", "e1", "e2", "e3", "e4"]),
        (1, False, ["e2", "e3", "e4"]),
        (1, True, ["e1", "e2", "e3", "e4"]),
        (-1, False, ["e0", "e1", "e2", "e3", "e4"]),
    ],
)
def test_receive_from_sequence_number(
    plain: SdkTarget, five_events: str, position: str | int, is_inclusive: bool, expected: list[str]
) -> None:
    """Reading from a sequence number starts at it or after it, as asked."""
    events = read(
        plain.consumer(five_events),
        len(expected),
        starting_position=position,
        starting_position_inclusive=is_inclusive,
    )
    assert bodies(events) == expected


@pytest.mark.parametrize(("is_inclusive", "expected"), [(False, ["e3", "e4"]), (True, ["e2", "e3", "e4"])])
def test_receive_from_offset(
    plain: SdkTarget, five_events: str, is_inclusive: bool, expected: list[str]
) -> None:
    """An offset taken from an event resumes after it, or at it when inclusive."""
    offset = read(plain.consumer(five_events), 5)[2].offset
    assert offset is not None
    events = read(
        plain.consumer(five_events),
        len(expected),
        starting_position=offset,
        starting_position_inclusive=is_inclusive,
    )
    assert bodies(events) == expected


def test_receive_from_enqueued_time(plain: SdkTarget, five_events: str) -> None:
    """Reading from a time gives only what was enqueued after it; an earlier time gives everything."""
    first = enqueued_time(read(plain.consumer(five_events), 5)[0])
    while datetime.now(UTC) <= first + timedelta(milliseconds=5):  # noqa: TID251 - the log's clock is real
        time.sleep(0.001)
    with plain.producer(five_events) as producer:
        producer.send_event(EventData("late"), partition_id="0")
    consumer = plain.consumer(five_events)
    assert bodies(read(consumer, 1, starting_position=first + timedelta(milliseconds=2))) == ["late"]
    consumer = plain.consumer(five_events)
    inclusive = read(consumer, 6, starting_position=first, starting_position_inclusive=True)
    assert len(inclusive) == 6


def test_receive_from_latest(plain: SdkTarget, five_events: str) -> None:
    """A reader at the end sees nothing old and every event sent after it was attached."""
    with Reader(plain.consumer(five_events), starting_position="@latest") as reader:
        with plain.producer(five_events) as producer:
            number = 0
            while not reader.events and number < 3000:
                producer.send_event(EventData(f"new {number}"), partition_id="0")
                number += 1
        seen = bodies(reader.wait_events(1))
        first = int(seen[0].removeprefix("new "))
        assert bodies(reader.wait_events(number - first)) == [f"new {n}" for n in range(first, number)]


def test_position_beyond_the_end_is_refused(plain: SdkTarget, five_events: str) -> None:
    """A position that the log never had is an error that names it, not an endless wait."""
    with Reader(plain.consumer(five_events), starting_position=488) as reader:
        error = reader.wait_error()
    assert "The supplied sequence number '488' is invalid" in str(error)
    assert "'4'" in str(error)


def test_consumer_group_names_ignore_case(plain: SdkTarget, five_events: str) -> None:
    """``$default`` is ``$Default``."""
    assert len(read(plain.consumer(five_events, "$default"), 5)) == 5


def test_unknown_consumer_group_is_named(plain: SdkTarget, five_events: str) -> None:
    """A consumer group that does not exist is an error with its name."""
    with Reader(plain.consumer(five_events, "nobody")) as reader:
        assert "nobody" in str(reader.wait_error())


def test_higher_owner_level_steals(plain: SdkTarget, five_events: str) -> None:
    """A higher owner level takes the partition; the earlier owner is told so and stops."""
    with Reader(plain.consumer(five_events), owner_level=1) as first:
        first.wait_events(5)
        with Reader(plain.consumer(five_events), owner_level=2) as second:
            second.wait_events(5)
            error = first.wait_error()
    assert not second.errors
    assert isinstance(error, OwnershipLostError) or "higher epoch of '2'" in str(error)


def test_lower_owner_level_and_none_are_refused(plain: SdkTarget, five_events: str) -> None:
    """While an owner reads, nobody without or with a lower owner level gets in, and the owner reads on."""
    with Reader(plain.consumer(five_events), owner_level=3) as owner:
        owner.wait_events(5)
        with Reader(plain.consumer(five_events), owner_level=1) as lower:
            assert "higher epoch '3'" in str(lower.wait_error())
        with Reader(plain.consumer(five_events)) as without:
            assert "epoch of '3'" in str(without.wait_error())
        with plain.producer(five_events) as producer:
            producer.send_event(EventData("more"), partition_id="0")
        owner.wait_events(6)


def test_hub_and_partition_properties(sdk: SdkTarget, five_events: str) -> None:
    """Properties have the documented names and types, for a filled and for an empty partition."""
    with sdk.consumer(five_events) as consumer:
        hub = consumer.get_eventhub_properties()
        filled = consumer.get_partition_properties("0")
        empty = consumer.get_partition_properties("1")
    assert hub["eventhub_name"] == five_events
    assert hub["partition_ids"] == ["0", "1"]
    assert abs(hub["created_at"] - datetime.now(UTC)) < timedelta(hours=1)  # noqa: TID251 - real time
    assert (filled["beginning_sequence_number"], filled["last_enqueued_sequence_number"]) == (0, 4)
    assert isinstance(filled["last_enqueued_offset"], str)
    assert (filled["is_empty"], empty["is_empty"]) == (False, True)
    assert empty["last_enqueued_sequence_number"] == -1


def test_unknown_partition_is_refused(plain: SdkTarget, event_hub: str) -> None:
    """A partition that does not exist is an error that names it, or those that do."""
    with plain.producer(event_hub) as producer:
        with pytest.raises(EventHubError, match=r"partition is invalid .* between 0 and \d+\."):
            producer.get_partition_properties("7")
        with pytest.raises(EventHubError, match="Invalid partition 7"):  # which the SDK finds out by itself
            producer.send_event(EventData("x"), partition_id="7")


def test_wrong_key_is_an_authentication_error(sdk: SdkTarget, event_hub: str) -> None:
    """A wrong key is refused as such, for producers and for properties."""
    wrong = sdk.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with SdkTarget(wrong, sdk.arguments).producer(event_hub) as producer:
        with pytest.raises(AuthenticationError, match="InvalidSignature"):
            producer.send_event(EventData("x"))
        with pytest.raises(AuthenticationError):
            producer.get_eventhub_properties()


def test_unknown_hub_is_named(sdk: SdkTarget) -> None:
    """A hub that does not exist is an error that names it."""
    with (
        sdk.producer("no-such-hub") as producer,
        pytest.raises(ConnectError, match=r"no-such-hub.*not be found"),
    ):
        producer.send_event(EventData("x"))


def test_event_over_the_limit_is_refused_and_the_producer_goes_on(sdk: SdkTarget, event_hub: str) -> None:
    """An event over 1 MB is refused; the same producer then sends the largest one that fits."""
    with sdk.producer(event_hub) as producer:
        with pytest.raises(EventHubError):
            producer.send_event(EventData(b"x" * 1_100_000), partition_id="0")
        producer.send_event(EventData(b"y" * 1_040_000), partition_id="0")
    (event,) = read(sdk.consumer(event_hub), 1)
    assert len(event.body_as_str()) == 1_040_000


def test_properties_of_every_type_round_trip(plain: SdkTarget, event_hub: str) -> None:
    """What the SDK puts into an event comes out with the same types and values."""
    properties = {
        "text": "żółw",
        "number": 7,
        "negative": -(2**30),
        "ratio": 0.5,
        "yes": True,
        "none": None,
        "bytes": b"\x00\xff",
        "id": UUID("12345678-1234-5678-1234-567812345678"),
    }
    event = EventData(b"body")
    event.properties = properties  # type: ignore[assignment]  # the SDK's annotation is narrower than its code
    event.content_type = "application/json"
    event.correlation_id = "correlation"
    event.message_id = "message"
    with plain.producer(event_hub) as producer:
        producer.send_event(event, partition_id="0")
        producer.send_batch([event], partition_id="0")
    for received in read(plain.consumer(event_hub), 2):
        decoded = {
            (key.decode() if isinstance(key, bytes) else key): value
            for key, value in received.properties.items()
        }
        assert decoded == {**properties, "text": "żółw".encode()}
        assert (received.content_type, received.correlation_id, received.message_id) == (
            "application/json",
            "correlation",
            "message",
        )


@pytest.mark.parametrize(
    "content",
    [
        {"value_body": {"a": 1, "b": [True, None]}},
        {"value_body": None},
        {"sequence_body": [[1, "two"], [3.0]]},
        {"data_body": [b"one", b"two"]},
    ],
    ids=["value", "empty value", "sequence", "two data sections"],
)
def test_annotated_messages_round_trip(plain: SdkTarget, event_hub: str, content: dict[str, object]) -> None:
    """Bodies of every kind, the header, annotations and the footer are delivered as they were sent."""
    message = AmqpAnnotatedMessage(
        header={"durable": True, "priority": 7},
        properties={"subject": "s", "group_id": "g", "group_sequence": 3},
        application_properties={"k": "v"},
        annotations={"x-own": "a"},
        delivery_annotations={"d-own": "b"},
        footer={"f": "c"},
        **content,
    )
    with plain.producer(event_hub) as producer:
        producer.send_event(message, partition_id="0")
    (event,) = read(plain.consumer(event_hub), 1)
    received = event.raw_amqp_message
    assert received.body_type == message.body_type or content == {"value_body": None}
    assert received.header is not None
    assert received.header.priority == 7
    assert received.properties is not None
    assert received.properties.group_sequence == 3
    assert received.annotations is not None
    assert received.annotations[b"x-own"] == b"a"
    assert received.delivery_annotations == {b"d-own": b"b"}
    assert received.footer == {b"f": b"c"}
    if "data_body" in content:
        assert list(received.body) == [b"one", b"two"]
    if "sequence_body" in content:
        assert list(received.body) == [[1, b"two"], [3.0]]
    if content.get("value_body"):
        assert received.body == {b"a": 1, b"b": [True, None]}


def test_last_enqueued_event_properties(plain: SdkTarget, five_events: str) -> None:
    """With runtime metrics asked for, each delivery tells where the partition ends."""
    with Reader(plain.consumer(five_events), track_last_enqueued_event_properties=True) as reader:
        reader.wait_events(5)
        last = reader.context.last_enqueued_event_properties
    assert last["sequence_number"] == 4
    assert last["offset"] == reader.events[4].offset
    assert last["enqueued_time"] == reader.events[4].enqueued_time
    assert last["retrieval_time"] is not None


def test_large_backlog_is_delivered_in_order(plain: SdkTarget, event_hub: str) -> None:
    """Many times the SDK's credit arrives completely and in order."""
    with plain.producer(event_hub) as producer:
        for start in range(0, 5000, 500):
            batch = producer.create_batch(partition_id="0")
            for number in range(start, start + 500):
                batch.add(EventData(str(number)))
            producer.send_batch(batch)
    assert bodies(read(plain.consumer(event_hub), 5000)) == [str(number) for number in range(5000)]


def test_events_larger_than_a_frame_arrive_whole(plain: SdkTarget, event_hub: str) -> None:
    """Events of one frame, just over one frame and many frames, small ones between, arrive unaltered."""
    sizes = [10, 65_000, 70_000, 200_000, 1_000_000, 5]
    with plain.producer(event_hub) as producer:
        for size in sizes:
            producer.send_batch([EventData(bytes([size % 251]) * size)], partition_id="0")
    events = read(plain.consumer(event_hub), len(sizes))
    received = [event.body_as_str("latin-1").encode("latin-1") for event in events]
    assert received == [bytes([size % 251]) * size for size in sizes]


def test_idle_consumer_stays_connected(plain: SdkTarget, event_hub: str) -> None:
    """A consumer with an idle time-out of 10 s lives through 17 s of silence on the same connection.

    The SDK closes when it hears nothing; without empty frames from us it dies after 12 to 15 s.
    """
    with Reader(plain.consumer(event_hub, idle_timeout=10)) as reader:
        time.sleep(17)  # the silence is what is tested
        with plain.producer(event_hub) as producer:
            producer.send_event(EventData("after"), partition_id="0")
        assert bodies(reader.wait_events(1)) == ["after"]
