"""``send`` and ``receive`` carry whole events: records and back, files, filters, templates, rate, count."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from tests.cli.support import Result, run_tidegate

from tidegate.amqp import types as amqp
from tidegate.amqp.encode import encode_value
from tidegate.cli.events.records import event_record, parse_record
from tidegate.cli.shell.render import json_text
from tidegate.client import EventHubProducer
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData, PropertyValue, ReceivedEvent
from tidegate.testing.hub import HubService
from tidegate.wire.event_codec import EncodedProperty, decode_event, encode_event

PROPERTIES: dict[str, PropertyValue] = {
    "text": "21.5",
    "int": -3,
    "float": 2.0,
    "infinite": -math.inf,
    "yes": True,
    "none": None,
    "bytes": b"\x00\xff",
    "time": datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC),
    "uuid": UUID(int=7),
    "short": EncodedProperty(encode_value(amqp.Short(-3))),
}
EVENTS = [
    EventData(b'{"n": 1}', PROPERTIES, content_type="application/json", message_id="m", correlation_id="c"),
    EventData(b"\x00binary\xff\n"),
    EventData("zwei\nZeilen ü".encode(), {"device": "a1"}),
    EventData(b""),
]
LOGGED = ("partition", "sequence_number", "offset", "enqueued_time")


async def _publish(service: HubService, hub: str, partition_id: str) -> None:
    async with EventHubProducer.from_connection_string(service.hub_connection_string(hub)) as producer:
        await producer.send(EVENTS[:2], partition_key="a key")
        await producer.send(EVENTS[2:], partition_id=partition_id)


def publish(service: HubService, hub: str, partition_id: str = "0") -> None:
    """All kinds of events; those without a key to this partition."""
    asyncio.run(_publish(service, hub, partition_id))


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A hub with all kinds of events."""
    name = hub_service.create_hub(partition_count=1)
    publish(hub_service, name)
    return name


def _receive(hub: str, *options: str, environment: dict[str, str]) -> Result:
    found = run_tidegate("receive", hub, "--no-follow", *options, environment=environment)
    assert found.code == 0, found.err
    return found


def _records(hub: str, *options: str, environment: dict[str, str]) -> list[dict[str, object]]:
    lines = _receive(hub, "--nl", *options, environment=environment).out.splitlines()
    return [json.loads(line) for line in lines]


def test_what_is_received_can_be_sent(hub: str, hub_service: HubService, environment: dict[str, str]) -> None:
    """A true round trip: the copies differ from the originals in nothing but what the service assigns."""
    copy = hub_service.create_hub(partition_count=1)
    received = _receive(hub, "--nl", environment=environment)
    sent = run_tidegate("send", copy, "--nl", environment=environment, input_bytes=received.out.encode())
    assert sent.code == 0, sent.err
    copies = _records(copy, environment=environment)
    assert len(copies) == len(EVENTS)
    for original, again in zip(_records(hub, environment=environment), copies, strict=True):
        assert {k: v for k, v in again.items() if k not in LOGGED} == {
            k: v for k, v in original.items() if k not in LOGGED
        }
    for line, event, key in zip(
        received.out.splitlines(), EVENTS, ("a key", "a key", None, None), strict=True
    ):
        assert parse_record(line.encode()) == (event, key, "0")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (amqp.UByte(255), "ubyte"),
        (amqp.UShort(0), "ushort"),
        (amqp.UInt(2**32 - 1), "uint"),
        (amqp.ULong(2**64 - 1), "ulong"),
        (amqp.Byte(-128), "byte"),
        (amqp.Short(5), "short"),
        (amqp.Int(2**31 - 1), None),
        (amqp.Int(-3), None),
        (5, "long"),
        (2**31, None),
        (2.0, None),
        (math.inf, "double"),
        (amqp.Float(0.1), "float"),
        (amqp.Float(math.inf), "float"),
        (amqp.Char("ü"), "char"),
        (amqp.Symbol("s"), "symbol"),
        (amqp.Decimal(bytes(range(8))), "decimal"),
        (amqp.Timestamp(2**62), "timestamp"),
        (amqp.Timestamp(1), "timestamp"),
        ("5", None),
        (True, None),
        (None, None),
    ],
)
def test_a_property_keeps_its_amqp_type(value: object, kind: str | None) -> None:
    """Also one that Python and JSON have no type for; a type is written only where it is needed."""
    encoded = encode_value(value)
    message = encode_event(EventData(b"", {"a": EncodedProperty(encoded)}))
    record = event_record(ReceivedEvent("0", 0, "0", 0, encoded=message, decode=decode_event))
    assert record["property_types"] == (None if kind is None else {"a": kind})
    assert encode_event(parse_record(json_text(record).encode()).event) == message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", "Invalid JSON"),
        ("[]", "not a JSON object"),
        ('{"device": "a1"}', "neither body nor body_base64"),
        ('{"body": 3}', "body must be a string"),
        ('{"body_base64": "?"}', "not of its type"),
        ('{"properties": {"a": []}, "body": ""}', "must be a string, a number"),
        ('{"properties": [1], "body": ""}', "must be objects"),
        ('{"properties": {"a": "x"}, "property_types": {"a": "uuid"}, "body": ""}', "not of its type"),
        (
            '{"properties": {"a": 5}, "property_types": {"a": "uuid"}, "body": ""}',
            "5 is not of the type uuid",
        ),
        ('{"properties": {"a": "x"}, "property_types": {"a": "no"}, "body": ""}', "not of its type"),
        ('{"properties": {"a": 300}, "property_types": {"a": "ubyte"}, "body": ""}', "not of its type"),
        (
            '{"properties": {"a": 2.5}, "property_types": {"a": "short"}, "body": ""}',
            "2.5 is not of the type short",
        ),
    ],
)
def test_what_is_no_record(line: str, words: str) -> None:
    """Each mistake has its sentence."""
    with pytest.raises(InvalidArgumentError, match=words):
        parse_record(line.encode())


def test_a_line_that_is_no_record_is_named(hub: str, environment: dict[str, str]) -> None:
    """By its number; those before it are sent."""
    found = run_tidegate("send", hub, "--nl", environment=environment, input_bytes=b'{"body": "x"}\n\nno\n')
    assert (found.code, "Line 3: Invalid JSON" in found.err, "Sent 1 event " in found.err) == (2, True, True)


def test_files_are_sent_whole(hub_service: HubService, environment: dict[str, str], tmp_path: Path) -> None:
    """Each file is one event, byte by byte, with what the options say of it; also from a pipe."""
    name = hub_service.create_hub(partition_count=1)
    contents = [bytes(range(256)) * 500, b"", b"a\n\n"]
    files = [tmp_path / str(number) for number in range(3)]
    words = [word for file in files for word in ("--file", str(file))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    options = ("--content-type", "image/png", "--message-id", "7", "--property", "camera=3=x")
    sent = run_tidegate("send", name, "--whole", *words, *options, environment=environment)
    assert sent.code == 0, sent.err
    piped = run_tidegate("send", name, "--whole", environment=environment, input_bytes=contents[0])
    assert piped.code == 0, piped.err
    lines = _receive(name, "--nl", environment=environment).out.splitlines()
    events = [parse_record(line.encode())[0] for line in lines]
    assert [event.body for event in events] == [*contents, contents[0]]
    assert events[0] == EventData(contents[0], {"camera": "3=x"}, "image/png", "7")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--partition-key", "a key"), [0, 1]),
        (("--property", "device=a1"), [2]),
        (("--property", "int=-3", "--property", "yes=true", "--property", "none="), [0]),
        (("--property", "device=a1", "--partition-key", "a key"), []),
        (("--contains", "ü"), [2]),
        (("--contains", "n", "--count", "2"), [0, 1]),
    ],
)
def test_filters(options: tuple[str, ...], numbers: list[int], hub: str, environment: dict[str, str]) -> None:
    """By key, property and text, together; --count counts what is shown."""
    found = _records(hub, *options, environment=environment)
    assert [record["sequence_number"] for record in found] == numbers
    assert all(record in _records(hub, environment=environment) for record in found)  # with all types


def test_templates(hub: str, environment: dict[str, str]) -> None:
    """A line per event, of the fields that are named; a binary body is unchanged in a pipe."""
    template = r"{sequence_number}\t{partition_key} {{{properties.device}}} {message_id}"
    shown = _receive(hub, "--format", template, environment=environment)
    assert shown.out.splitlines() == ["0\ta key {} m", "1\ta key {} ", "2\t {a1} ", "3\t {} "]
    for wrong in ("{nothing}", "{body", "{body!r}", "{body:>9}"):
        found = run_tidegate("receive", hub, "--format", wrong, environment=environment)
        assert (found.code, "--format" in found.err) == (2, True)


def test_count_and_rate(hub_service: HubService, environment: dict[str, str]) -> None:
    """As many as asked for, of an input that has more, and not faster: the last of 4 waits for 3 of 10 ms."""
    name = hub_service.create_hub(partition_count=1)
    assert "Partition 0: the log has no events; reading" in _receive(name, "-v", environment=environment).err
    lines = b"x\n" * 1_000
    options = ("--count", "4", "--rate", "100", "-v")
    sent = run_tidegate("send", name, *options, environment=environment, input_bytes=lines)
    assert (sent.code, "Sent 4 events" in sent.err) == (0, True)
    assert f"Sending to {name} at " in sent.err
    shown = _receive(name, "-v", "--body", environment=environment)
    assert shown.out == "x\n" * 4
    assert "Partition 0: the log has events 0 to 3; reading from earliest" in shown.err


@pytest.mark.parametrize(
    "words",
    [
        ("send", "--nl", "--whole"),
        ("send", "--nl", "--partition", "0"),
        ("send", "--property", "novalue"),
        ("send", "--rate", "0"),
        ("receive", "--property", "=x"),
        ("receive", "--body", "--format", "{body}"),
        ("receive", "--nl", "--format", "{body}"),
    ],
)
def test_what_contradicts_itself(words: tuple[str, ...], environment: dict[str, str]) -> None:
    """Invalid usage, before anything is sent or read."""
    assert run_tidegate(words[0], "x", *words[1:], environment=environment).code == 2
