"""One event that is not a valid AMQP message, or has odd properties, hides no other from the command line."""

from __future__ import annotations

import json
from array import array
from base64 import b64decode
from pathlib import Path

import pytest
from tests.cli.support import run_tidegate

from tidegate.amqp import types as amqp
from tidegate.amqp.encode import encode_value
from tidegate.cli.events.filters import EventFilter
from tidegate.cli.events.records import event_record, parse_record
from tidegate.cli.shell.render import csv_text, json_text
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import EncodedProperty, decode_event, encode_event

GARBAGE = b"\xff"
NO_TEXT = b"\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01\xff\x00\x53\x75\xa0\x01x"
"""An event whose body is x, and whose property k is a string that is not UTF-8."""
NUMBERED = EncodedProperty(encode_value({1: "a"}))


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A hub with such events between two others."""
    name = hub_service.create_hub(partition_count=1)
    between = (GARBAGE, NO_TEXT, encode_event(EventData(b"map", {"k": NUMBERED})))
    around = (encode_event(EventData(body)) for body in (b"before", b"after"))
    before, after = around
    sections = [wrap_event(event) for event in (before, *between, after)]

    async def append(server: TidegateServer) -> None:
        partition = server.broker.event_hub(name).partition("0")
        await partition.append(b"".join(sections), array("I", map(len, sections)))

    hub_service.call(append)
    return name


def _show(*words: str, environment: dict[str, str]) -> tuple[list[str], str]:
    found = run_tidegate(*words, environment=environment)
    assert found.code == 0, found.err
    return found.out.splitlines(), found.err


def test_every_form_shows_them(hub: str, environment: dict[str, str]) -> None:
    """With the reason and their bytes, and then those behind them."""
    lines, _ = _show("receive", hub, "--no-follow", "--nl", environment=environment)
    assert lines == _show("export", hub, "-", environment=environment)[0]
    records = [json.loads(line) for line in lines]
    assert [each["sequence_number"] for each in records] == [0, 1, 2, 3, 4]
    bad = [each for each in records if each["decode_error"] is not None]
    assert [b64decode(each["body_base64"]) for each in bad] == [GARBAGE, NO_TEXT]
    assert bad[0]["decode_error"] == "Byte 0 of a message is 0xff, where a section starts."
    assert records[3]["properties"] == {"k": {"1": "a"}}
    table, _ = _show("receive", hub, "--no-follow", environment=environment)
    assert ["not a valid AMQP message" in line for line in table] == [False, True, True, False, False]
    bodies, remarks = _show("receive", hub, "--no-follow", "--body", environment=environment)
    assert bodies == ["before", "/w==", "x", "map", "after"]  # the second has a body
    assert remarks.splitlines() == [
        "Event 1 of partition 0 is not a valid AMQP message: "
        "Byte 0 of a message is 0xff, where a section starts."
    ]
    template = "{body} {properties.k} {decode_error}"
    shown, remarks = _show("receive", hub, "--no-follow", "--format", template, environment=environment)
    assert shown[0] == "before  "
    assert shown[1] == f"/w==  {bad[0]['decode_error']}"
    assert shown[3:] == ['map {"1":"a"} ', "after  "]
    assert len(remarks.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "numbers"),
    [(("--contains", "a"), [3, 4]), (("--property", 'k={"1":"a"}'), [3]), (("--partition-key", "a"), [])],
)
def test_filters_do_not_match_them(
    options: tuple[str, ...], numbers: list[int], hub: str, environment: dict[str, str]
) -> None:
    """And find the others, by values as they are shown."""
    lines, _ = _show("receive", hub, "--no-follow", "--nl", *options, environment=environment)
    assert [json.loads(line)["sequence_number"] for line in lines] == numbers


def test_import_refuses_their_lines(
    hub: str, hub_service: HubService, environment: dict[str, str], tmp_path: Path
) -> None:
    """By number and reason, rather than to send empty events in their place."""
    file, copy = tmp_path / "events.jsonl", hub_service.create_hub(partition_count=1)
    run_tidegate("export", hub, str(file), environment=environment)
    refused = run_tidegate("import", copy, str(file), environment=environment)
    assert refused.code == 2
    assert "Line 2: This event is not a valid AMQP message" in refused.err
    assert "leave it out with --skip 2." in refused.err


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({amqp.Symbol("a"): amqp.Float(0.5)}, {"a": 0.5}),
        ([{1: b"x"}, amqp.Timestamp(0)], [{"1": "eA=="}, "1970-01-01T00:00:00+00:00"]),
        (amqp.Array.of(amqp.Int, [1, 2]), [1, 2]),
        (amqp.Described(amqp.Symbol("a:b"), {1: 2}), {"descriptor": "a:b", "value": {"1": 2}}),
    ],
)
def test_properties_within_properties(value: object, shown: object) -> None:
    """As JSON, whatever the type of their keys and values; filters compare them as shown, and they are not
    sent as something else."""
    encoded = encode_event(EventData(b"", {"k": EncodedProperty(encode_value(value))}))
    event = ReceivedEvent("0", 0, "0", 0, encoded=encoded, decode=decode_event)
    line = json_text(event_record(event))
    assert json.loads(line)["properties"] == {"k": shown}
    assert EventFilter(properties={"k": csv_text(shown)}).accepts(event)
    with pytest.raises(InvalidArgumentError, match="A property must be"):
        parse_record(line.encode())
