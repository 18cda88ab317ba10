"""Events that are not AMQP messages: any client may send them, and they stop no consumer."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import pytest
from tests.sql.support import CONSUMER, row_count
from tests.sql.transaction_support import effects, transactions_of, write_effect

from tidegate.amqp.errors import DecodeError
from tidegate.client import BlockingConsumer, EventHubConsumer
from tidegate.model.events import EventContents, EventData, ReceivedEvent, refuse_undecodable
from tidegate.model.position import EventPosition
from tidegate.processor import EventProcessorHost
from tidegate.processor.handlers import TransactionContext
from tidegate.processor.stores.memory import MemoryStore
from tidegate.server.app import TidegateServer
from tidegate.sql import Database, DeadLetters, Pipeline, Row, process_partition_batch
from tidegate.testing.hub import HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event, received_events

GARBAGE = b"\xff\xff"
NO_TEXT = b"\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01\xff\x00\x53\x75\xa0\x01x"
"""An event whose body is x, and whose property k is a string that is not UTF-8."""
WHY = "Byte 0 of a message is 0xff, where a section starts."
EVENTS = (encode_event(EventData(b"one"), "a"), GARBAGE, NO_TEXT, encode_event(EventData(b"four"), "a"))


def _received() -> list[ReceivedEvent]:
    count = len(EVENTS)
    return received_events("0", range(count), [str(number) for number in range(count)], [1] * count, EVENTS)


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A hub with such events between two others."""
    name = hub_service.create_hub(partition_count=1)
    sections = [wrap_event(event) for event in EVENTS]

    async def append(server: TidegateServer) -> None:
        partition = server.broker.event_hub(name).partition("0")
        await partition.append(b"".join(sections), array("I", map(len, sections)))

    hub_service.call(append)
    return name


Use = Callable[[ReceivedEvent], object]
USES: Sequence[tuple[Use, object, object]] = (
    (lambda event: event.body, GARBAGE, b"x"),
    (lambda event: dict(event.properties), {}, {}),
    (lambda event: event.partition_key, None, None),
    (lambda event: event.contents, EventContents(GARBAGE), EventContents(b"x")),
)


def test_no_use_of_one_raises() -> None:
    """In any order, and as often as wanted; the reason is beside it."""
    for uses in (USES, USES[::-1]):
        (_, garbage, no_text, last) = _received()
        for use, of_garbage, of_no_text in (*uses, *uses):
            assert (use(garbage), use(no_text)) == (of_garbage, of_no_text)
        assert (garbage.decode_error, garbage.encoded) == (WHY, GARBAGE)
        assert no_text.decode_error is not None
        assert (last.decode_error, last.body, last.partition_key) == (None, b"four", "a")
        with pytest.raises(DecodeError, match="Byte 0"):
            garbage.decode()


def test_all_uses_of_one_raise_for_a_handler_that_dead_letters() -> None:
    """Also where they did not before: bytes of any kind must not pass for a body."""
    for use, *_ in USES:
        (first, garbage, no_text, _) = events = _received()
        for event in events:
            use(event)
        refuse_undecodable(events)
        with pytest.raises(DecodeError, match="Byte 0"):
            use(garbage)
        assert no_text.body == b"x"
        assert (garbage.decode_error, first.body) == (WHY, b"one")


def _row(event: ReceivedEvent) -> Row:
    return {"sequence_number": event.sequence_number, "key": event.body.decode()}


def _write(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    for event in events:
        write_effect(context, event)


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("is_function", [False, True])
def test_handlers_of_transactions_dead_letter_them(
    is_function: bool, is_copied: bool, database: Database
) -> None:
    """With the decoder's reason; one that reads only what can be decoded processes it."""
    database.ensure_table(effects)
    pipeline = Pipeline("p", CONSUMER.event_hub, effects, _row, is_payload_copied=is_copied)
    events, until = _received(), len(EVENTS)
    for event in events:
        assert event.body  # as spans of tracing do, before a handler has it
    if is_function:
        transactions = transactions_of(database, _write)
        asyncio.run(transactions.process(events, start_sequence_number=0, until_sequence_number=until))
        transactions.close()
    else:
        process_partition_batch(
            database, pipeline, "0", events, start_sequence_number=0, until_sequence_number=until
        )
    found = {each.sequence_number: each for each in DeadLetters(database).list()}
    assert list(found) == ([1, 2] if is_function else [1])
    assert row_count(database, effects) == until - len(found)
    assert (found[1].error_type, found[1].reason) == ("DecodeError", WHY)
    assert "in decode_event" in found[1].traceback or "in event_body" in found[1].traceback
    assert (found[1].partition_key, found[1].payload) == (None, None)


async def test_a_host_gets_past_them(hub_service: HubService, hub: str) -> None:
    """A handler that reads bodies is called for each event once; before, the same batch came endlessly."""
    bodies: list[bytes] = []
    is_done = asyncio.Event()

    async def handle(context: object, events: Sequence[ReceivedEvent]) -> None:
        bodies.extend(event.body for event in events)
        if len(bodies) >= len(EVENTS):
            is_done.set()

    host = EventProcessorHost("h", hub, "$Default", hub_service.connection_string, MemoryStore())
    async with host.running(handle, is_sigterm_handled=False):
        await asyncio.wait_for(is_done.wait(), 60)
    assert bodies == [b"one", GARBAGE, b"x", b"four"]


async def test_receivers_get_past_them(hub_service: HubService, hub: str) -> None:
    """Also the blocking ones."""
    found: list[ReceivedEvent] = []
    async with EventHubConsumer.from_connection_string(hub_service.connection_string, hub) as consumer:
        receiver = await consumer.open_receiver("0", EventPosition.earliest())
        while len(found) < len(EVENTS):
            found += await receiver.receive(100, 30)

    def read() -> list[ReceivedEvent]:
        with BlockingConsumer(hub_service.connection_string, hub) as blocking:
            return list(blocking.read_events(hub, "0", range(len(EVENTS))))

    for events in (found, await asyncio.to_thread(read)):
        assert [event.body for event in events] == [b"one", GARBAGE, b"x", b"four"]
        assert [event.decode_error is None for event in events] == [True, False, False, True]


def test_the_example_gets_past_them(
    hub_service: HubService, hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each of its starts ended at the first of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_CONNECTION_STRING", hub_service.connection_string)
    example = import_module("examples.checkpoint_every_n")
    asyncio.run(example.consume(hub, "0", 1, "offset", len(EVENTS)))
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["sequence_number"] == len(EVENTS) - 1
