"""Event Hubs' own idempotent producers: numbers filled in at attach, batches stored once, epochs.

The batches have the shapes that @azure/event-hubs 6.0.4 and Azure.Messaging.EventHubs (.NET) send.
"""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from pathlib import Path

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.events import ConnectionFailed, LinkDetached
from tidegate.amqp.limits import value_bytes
from tidegate.amqp.link import SenderLink
from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.performatives import Accepted, Error, Rejected
from tidegate.amqp.types import Int, Short, Symbol
from tidegate.broker import Broker
from tidegate.gateway.amqp import connection_handler
from tidegate.model.errors import BrokenError
from tidegate.server.opening import open_broker
from tidegate.transport.tasks import CANCELLED_AT_ONCE
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, batch_envelope, iter_events, wrap_event
from tidegate.wire.names import (
    IDEMPOTENT_PRODUCER_CAPABILITY,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQUENCE_NUMBER,
)

Numbers = tuple[int, int, int]
"""Producer id, epoch, and a sequence number."""

ADDRESS = "hub/Partitions/0"


def _attach(
    pair: Pair,
    name: str = "producer",
    *,
    producer_id: int | None = None,
    epoch: int | None = None,
    last: int | None = None,
    address: str = ADDRESS,
) -> SenderLink:
    properties: dict[str, object] = {
        PRODUCER_ID: producer_id,
        PRODUCER_EPOCH: None if epoch is None else Short(epoch),
        PRODUCER_SEQUENCE_NUMBER: None if last is None else Int(last),
    }
    return pair.session.attach_sender(
        name,
        target=address,
        properties=properties,
        desired_capabilities=(Symbol("com.microsoft:georeplication"), IDEMPOTENT_PRODUCER_CAPABILITY),
    )


async def _open(pair: Pair, name: str = "producer", **said: int | None) -> tuple[SenderLink, Numbers]:
    """An attached link, and the numbers that the service returned."""
    link = _attach(pair, name, **said)  # type: ignore[arg-type]
    await pair.wait_for(lambda: link.is_open)
    assert link.remote_attach.offered_capabilities == (IDEMPOTENT_PRODUCER_CAPABILITY,)
    told = link.remote_attach.properties
    numbers = (told[PRODUCER_ID], told[PRODUCER_EPOCH], told[PRODUCER_SEQUENCE_NUMBER])
    assert all(isinstance(number, int) for number in numbers)
    return link, numbers  # type: ignore[return-value]


async def _refusal(pair: Pair, name: str, **said: int | None) -> Error:
    link = _attach(pair, name, **said)  # type: ignore[arg-type]
    await pair.wait_for(lambda: any(getattr(event, "link", None) is link for event in pair.events))
    error = pair.error_of(link)
    assert error is not None
    return error


def _event(text: str, numbers: Numbers) -> bytes:
    annotations: dict[object, object] = {
        PRODUCER_EPOCH: Short(numbers[1]),
        PRODUCER_ID: numbers[0],
        PRODUCER_SEQUENCE_NUMBER: Int(numbers[2]),
    }
    return encode_message(Message(message_annotations=annotations, data=(text.encode(),)))


def _batch(texts: str, numbers: Numbers, *, is_envelope_numbered: bool = False) -> bytes:
    """One event per letter, numbered from ``numbers`` on."""
    envelope = batch_envelope()
    if is_envelope_numbered:
        envelope = batch_envelope(
            producer_id=numbers[0], producer_epoch=numbers[1], producer_sequence_number=numbers[2]
        )
    producer_id, epoch, first = numbers
    return envelope + b"".join(
        wrap_event(_event(text, (producer_id, epoch, first + index))) for index, text in enumerate(texts)
    )


async def _send(
    pair: Pair, link: SenderLink, payload: bytes, message_format: int = BATCH_MESSAGE_FORMAT
) -> str:
    """The condition of the refusal; empty where the batch was accepted."""
    seen = len(pair.settled(link))
    link.send(payload, message_format=message_format)
    await pair.wait_for(lambda: len(pair.settled(link)) > seen)
    state = pair.settled(link)[-1].state
    if isinstance(state, Accepted):
        return ""
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


async def _stored(broker: Broker) -> str:
    partition = broker.event_hub("hub").partition("0")
    texts = ""
    position = partition.begin_sequence_number
    while batches := await partition.read(position, bytes_max=1 << 20):
        for batch in batches:
            texts += "".join(
                bytes(event)[-1:].decode() for event in iter_events(batch.payload, batch.lengths)
            )
            position = batch.until_sequence_number
    return texts


async def test_numbers_are_filled_in_and_returned(pair: Pair) -> None:
    """A producer that names nothing gets an id, epoch 0 and -1; what one names it gets back."""
    _, (producer_id, epoch, last) = await _open(pair)
    assert (epoch, last) == (0, -1)
    assert 0 <= producer_id < 1 << 53
    _, told = await _open(pair, "named", producer_id=197, epoch=3, last=42)
    assert told == (197, 3, 42)
    _, partly = await _open(pair, "partly", epoch=999)
    assert partly[1:] == (999, -1)


async def test_an_attach_ends_with_its_link(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it waits for the log already or not. Protects producers that attach later, which waited for all
    that had come and gone."""
    states = {"begun": 0, "cancelled": 0}

    async def wait(_: int) -> None:
        states["begun"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            states["cancelled"] += 1

    monkeypatch.setattr(broker.event_hub("hub").partition("0")._log, "producer_state", wait)
    before = pair.held_bytes
    link = _attach(pair, "one")
    pair.exchange()
    await asyncio.sleep(0)
    assert states == {"begun": 1, "cancelled": 0}
    link.detach()
    _attach(pair, "two").detach()
    pair.exchange()
    for _ in range(5):
        await asyncio.sleep(0)
    assert states == {"begun": 1, "cancelled": 1}
    assert all(task.cancelled() for task in pair.owner.tasks)
    assert pair.held_bytes - before < 16 * 1024
    gc.collect()  # says of a coroutine that it was never awaited


async def test_attaches_end_with_their_connection_some_at_a_time(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects memory and other producers from attaches of clients that have gone, and the event loop, which
    thousands would hold up that end in one pass."""
    ended: list[int] = []

    async def wait(producer_id: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(producer_id)

    monkeypatch.setattr(broker.event_hub("hub").partition("0")._log, "producer_state", wait)
    for number in range(4 * CANCELLED_AT_ONCE):
        _attach(pair, f"p{number}", producer_id=number)
    pair.exchange()
    await asyncio.sleep(0)
    pair.handler.on_event(ConnectionFailed(BrokenError("It is gone.")))
    running = [len(pair.owner.tasks)]
    for _ in range(8):
        await asyncio.sleep(0)
        running.append(sum(not task.done() for task in pair.owner.tasks))
    assert running[-1] == 0
    assert max(more - fewer for more, fewer in pairwise(running)) == CANCELLED_AT_ONCE
    assert len(ended) == 16
    assert pair.held_bytes == 0


async def test_an_address_that_attaches_often_leaves_room_for_others(
    pair: Pair, broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects other clients of a hub, who waited behind thousands of attaches of one address."""
    asked: list[int] = []

    async def wait(producer_id: int) -> None:
        asked.append(producer_id)
        await asyncio.Event().wait()

    monkeypatch.setattr(broker.event_hub("hub").partition("0")._log, "producer_state", wait)
    elsewhere = Pair(broker, clock)
    monkeypatch.setattr(Pair, "peer_name", property(lambda self: f"192.0.2.{1 + (self is elsewhere)}:4711"))
    assert elsewhere.put_token(broker, f"sb://{HOST}/").status_code == 202
    for number in range(100):
        _attach(pair, f"p{number}", producer_id=number)
    pair.exchange()
    _attach(elsewhere, producer_id=1000)
    elsewhere.exchange()
    await asyncio.sleep(0)
    assert asked == [*range(16), 1000]
    for task in pair.owner.tasks + elsewhere.owner.tasks:
        task.cancel()
    elsewhere.handler.claims.close()


async def test_batches_in_every_shape_are_stored_once(pair: Pair, broker: Broker) -> None:
    """A batch sent again is acknowledged and not stored again, whichever way its client numbers envelopes."""
    link, (producer_id, epoch, _) = await _open(pair)
    for _ in range(2):
        assert await _send(pair, link, _batch("ab", (producer_id, epoch, 0))) == ""
        numbered = _batch("cd", (producer_id, epoch, 2), is_envelope_numbered=True)
        assert await _send(pair, link, numbered) == ""
        assert await _send(pair, link, _event("e", (producer_id, epoch, 4)), 0) == ""
    assert await _stored(broker) == "abcde"


async def test_a_lost_acknowledgement_survives_a_restart(
    pair: Pair, broker: Broker, tmp_path: Path, clock: SetClock
) -> None:
    """After a restart a producer that missed an answer says what it knows, sends again, and goes on."""
    link, (producer_id, epoch, _) = await _open(pair)
    assert await _send(pair, link, _batch("ab", (producer_id, epoch, 0))) == ""
    assert await _send(pair, link, _batch("cd", (producer_id, epoch, 2))) == ""  # the answer that is lost
    await broker.close()
    restarted = await open_broker(tmp_path, clock=clock)
    again = Pair(restarted, clock)
    assert again.put_token(restarted, f"sb://{HOST}/").status_code == 202
    link, told = await _open(again, producer_id=producer_id, epoch=epoch, last=1)
    assert told == (producer_id, epoch, 1)
    assert await _send(again, link, _batch("cd", (producer_id, epoch, 2))) == ""
    assert await _send(again, link, _batch("ef", (producer_id, epoch, 4))) == ""
    assert await _stored(restarted) == "abcdef"
    _, told = await _open(again, "asks", producer_id=producer_id)
    assert told == (producer_id, epoch, 5)
    await restarted.close()


async def test_a_gap_and_a_wrong_start_are_refused(pair: Pair, broker: Broker) -> None:
    """Numbers that do not go on are out of order; the link stays usable."""
    link, (producer_id, epoch, _) = await _open(pair)
    assert await _send(pair, link, _batch("ab", (producer_id, epoch, 0))) == ""
    out_of_order = "com.microsoft:out-of-order-sequence"
    assert await _send(pair, link, _batch("x", (producer_id, epoch, 3))) == out_of_order
    assert await _send(pair, link, _batch("xx", (producer_id, epoch, 1))) == out_of_order
    assert await _send(pair, link, _batch("c", (producer_id, epoch, 2))) == ""
    behind, _ = await _open(pair, "behind", producer_id=producer_id, epoch=epoch, last=-1)
    assert await _send(pair, behind, _batch("xxx", (producer_id, epoch, 0))) == out_of_order
    assert await _stored(broker) == "abc"


async def test_a_count_that_is_brought_along_goes_on(pair: Pair, broker: Broker) -> None:
    """A producer that the service does not know (any more) goes on where it says that it stands."""
    link, _ = await _open(pair, producer_id=5, epoch=1, last=42)
    assert await _send(pair, link, _batch("ab", (5, 1, 43))) == ""
    assert await _send(pair, link, _batch("c", (5, 1, 45))) == ""
    assert await _stored(broker) == "abc"


async def test_a_newer_instance_shuts_out_the_older(pair: Pair, broker: Broker) -> None:
    """The older is detached as soon as the newer attaches, and cannot attach or send again."""
    old, _ = await _open(pair, "old", producer_id=7, epoch=1)
    assert await _send(pair, old, _batch("a", (7, 1, 0))) == ""
    new, told = await _open(pair, "new", producer_id=7, epoch=2)
    assert told == (7, 2, 0)
    error = pair.error_of(old)
    assert error is not None
    assert error.condition == "com.microsoft:producer-epoch-stolen"
    refused = await _refusal(pair, "again", producer_id=7, epoch=1)
    assert refused.condition == "com.microsoft:producer-epoch-stolen"
    assert await _send(pair, new, _batch("b", (7, 2, 1))) == ""
    assert await _stored(broker) == "ab"


@pytest.mark.slow
async def test_a_fenced_producers_waiting_batches_are_not_stored(pair: Pair, broker: Broker) -> None:
    """Batches that are rewritten in slices when a newer instance attaches would come after what it was told
    is stored."""
    old, _ = await _open(pair, "old", producer_id=7, epoch=1)
    for number in range(6):
        old.send(_forwarded(400, (7, 1, 400 * number)), message_format=BATCH_MESSAGE_FORMAT)
    new = _attach(pair, "new", producer_id=7, epoch=2)
    await pair.wait_for(lambda: new.is_open)
    partition = broker.event_hub("hub").partition("0")
    stored = partition.next_sequence_number
    await asyncio.gather(*pair.owner.tasks, return_exceptions=True)
    pair.exchange()
    behind_all = await partition.append(b"x", [1])
    assert behind_all.start_sequence_number == stored


async def test_a_fenced_producers_received_batches_are_not_stored(
    pair: Pair, broker: Broker, clock: SetClock
) -> None:
    """Nor those that its connection has received, and that wait for its turn, when a newer instance attaches
    on another connection. Deliveries on two links by turns wait one by one."""
    old, _ = await _open(pair, "old", producer_id=7, epoch=1)
    beside = pair.session.attach_sender("beside", target="hub/Partitions/1")
    await pair.wait_for(lambda: beside.is_open)
    for number, text in enumerate("abc"):
        old.send(_event(text, (7, 1, number)))
        beside.send(encode_message(Message(data=(b"x",))))
    pair.server.receive_data(b"".join(pair.client.data_to_send()), now=clock.monotonic())
    first = pair.server.next_event()
    assert first is not None
    pair.handler.on_event(first)
    newer = Pair(broker, clock)
    assert newer.put_token(broker, f"sb://{HOST}/").status_code == 202
    _, told = await _open(newer, "new", producer_id=7, epoch=2)
    assert told == (7, 2, 0)
    pair.exchange()
    behind_all = await broker.event_hub("hub").partition("0").append(b"x", [1])
    assert behind_all.start_sequence_number == 1
    newer.handler.claims.close()


def _forwarded(count: int, numbers: Numbers) -> bytes:
    """Events with a place of an earlier delivery, which the service looks at one by one."""
    producer_id, epoch, first = numbers
    events = (
        Message(
            message_annotations={
                PRODUCER_ID: producer_id,
                PRODUCER_EPOCH: Short(epoch),
                PRODUCER_SEQUENCE_NUMBER: Int(first + index),
                "x-opt-offset": "1",
            },
            data=(b"x",),
        )
        for index in range(count)
    )
    return batch_envelope() + b"".join(wrap_event(encode_message(event)) for event in events)


async def test_a_link_that_ends_while_it_attaches_leaves_nothing(pair: Pair) -> None:
    """A client that goes before the answer holds no place: the next one is let in."""
    gone = _attach(pair, "gone", producer_id=7, epoch=1)
    pair.exchange()
    gone.detach()
    pair.exchange()
    _, told = await _open(pair, "next", producer_id=7, epoch=1)
    assert told == (7, 1, -1)


async def test_attaches_that_have_waited_are_answered_one_in_a_turn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects other connections: the log ends many waits at once, and a client chooses how long an answer
    takes. It waits for the connection's turn, accepted or refused, and holds nothing if the link goes first.
    """
    measured_in: list[object] = []

    def measured(value: object) -> int:
        measured_in.append(asyncio.current_task())
        return value_bytes(value)

    monkeypatch.setattr(connection_handler, "value_bytes", measured)
    _, _ = await _open(pair, "newer", producer_id=0, epoch=1)
    links = [_attach(pair, f"p{number}", producer_id=number, epoch=0) for number in range(20)]
    gone = _attach(pair, "gone", producer_id=30, epoch=1)
    with monkeypatch.context() as patches:
        patches.setattr(pair, "request_turn", lambda: None)
        held_before = pair.held_bytes
        pair.exchange()
        await asyncio.gather(*pair.owner.tasks)
        pair.exchange()
        assert not any(link.is_open for link in links)
        assert not pair.of_kind(LinkDetached)
        held_bytes = pair.held_bytes
        gone.detach()
        pair.exchange()
        assert held_before < pair.held_bytes < held_bytes
    turns_before = pair.turns
    pair.request_turn()
    await pair.wait_for(lambda: sum(link.is_open for link in links) == 19)
    assert pair.turns - turns_before >= 20
    assert pair.error_of(links[0]) is not None
    assert pair.held_bytes == held_before
    assert set(measured_in) == {asyncio.current_task()}  # as the attach was received, which is a turn as well
    _, told = await _open(pair, "next", producer_id=30, epoch=0)
    assert told == (30, 0, -1)


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (_batch("a", (8, 0, 0)), "com.microsoft:argument-error"),
        (_batch("a", (7, 1, 0)), "com.microsoft:argument-error"),
        (
            batch_envelope() + wrap_event(encode_message(Message(data=(b"a",)))),
            "com.microsoft:argument-error",
        ),
        (
            batch_envelope() + wrap_event(_event("a", (7, 0, 0))) + wrap_event(_event("b", (7, 0, 5))),
            "amqp:decode-error",
        ),
        (batch_envelope() + wrap_event(b"\x00\x53\x99"), "amqp:decode-error"),
    ],
    ids=["other id", "other epoch", "no numbers", "not one run", "garbage"],
)
@pytest.mark.slow
async def test_batches_that_do_not_fit_the_link(
    pair: Pair, broker: Broker, payload: bytes, condition: str
) -> None:
    """Events of another producer, without numbers, or numbered with gaps are refused; the next is stored."""
    link, _ = await _open(pair, producer_id=7, epoch=0)
    assert await _send(pair, link, payload) == condition
    assert await _send(pair, link, _batch("z", (7, 0, 0))) == ""
    assert await _stored(broker) == "z"


async def test_numbers_that_are_none(pair: Pair) -> None:
    """A link property that no producer can have is refused; the session stays usable."""
    refused = await _refusal(pair, "odd", producer_id=-4)
    assert refused.condition == "com.microsoft:argument-error"
    await _open(pair, "even")


async def test_the_hub_itself_takes_no_idempotent_producers(pair: Pair) -> None:
    """Numbers count per partition: on the hub's own link the capability is not offered."""
    link = _attach(pair, address="hub")
    pair.exchange()
    assert link.is_open
    assert link.remote_attach.offered_capabilities == ()
