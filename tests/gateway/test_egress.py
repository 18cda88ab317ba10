"""Receiver links: order, credit, positions, waiting at the end, steals, drains and slices of batches."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import pytest
from tests.gateway.support import Pair
from tests.support.clocks import SetClock

from tidegate.amqp.events import LinkAttached, LinkDrained
from tidegate.amqp.limits import LINK_BYTES
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.message import DELIVERY_ANNOTATIONS, Message, decode_message, encode_message
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_MIXED,
    SND_SETTLED,
    SND_UNSETTLED,
    Accepted,
    DeliveryState,
    Disposition,
    Modified,
    Performative,
    Rejected,
    Released,
    Source,
)
from tidegate.amqp.types import Described, Symbol
from tidegate.broker import Broker
from tidegate.gateway.amqp.egress import EgressLink
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, wrap_event
from tidegate.wire.event_codec import encode_event
from tidegate.wire.management import ManagementRequest, Operation
from tidegate.wire.names import (
    BATCH_DELIVERY_CAPABILITY,
    EPOCH,
    OFFSET,
    RUNTIME_METRIC_CAPABILITY,
    SELECTOR_FILTER,
    SEQUENCE_NUMBER,
)
from tidegate.wire.selector import selector_filter

ADDRESS = "hub/ConsumerGroups/$Default/Partitions/0"


async def _append(broker: Broker, *texts: str) -> None:
    sections = [wrap_event(encode_event(EventData(text.encode()))) for text in texts]
    await broker.event_hub("hub").partition("0").append(b"".join(sections), array("I", map(len, sections)))


def _attach(
    pair: Pair,
    position: EventPosition | None = None,
    *,
    name: str = "receiver",
    credit: int = 0,
    **kwargs: Any,
) -> ReceiverLink:
    source = Source(address=ADDRESS, filter={} if position is None else selector_filter(position))
    link = pair.session.attach_receiver(name, source=source, target="client", **kwargs)
    if credit:
        link.grant_credit(credit)
    pair.exchange()
    return link


def _messages(pair: Pair, link: ReceiverLink) -> list[Message]:
    return [decode_message(delivery.payload) for delivery in pair.deliveries(link)]


def _texts(pair: Pair, link: ReceiverLink) -> list[str]:
    return [message.data[0].decode() for message in _messages(pair, link)]


async def test_events_come_with_sequence_number_and_offset(pair: Pair, broker: Broker) -> None:
    """Each event says where it lies, settled, across batches and reads."""
    await _append(broker, "a", "b")
    await _append(broker, "c")
    link = _attach(pair, credit=10)
    assert _texts(pair, link) == ["a", "b", "c"]
    assert all(delivery.is_settled for delivery in pair.deliveries(link))
    annotations = [message.message_annotations for message in _messages(pair, link)]
    assert [item[SEQUENCE_NUMBER] for item in annotations] == [0, 1, 2]
    assert [item[OFFSET] for item in annotations] == ["0", "1", "2"]


async def test_no_more_than_the_credit_is_sent(pair: Pair, broker: Broker) -> None:
    """A slow client gets what it asked for, in the middle of batches too, and the rest when it asks again."""
    await _append(broker, *(str(number) for number in range(7)))
    link = _attach(pair, credit=3)
    assert _texts(pair, link) == ["0", "1", "2"]
    for _ in range(2):
        link.grant_credit(2)
        pair.exchange()
    assert _texts(pair, link) == [str(number) for number in range(7)]


async def test_reader_at_the_end_is_woken_by_appends(pair: Pair, broker: Broker) -> None:
    """Who waits at the end gets each event as soon as it is durable, without asking."""
    await _append(broker, "old")
    link = _attach(pair, EventPosition.latest(), credit=10)
    assert _texts(pair, link) == []
    await _append(broker, "new")
    await pair.wait_for(lambda: bool(pair.deliveries(link)))
    assert _texts(pair, link) == ["new"]


async def test_an_append_wakes_its_readers_in_turns(pair: Pair, broker: Broker) -> None:
    """Protects the loop where many read one partition: an append sends nothing itself, each reader has its
    turn."""
    names = [f"receiver {number}" for number in range(5)]
    links = [_attach(pair, EventPosition.latest(), name=name, credit=10) for name in names]
    before = pair.turns, pair.bytes_to_client
    seen = []
    partition = broker.event_hub("hub").partition("0")
    last = partition.open_reader(0, lambda: seen.append((pair.turns, pair.bytes_to_client)))
    assert last.take(1) == []
    await _append(broker, "new")
    await pair.wait_for(lambda: all(pair.deliveries(link) for link in links))
    last.close()
    assert seen == [before]  # the last that was told: by then none of the others had sent anything
    assert pair.turns == before[0] + len(links)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (EventPosition.earliest(), ["0", "1", "2", "3"]),
        (EventPosition.from_sequence_number(1), ["1", "2", "3"]),
        (EventPosition.from_sequence_number(1, is_inclusive=False), ["2", "3"]),
        (EventPosition.from_offset("2"), ["3"]),
        (EventPosition.from_offset("2", is_inclusive=True), ["2", "3"]),
    ],
)
@pytest.mark.slow
async def test_positions_inside_batches(
    pair: Pair, broker: Broker, position: EventPosition, expected: list[str]
) -> None:
    """A start in the middle of a batch gives none of the events before it, either way of delivery."""
    await _append(broker, "0", "1")
    await _append(broker, "2", "3")
    link = _attach(pair, position, credit=10)
    assert _texts(pair, link) == expected
    batched = _attach(
        pair, position, name="batched", credit=10, desired_capabilities=(BATCH_DELIVERY_CAPABILITY,)
    )
    texts = [
        decode_message(section).data[0].decode()
        for delivery in pair.deliveries(batched)
        for section in decode_message(delivery.payload).data
    ]
    assert texts == expected


async def test_slices_of_batches_are_the_stored_bytes(pair: Pair, broker: Broker) -> None:
    """Our own client gets one delivery per batch, however many events: credit counts deliveries."""
    await _append(broker, *(str(number) for number in range(100)))
    link = _attach(pair, credit=1, desired_capabilities=(BATCH_DELIVERY_CAPABILITY,))
    assert link.remote_attach.offered_capabilities == (BATCH_DELIVERY_CAPABILITY,)
    (delivery,) = pair.deliveries(link)
    assert delivery.message_format == BATCH_MESSAGE_FORMAT
    stored = (await broker.event_hub("hub").partition("0").read(0, bytes_max=1 << 20))[0]
    assert delivery.payload.endswith(bytes(stored.payload))


async def test_runtime_metrics_only_where_asked(pair: Pair, broker: Broker) -> None:
    """Delivery annotations tell the end of the partition to who desires them, and nobody else."""
    await _append(broker, "a", "b")
    with_metrics = _attach(pair, name="with", credit=1, desired_capabilities=(RUNTIME_METRIC_CAPABILITY,))
    without = _attach(pair, name="without", credit=1)
    (message,) = _messages(pair, with_metrics)
    assert message.delivery_annotations["last_enqueued_sequence_number"] == 1
    assert message.delivery_annotations["last_enqueued_offset"] == "1"
    assert bytes((0, 0x53, DELIVERY_ANNOTATIONS)) not in pair.deliveries(without)[0].payload


async def test_steal_ends_the_earlier_link(pair: Pair, broker: Broker) -> None:
    """The loser is detached with link:stolen at once, even while it waits; the winner reads."""
    await _append(broker, "a")
    first = _attach(pair, name="first", credit=5, properties={EPOCH: 1})
    second = _attach(pair, name="second", credit=5, properties={EPOCH: 2})
    error = pair.error_of(first)
    assert error is not None
    assert error.condition == "amqp:link:stolen"
    assert "higher epoch of '2'" in (error.description or "")
    assert "TrackingId:" in (error.description or "")
    assert _texts(pair, second) == ["a"]
    lower = _attach(pair, name="lower", credit=5, properties={EPOCH: 1})
    refused = pair.error_of(lower)
    assert refused is not None
    assert refused.condition == "amqp:link:stolen"


async def test_detach_frees_the_place(pair: Pair, broker: Broker) -> None:
    """A receiver that closed does not count: five readers, over and over."""
    for round_number in range(3):
        links = [_attach(pair, name=f"{round_number}-{number}", credit=1) for number in range(5)]
        sixth = _attach(pair, name=f"{round_number}-sixth")
        error = pair.error_of(sixth)
        assert error is not None
        assert error.condition == "amqp:resource-limit-exceeded"
        for link in links:
            link.detach()
        pair.exchange()


async def test_lost_connection_frees_the_place(pair: Pair, broker: Broker, clock: SetClock) -> None:
    """A client that vanished does not hold its partition."""
    _attach(pair, properties={EPOCH: 5})
    pair.server.receive_eof(now=clock.monotonic())
    pair.exchange()
    assert pair.owner.ended == [pair.handler]
    assert broker.event_hub("hub").partition("0").receivers() == []


async def test_drain_gives_credit_back(pair: Pair, broker: Broker) -> None:
    """A client that asks to drain is answered: events first, then the rest of the credit."""
    await _append(broker, "a", "b")
    link = _attach(pair)
    link.grant_credit(10)
    link.drain()
    pair.exchange()
    assert _texts(pair, link) == ["a", "b"]
    assert len(pair.of_kind(LinkDrained)) == 1
    assert link.outstanding_credit == 0


async def test_full_socket_stops_the_pump(pair: Pair, broker: Broker) -> None:
    """While the socket's buffer is full nothing is read from the log; it goes on when there is room."""
    await _append(broker, "a", "b")
    pair.is_writable = False
    link = _attach(pair, credit=10)
    assert _texts(pair, link) == []
    pair.is_writable = True
    pair.handler.on_writable()
    pair.exchange()
    assert _texts(pair, link) == ["a", "b"]


async def test_links_that_wait_for_the_socket_do_not_run(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the loop: each of a thousand links would run for each piece that the socket takes."""
    runs = 0
    pump = EgressLink.pump

    def counted(link: EgressLink) -> None:
        nonlocal runs
        runs += 1
        pump(link)

    monkeypatch.setattr(EgressLink, "pump", counted)
    await _append(broker, "0")
    pair.is_writable = False
    links = [_attach(pair, name=f"reader-{number}", credit=10) for number in range(5)]
    assert runs == 5
    for number in range(1, 4):
        await _append(broker, str(number))
        pair.handler.on_writable()
        pair.exchange()
    assert runs == 5
    pair.is_writable = True
    pair.handler.on_writable()
    pair.exchange()
    assert [_texts(pair, link) for link in links] == [["0", "1", "2", "3"]] * 5
    assert runs == 10


async def test_backlog_is_sent_in_turns(pair: Pair, broker: Broker) -> None:
    """Many megabytes for one link arrive whole although each run of the pump sends only its share."""
    texts = [f"{number} " + "x" * 9_000 for number in range(600)]
    for start in range(0, len(texts), 100):
        await _append(broker, *texts[start : start + 100])
    link = _attach(pair, credit=1000)
    await pair.wait_for(lambda: len(pair.deliveries(link)) == len(texts))
    assert pair.turns >= 600 * 9_000 // (256 * 1024)
    assert _texts(pair, link) == texts


async def test_costly_events_are_sent_in_turns(pair: Pair, broker: Broker) -> None:
    """Protects the loop: what takes long to check counts more than its bytes."""
    section = wrap_event(encode_message(Message(value=[[None]] * 300)))
    await broker.event_hub("hub").partition("0").append(section * 50, array("I", [len(section)] * 50))
    link = _attach(pair, credit=1000)
    await pair.wait_for(lambda: len(pair.deliveries(link)) == 50)
    assert pair.turns >= 50


@pytest.mark.parametrize("capabilities", [(), (BATCH_DELIVERY_CAPABILITY,)], ids=["events", "slices"])
@pytest.mark.slow
async def test_over_the_throughput_units_a_receiver_waits(
    pair: Pair, broker: Broker, capabilities: tuple[str, ...]
) -> None:
    """Beyond the units nothing is an error: the rest comes later, in order, while others are served."""
    for number in range(12):
        await _append(broker, *(f"{number * 10 + index:03}" + "x" * 25_000 for index in range(10)))
    await broker.set_throughput_units(1)
    link = _attach(pair, credit=1000, desired_capabilities=capabilities)
    seen = len(pair.deliveries(link))
    received = sum(len(delivery.payload) for delivery in pair.deliveries(link))
    assert 0 < received < 120 * 25_000  # 2 MB at once, and what one round sends
    assert pair.put_token(broker, "sb://hub.test/hub").status_code == 202
    all_bytes = 120 * 25_000
    await pair.wait_for(lambda: sum(len(delivery.payload) for delivery in pair.deliveries(link)) >= all_bytes)
    assert len(pair.deliveries(link)) > seen
    if not capabilities:
        assert [text[:3] for text in _texts(pair, link)] == [f"{number:03}" for number in range(120)]
    assert broker.throughput.statistics().delayed_deliveries > 0


async def test_a_receiver_that_goes_while_it_waits(pair: Pair, broker: Broker) -> None:
    """A detach in the middle of a wait for throughput units ends the wait, too."""
    for number in range(9):
        await _append(broker, *(f"{number}" + "x" * 25_000 for _ in range(10)))
    await broker.set_throughput_units(1)
    link = _attach(pair, credit=1000)
    link.detach()
    pair.exchange()
    seen = len(pair.deliveries(link))
    await broker.set_throughput_units(None)
    again = _attach(pair, name="again", credit=1000)
    await pair.wait_for(lambda: len(pair.deliveries(again)) == 90)
    assert len(pair.deliveries(link)) == seen


async def test_deleted_hub_ends_its_receivers(pair: Pair, broker: Broker) -> None:
    """A receiver of a hub that is deleted is told so, instead of waiting for ever."""
    link = _attach(pair, credit=10)
    await broker.delete_event_hub("hub")
    await pair.wait_for(lambda: not link.is_open)
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "amqp:not-found"


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("hub/ConsumerGroups/nobody/Partitions/0", "amqp:not-found"),
        ("hub/ConsumerGroups/$Default/Partitions/9", "com.microsoft:argument-out-of-range"),
        ("other/ConsumerGroups/$Default/Partitions/0", "amqp:not-found"),
        ("hub/Partitions/0", "com.microsoft:argument-error"),
        ("a/b/c", "com.microsoft:argument-error"),
    ],
)
async def test_wrong_source_is_refused(pair: Pair, address: str, condition: str) -> None:
    """Each wrong address has its condition, and the session is usable afterwards."""
    link = pair.session.attach_receiver("wrong", source=address, target="client")
    pair.exchange()
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == condition
    assert _attach(pair).is_open


async def test_position_beyond_the_end_is_refused(pair: Pair, broker: Broker) -> None:
    """The refusal names the position and the end, as the service words it."""
    await _append(broker, "a")
    link = _attach(pair, EventPosition.from_sequence_number(488))
    error = pair.error_of(link)
    assert error is not None
    assert "The supplied sequence number '488' is invalid" in (error.description or "")


async def test_only_filters_in_force_are_in_the_answer(pair: Pair, broker: Broker) -> None:
    """Protects clients from believing in a filter that nobody applies (AMQP 1.0 part 3 section 3.5.3)."""
    await _append(broker, "a", "b", "c")
    filters: dict[object, object] = {
        Symbol("selector"): Described(SELECTOR_FILTER, 'amqp.annotation.x-opt-sequence-number > "1"'),
        Symbol("colour"): Described(Symbol("apache.org:legacy-amqp-headers-binding:map"), {"colour": "red"}),
    }
    link = pair.session.attach_receiver("in", source=Source(address=ADDRESS, filter=filters))
    link.grant_credit(10)
    pair.exchange()
    (attached,) = [event for event in pair.of_kind(LinkAttached) if event.link is link]
    assert attached.attach.source is not None
    assert attached.attach.source.filter == {"selector": filters[Symbol("selector")]}
    assert _texts(pair, link) == ["c"]


async def test_a_receiver_starts_where_all_its_comparisons_are_met(pair: Pair, broker: Broker) -> None:
    """Protects receivers that name two bounds: the later one is where they start."""
    await _append(broker, "a", "b", "c")
    text = "amqp.annotation.x-opt-offset > '-1' AND amqp.annotation.x-opt-sequence-number = '1'"
    filters: dict[object, object] = {SELECTOR_FILTER: Described(SELECTOR_FILTER, text)}
    link = pair.session.attach_receiver("in", source=Source(address=ADDRESS, filter=filters))
    link.grant_credit(10)
    pair.exchange()
    assert _texts(pair, link) == ["b", "c"]


def _is_answered(pair: Pair, link: ReceiverLink) -> bool:
    return bool(pair.deliveries(link)) or link.has_ended


async def test_an_attach_searches_the_log_for_one_time(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: an attach of 280 comparisons with an enqueued time held the loop for 1.3 s."""
    await _append(broker, "a", "b")
    times = list[int]()
    search = FilePartitionLog.sequence_number_at_time

    async def counted_search(log: FilePartitionLog, time_ms: int) -> int:
        times.append(time_ms)
        return await search(log, time_ms)

    monkeypatch.setattr(FilePartitionLog, "sequence_number_at_time", counted_search)
    for count, expected in ((4, [4]), (140, [])):
        text = " AND ".join(f"amqp.annotation.x-opt-enqueued-time >= {number}" for number in range(1, 5))
        filters: dict[object, object] = {
            Symbol(f"s{number}"): Described(SELECTOR_FILTER, text) for number in range(count // 4)
        }
        link = pair.session.attach_receiver(f"in {count}", source=Source(address=ADDRESS, filter=filters))
        link.grant_credit(10)
        await pair.wait_for(partial(_is_answered, pair, link))
        assert times == expected
        times.clear()
    error = pair.error_of(link)
    assert error is not None
    assert (error.condition, "more than 8" in (error.description or "")) == (
        "com.microsoft:argument-error",
        True,
    )


DECISIONS: tuple[DeliveryState, ...] = (Accepted(), Released(), Rejected(), Modified(delivery_failed=True))


@pytest.mark.parametrize("state", DECISIONS, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize("rcv_settle_mode", [0, 1])
@pytest.mark.slow
async def test_who_asks_for_unsettled_deliveries_decides_about_them(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch, state: DeliveryState, rcv_settle_mode: int
) -> None:
    """Protects clients that settle what they receive: each delivery waits for their word, and the answer to
    it comes where they ask for it (rcv-settle-mode second). Nothing is sent again, and nothing is kept."""
    await _append(broker, "a", "b" * 70_000, "c")  # the second in several frames
    link = _attach(pair, credit=10, snd_settle_mode=SND_UNSETTLED, rcv_settle_mode=rcv_settle_mode)
    (attached,) = [event for event in pair.of_kind(LinkAttached) if event.link is link]
    assert attached.attach.snd_settle_mode == SND_UNSETTLED
    assert attached.attach.rcv_settle_mode == rcv_settle_mode
    assert [text[:1] for text in _texts(pair, link)] == ["a", "b", "c"]
    deliveries = pair.deliveries(link)
    assert not any(delivery.is_settled for delivery in deliveries)
    first, last = deliveries[0].delivery_id, deliveries[-1].delivery_id
    answers: list[tuple[int, Performative]] = []
    monkeypatch.setattr(pair.server, "send_performative", lambda *frame: answers.append(frame))
    pair.session.send_performative(
        Disposition(ROLE_RECEIVER, first, last, settled=rcv_settle_mode == 0, state=state)
    )
    await _append(broker, "d")
    await pair.wait_for(lambda: len(pair.deliveries(link)) == 4)
    if rcv_settle_mode:
        assert answers == [(0, Disposition(ROLE_SENDER, first, last, settled=True, state=state))]
    else:
        assert answers == []
    assert pair.server.held_bytes == LINK_BYTES * 5  # two sessions, three links; nothing for deliveries


@pytest.mark.parametrize("mode", [SND_SETTLED, SND_MIXED])
async def test_others_get_settled_deliveries(pair: Pair, broker: Broker, mode: int) -> None:
    """Protects the clients that never settle: settled deliveries, also where both would be allowed."""
    await _append(broker, "a")
    link = _attach(pair, credit=10, snd_settle_mode=mode)
    assert [delivery.is_settled for delivery in pair.deliveries(link)] == [True]


async def test_receivers_of_a_deleted_hub(pair: Pair, broker: Broker) -> None:
    """Protects readers: their link ends at once, in clear words, and the same connection reads the hub that
    was created again under the name, and asks $management about it."""
    await _append(broker, "old")
    link = _attach(pair, credit=10)
    requests = pair.request_links("$management")
    await broker.delete_event_hub("hub")
    await pair.wait_for(lambda: not link.is_open)
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "amqp:not-found"
    assert error.description is not None
    assert f"'{ADDRESS}' could not be found: event hub 'hub' was deleted" in error.description
    question = ManagementRequest(Operation.READ_EVENT_HUB, "hub").to_message()
    assert pair.request(*requests, question).status_code == 404
    await broker.create_event_hub("hub", partition_count=1)
    await _append(broker, "new")
    again = _attach(pair, name="again", credit=10)
    assert _texts(pair, again) == ["new"]
    assert pair.request(*requests, question).status_code == 200


async def test_a_log_that_closes_is_no_deleted_hub(pair: Pair, broker: Broker) -> None:
    """Protects readers of a service that stops: they are told to come again, and not that the hub is gone."""
    link = _attach(pair, credit=10)
    await broker.close()
    await pair.wait_for(lambda: not link.is_open)
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "amqp:link:detach-forced"
    assert error.description is not None
    assert error.description.startswith("The service is stopping.")
