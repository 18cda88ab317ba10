"""The unmodified official JavaScript SDK, over TCP, TLS and WebSocket; also beside Python's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage
from tests.interop.node import JavaScript, JavaScriptError, JavaScriptSdk
from tests.interop.support import bodies, read, target_of, tls_connection_string
from tests.support.blob_storage import BlobStorage

from tidegate.model.partition_key import partition_for_key
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService


def sdk_of(javascript: JavaScript, service: HubService, transport: str) -> JavaScriptSdk:
    """The SDK by ``plain`` (UseDevelopmentEmulator), or by verified TLS ``tls`` or ``websocket``."""
    if transport == "plain":
        return JavaScriptSdk(javascript, service.connection_string)
    return JavaScriptSdk(
        javascript, tls_connection_string(service, transport), is_websocket=transport == "websocket"
    )


@pytest.fixture(params=["plain", "tls", "websocket"])
def sdk(request: pytest.FixtureRequest, javascript: JavaScript, hub_service: HubService) -> JavaScriptSdk:
    """The service by each transport."""
    return sdk_of(javascript, hub_service, request.param)


@pytest.fixture
def plain(javascript: JavaScript, hub_service: HubService) -> JavaScriptSdk:
    """The service over plain TCP, for what does not depend on the transport."""
    return sdk_of(javascript, hub_service, "plain")


@pytest.fixture
def five_events(plain: JavaScriptSdk, event_hub: str) -> str:
    """A hub whose partition 0 holds the events e0..e4, of five sends."""
    plain.send(event_hub, _events("e0", "e1", "e2", "e3", "e4"), "one by one", partitionId="0")
    return event_hub


def _events(*texts: str) -> list[dict[str, Any]]:
    return [{"body": text} for text in texts]


def _bodies(events: list[dict[str, Any]]) -> list[Any]:
    return [event["body"] for event in events]


def test_send_and_receive(sdk: JavaScriptSdk, event_hub: str) -> None:
    """One event, a list and a batch arrive in order with their system properties, by each transport."""
    sdk.send(event_hub, _events("single"), partitionId="1")
    sdk.send(event_hub, _events("a", "b"), partitionId="1")
    texts = [f"batch {number}" for number in range(100)]
    batch = sdk.send(event_hub, _events(*texts), "batch", partitionId="1")
    assert batch["added"] == [True] * 100
    assert batch["maxSizeInBytes"] == 1_048_576
    events = sdk.read(event_hub, 103, "1")
    assert _bodies(events) == ["single", "a", "b", *texts]
    assert [event["sequenceNumber"] for event in events] == list(range(103))
    assert all(isinstance(event["offset"], str) for event in events)
    enqueued_ms = [event["enqueuedTimeMs"] for event in events]
    assert enqueued_ms == sorted(enqueued_ms)
    assert abs(enqueued_ms[0] / 1000 - datetime.now(UTC).timestamp()) < 60  # noqa: TID251 - compared with real time


def test_partition_key_chooses_the_partition_and_is_kept(plain: JavaScriptSdk, event_hub: str) -> None:
    """Events of one key share the partition that Event Hubs' own hash names, and say their key."""
    keys = ["device-1", "device-2", "漢字", "AA-1"]
    for key in keys:
        plain.send(event_hub, _events(f"{key} 0", f"{key} 1"), partitionKey=key)
        plain.send(event_hub, _events(f"{key} 2"), "batch", partitionKey=key)
    for partition in range(2):
        expected = [key for key in keys if partition_for_key(key, 2) == partition]
        wanted = [f"{key} {number}" for key in expected for number in range(3)]
        events = plain.read(event_hub, len(wanted), str(partition))
        assert _bodies(events) == wanted
        assert [event["partitionKey"] for event in events] == [key for key in expected for _ in range(3)]


@pytest.mark.parametrize("is_idempotent", [False, True], ids=["at least once", "idempotent"])
def test_buffered_producer(plain: JavaScriptSdk, event_hub: str, is_idempotent: bool) -> None:
    """The SDK's buffered producer, with numbered batches too, loses and reorders nothing."""
    texts = [str(number) for number in range(500)]
    said = plain.send_buffered(event_hub, _events(*texts), is_idempotent=is_idempotent, partitionId="0")
    assert said == {"succeeded": 500, "errors": []}
    assert (
        _bodies(plain.read(event_hub, 500)) == [int(text) for text in texts]
        or _bodies(plain.read(event_hub, 500)) == texts
    )


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ({"offset": "-1"}, ["e0", "e1", "e2", "e3", "e4"]),
        ({"sequenceNumber": 1}, ["e2", "e3", "e4"]),
        ({"sequenceNumber": 1, "isInclusive": True}, ["e1", "e2", "e3", "e4"]),
    ],
    ids=["earliest", "after a sequence number", "from a sequence number"],
)
def test_receive_from_position(
    plain: JavaScriptSdk, five_events: str, position: Mapping[str, Any], expected: list[str]
) -> None:
    """A reader starts where it says, inclusive or not."""
    assert _bodies(plain.read(five_events, len(expected), position=position)) == expected


def test_receive_from_offset(plain: JavaScriptSdk, five_events: str) -> None:
    """An offset taken from an event resumes after it, or at it when inclusive."""
    offset = plain.read(five_events, 5)[2]["offset"]
    assert _bodies(plain.read(five_events, 2, position={"offset": offset})) == ["e3", "e4"]
    inclusive = plain.read(five_events, 3, position={"offset": offset, "isInclusive": True})
    assert _bodies(inclusive) == ["e2", "e3", "e4"]


def test_receive_from_enqueued_time(plain: JavaScriptSdk, five_events: str) -> None:
    """Reading from a time gives what was enqueued after it; an earlier time gives everything."""
    first_ms = plain.read(five_events, 5)[-1]["enqueuedTimeMs"]
    while datetime.now(UTC).timestamp() * 1000 <= first_ms + 5:  # noqa: TID251 - the log's clock is real
        time.sleep(0.001)
    plain.send(five_events, _events("late"), partitionId="0")
    assert _bodies(plain.read(five_events, 1, position={"enqueuedOn": first_ms + 2})) == ["late"]
    assert len(plain.read(five_events, 6, position={"enqueuedOn": first_ms - 60_000})) == 6


def test_receive_from_latest(plain: JavaScriptSdk, five_events: str) -> None:
    """A reader at the end sees nothing old and what is sent once it is attached."""
    with plain.subscribed(five_events, position={"offset": "@latest"}) as subscription:
        number = 0
        while not subscription.received():
            plain.send(five_events, _events(f"new {number}"), partitionId="0")
            number += 1
        seen = _bodies(subscription.wait_events(1))
        first = int(seen[0].removeprefix("new "))
        assert _bodies(subscription.wait_events(number - first)) == [f"new {n}" for n in range(first, number)]


def test_higher_owner_level_steals(plain: JavaScriptSdk, five_events: str) -> None:
    """A higher owner level takes the partition, and the earlier owner is told so by name of the error."""
    with plain.subscribed(five_events, options={"ownerLevel": 1}) as first:
        first.wait_events(5)
        with plain.subscribed(five_events, options={"ownerLevel": 2}) as second:
            second.wait_events(5)
            error = first.wait_error()
    assert error.code == "ReceiverDisconnectedError"
    assert "higher epoch of '2'" in str(error)


def test_lower_owner_level_is_refused(plain: JavaScriptSdk, five_events: str) -> None:
    """While an owner reads, a lower level and none are refused, and the owner reads on."""
    with plain.subscribed(five_events, options={"ownerLevel": 3}) as owner:
        owner.wait_events(5)
        with plain.subscribed(five_events, options={"ownerLevel": 1}) as lower:
            assert "higher epoch '3'" in str(lower.wait_error())
        with plain.subscribed(five_events) as without:
            assert "epoch of '3'" in str(without.wait_error())
        plain.send(five_events, _events("more"), partitionId="0")
        owner.wait_events(6)


def test_hub_and_partition_properties(sdk: JavaScriptSdk, event_hub: str) -> None:
    """Properties have the SDK's names and types, for a filled and for an empty partition."""
    sdk.send(event_hub, _events("e0", "e1"), partitionId="0")
    filled = sdk.properties(event_hub, "0")
    assert filled["hub"]["name"] == event_hub
    assert filled["hub"]["partitionIds"] == ["0", "1"]
    created = datetime.fromisoformat(filled["hub"]["createdOn"])
    assert abs(created - datetime.now(UTC)) < timedelta(hours=1)  # noqa: TID251 - compared with real time
    partition = filled["partition"]
    assert (partition["beginningSequenceNumber"], partition["lastEnqueuedSequenceNumber"]) == (0, 1)
    assert (partition["partitionId"], partition["isEmpty"]) == ("0", False)
    empty = sdk.properties(event_hub, "1")["partition"]
    assert (empty["isEmpty"], empty["lastEnqueuedSequenceNumber"]) == (True, -1)


def test_last_enqueued_event_properties(plain: JavaScriptSdk, five_events: str) -> None:
    """With runtime metrics asked for, each delivery tells where the partition ends."""
    options = {"trackLastEnqueuedEventProperties": True}
    with plain.subscribed(five_events, options=options) as subscription:
        last_event = subscription.wait_events(5)[4]
        last = subscription.last_enqueued
    assert last is not None
    assert last["sequenceNumber"] == 4
    assert last["offset"] == last_event["offset"]
    assert datetime.fromisoformat(last["enqueuedOn"]).timestamp() == last_event["enqueuedTimeMs"] / 1000
    assert last["retrievedOn"] is not None


def test_refusals_are_clear(plain: JavaScriptSdk, javascript: JavaScript, event_hub: str) -> None:
    """A wrong key, an unknown hub and an event over the limit give the SDK's own errors for them."""
    wrong = JavaScriptSdk(
        javascript, plain.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    )
    with pytest.raises(JavaScriptError, match="InvalidSignature") as refused:
        wrong.send(event_hub, _events("x"))
    assert refused.value.code == "UnauthorizedError"
    with pytest.raises(JavaScriptError, match="no-such-hub") as unknown:
        plain.send("no-such-hub", _events("x"))
    assert unknown.value.code == "MessagingEntityNotFoundError"
    with pytest.raises(JavaScriptError, match=r"size:\d+ bytes\) exceeds the limit") as too_large:
        plain.send(event_hub, [{"body": b"x" * 1_100_000}], partitionId="0")
    assert too_large.value.code == "MessageTooLargeError"


def test_sizes(sdk: JavaScriptSdk, event_hub: str) -> None:
    """Empty events and those of one frame, of many, and of nearly a megabyte arrive unaltered, both ways."""
    sizes = [0, 10, 65_000, 70_000, 1_000_000, 5]
    sdk.send(
        event_hub, [{"body": bytes([size % 251]) * size} for size in sizes], "one by one", partitionId="0"
    )
    options = {"skipParsingBodyAsJson": True}  # which would take a lone digit for a number
    received = _bodies(sdk.read(event_hub, len(sizes), options=options))
    assert received == [bytes([size % 251]) * size for size in sizes]


PROPERTIES: dict[str, Any] = {"text": "żółw", "number": 7, "ratio": 0.5, "yes": True}


def test_python_reads_what_javascript_sent(
    plain: JavaScriptSdk, hub_service: HubService, event_hub: str
) -> None:
    """Bodies, properties, content type, ids and keys come through from JavaScript to Python."""
    sent = {
        "body": {"a": [1, "two"]},
        "properties": PROPERTIES | {"bytes": b"\x00\xff"},
        "contentType": "application/json",
        "correlationId": "correlation",
        "messageId": "message",
    }
    plain.send(event_hub, [sent], "batch", partitionKey="a")
    (event,) = read(target_of(hub_service, "plain").consumer(event_hub), 1)
    assert json.loads(event.body_as_str()) == {"a": [1, "two"]}
    properties = {
        (key.decode() if isinstance(key, bytes) else key): value for key, value in event.properties.items()
    }
    assert properties == PROPERTIES | {"text": "żółw".encode(), "bytes": b"\x00\xff"}
    assert (event.content_type, event.correlation_id, event.message_id) == (
        "application/json",
        "correlation",
        "message",
    )
    assert event.partition_key == b"a"


def test_javascript_reads_what_python_sent(
    plain: JavaScriptSdk, hub_service: HubService, event_hub: str
) -> None:
    """Bodies, properties, content type, ids and keys come through from Python to JavaScript."""
    event = EventData(json.dumps({"a": [1, "two"]}))
    event.properties = dict(
        PROPERTIES.items()
    )  # without bytes, of which this SDK makes an object with a key for each
    event.content_type = "application/json"
    event.correlation_id = "correlation"
    event.message_id = "message"
    with target_of(hub_service, "plain").producer(event_hub) as producer:
        producer.send_event(event, partition_key="a")
        producer.send_batch([event, EventData(b"\x00\xff"), EventData(b"")], partition_key="a")
    first, second, binary, empty = plain.read(event_hub, 4)
    for received in (first, second):
        assert received["body"] == {"a": [1, "two"]}
        assert received["properties"] == PROPERTIES
        assert (received["contentType"], received["correlationId"], received["messageId"]) == (
            "application/json",
            "correlation",
            "message",
        )
        assert received["partitionKey"] == "a"
    assert (binary["body"], empty["body"]) == (b"\x00\xff", b"")


@pytest.mark.parametrize(
    ("content", "body_type", "expected"),
    [
        ({"value_body": {"a": 1, "b": [True, None]}}, "value", {"a": 1, "b": [True, None]}),
        ({"sequence_body": [[1, "two", 3.5]]}, "sequence", [1, "two", 3.5]),
        ({"data_body": b"\x00\xff"}, "data", b"\x00\xff"),
    ],
    ids=["value", "sequence", "data"],
)
def test_bodies_of_every_kind_cross(
    plain: JavaScriptSdk,
    hub_service: HubService,
    event_hub: str,
    content: dict[str, Any],
    body_type: str,
    expected: object,
) -> None:
    """A value, a sequence and binary data are read by the other language as what they were, both ways."""
    target = target_of(hub_service, "plain")
    with target.producer(event_hub) as producer:
        producer.send_event(AmqpAnnotatedMessage(**content), partition_id="0")
    (from_python,) = plain.read(event_hub, 1)
    assert (from_python["bodyType"], from_python["body"]) == (body_type, expected)
    plain.send(event_hub, [{"body": expected, "bodyType": body_type}], partitionId="1")
    (event,) = read(target.consumer(event_hub), 1, "1")
    received = event.raw_amqp_message
    assert received.body_type.value == body_type
    if body_type == "value":
        assert received.body == {b"a": 1, b"b": [True, None]}
    elif body_type == "sequence":
        assert list(received.body) == [[1, b"two", 3.5]]
    else:
        assert b"".join(received.body) == b"\x00\xff"


def test_large_backlog_is_delivered_in_order(
    plain: JavaScriptSdk, hub_service: HubService, event_hub: str
) -> None:
    """Many times the SDK's credit arrives completely and in order, from a Python producer."""
    with target_of(hub_service, "plain").producer(event_hub) as producer:
        for start in range(0, 5000, 500):
            producer.send_batch([EventData(str(start + n)) for n in range(500)], partition_id="0")
    assert _bodies(plain.read(event_hub, 5000)) == list(range(5000))
    assert bodies(read(target_of(hub_service, "plain").consumer(event_hub), 5000)) == [
        str(n) for n in range(5000)
    ]


def test_processor_with_checkpoints(plain: JavaScriptSdk, blob_storage: BlobStorage, event_hub: str) -> None:
    """The SDK's processor reads all partitions with its blob store, and a second one goes on behind it."""
    storage = {
        "connectionString": blob_storage.connection_string(),
        "container": blob_storage.create_container(),
    }
    for partition_id in ("0", "1"):
        plain.send(event_hub, _events("a", "b"), partitionId=partition_id)
    with plain.subscribed(event_hub, None, storage=storage, checkpoints=True) as first:
        seen = first.wait_events(4)
    assert sorted((event["partitionId"], event["body"]) for event in seen) == [
        (partition, body) for partition in ("0", "1") for body in ("a", "b")
    ]
    for partition_id in ("0", "1"):
        plain.send(event_hub, _events("c"), partitionId=partition_id)
    with plain.subscribed(event_hub, None, storage=storage, checkpoints=True) as second:
        later = second.wait_events(2)
    assert [event["body"] for event in later] == ["c", "c"]


def test_throttled_producer_backs_off(javascript: JavaScript) -> None:
    """Over the throughput units the SDK is told so, waits, and loses and doubles nothing."""
    with HubService() as service:
        hub = service.create_hub(partition_count=1)

        async def set_units(server: TidegateServer, units: int | None) -> None:
            await server.broker.set_throughput_units(units)

        async def refusals(server: TidegateServer) -> int:
            return server.broker.statistics().throttled_requests

        service.call(lambda server: set_units(server, 1))
        patient = JavaScriptSdk(javascript, service.connection_string, retries_max=60, retry_delay_s=0.2)
        patient.send(hub, [{"body": bytes([number]) * 600_000} for number in range(5)], "one by one")
        assert service.call(refusals) > 0
        service.call(lambda server: set_units(server, None))
        assert [body[0] for body in _bodies(patient.read(hub, 5))] == list(range(5))
