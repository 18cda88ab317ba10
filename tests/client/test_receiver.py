"""What a receiver promises, against a service that gives every kind of trouble on order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.client.fake_service import ENQUEUED_TIME_MS, FakeService, until

from tidegate.amqp.link import ReceiverLink
from tidegate.client import EventHubConsumer, PartitionEnds, PartitionReceiver, RetryPolicy
from tidegate.client.connector import AuthorizedConnection
from tidegate.client.management import read_partition
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    InvalidArgumentError,
    PositionOutOfRangeError,
    QuotaExceededError,
    ReceiverStolenError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.wire.event_codec import encode_event
from tidegate.wire.names import BATCH_DELIVERY_CAPABILITY

QUICK = RetryPolicy(retries_max=5, delay_s=0.001, delay_s_max=0.002)
EARLIEST = EventPosition.earliest()


def _encoded(count: int, start: int = 0, size: int = 0) -> list[bytes]:
    return [
        encode_event(EventData(b"%d" % number + b"." * size, {"n": number}), "key")
        for number in range(start, start + count)
    ]


@pytest.fixture(params=["batched", "per event"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[FakeService]:
    """A service that knows batched delivery, and one that does not."""
    capabilities = (BATCH_DELIVERY_CAPABILITY,) if request.param == "batched" else ()
    async with FakeService(capabilities=capabilities) as running:
        yield running


@pytest.fixture
async def consumer(service: FakeService) -> AsyncIterator[EventHubConsumer]:
    consumer = EventHubConsumer.from_connection_string(service.connection_string, retry=QUICK, timeout_s=5.0)
    async with consumer:
        yield consumer


async def _receive_numbers(receiver: PartitionReceiver, count: int) -> list[int]:
    numbers: list[int] = []
    async with asyncio.timeout(30):
        while len(numbers) < count:
            numbers += [event.sequence_number for event in await receiver.receive(count - len(numbers))]
    return numbers


async def test_events_come_in_order_with_all_they_carry(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """Position, time, key, properties and body arrive; the body is decoded only when asked for."""
    service.store(1, _encoded(250))
    receiver = await consumer.open_receiver("1", EARLIEST)
    events: list[ReceivedEvent] = []
    while len(events) < 250:
        events += await receiver.receive(90)
    assert [event.sequence_number for event in events] == list(range(250))
    assert [event.offset for event in events] == [str(number) for number in range(250)]
    assert {event.enqueued_time_ms for event in events} == {ENQUEUED_TIME_MS}
    assert [event.body for event in events] == [b"%d" % number for number in range(250)]
    assert (events[7].properties, events[7].partition_key, events[7].partition_id) == ({"n": 7}, "key", "1")
    assert receiver.next_sequence_number == 250


async def test_receive_waits_no_longer_than_told(service: FakeService, consumer: EventHubConsumer) -> None:
    """Nothing there: an empty answer after max_wait_s; something comes: at once."""
    receiver = await consumer.open_receiver("0", EARLIEST)
    assert await receiver.receive(max_wait_s=0.01) == []
    assert len(await receiver.receive_encoded(max_wait_s=0.0)) == 0
    asyncio.get_running_loop().call_later(0.01, service.store, 0, _encoded(1))
    (event,) = await receiver.receive(max_wait_s=10.0)
    assert event.body == b"0"
    with pytest.raises(InvalidArgumentError):
        await receiver.receive(0)


async def test_iteration_goes_on_over_batches(service: FakeService, consumer: EventHubConsumer) -> None:
    """async for gives every event once, in order."""
    service.store(0, _encoded(30))
    receiver = await consumer.open_receiver("0", EARLIEST)
    seen = []
    async for event in receiver:
        seen.append(event.sequence_number)
        if len(seen) == 30:
            break
    assert seen == list(range(30))


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (EventPosition.from_sequence_number(4), 4),
        (EventPosition.from_sequence_number(4, is_inclusive=False), 5),
        (EventPosition.latest(), 10),
    ],
)
async def test_a_position_is_where_reading_starts(
    service: FakeService, consumer: EventHubConsumer, position: EventPosition, first: int
) -> None:
    """By number, inclusive or not, and from the end: what comes first is what was asked for."""
    service.store(0, _encoded(10))
    receiver = await consumer.open_receiver("0", position)
    service.store(0, _encoded(1, 10))
    assert await _receive_numbers(receiver, 11 - first) == list(range(first, 11))


async def test_latest_is_pinned_when_opened(service: FakeService, consumer: EventHubConsumer) -> None:
    """Events that come while the line is down are not missed by a receiver that started at the end."""
    service.store(0, _encoded(3))
    receiver = await consumer.open_receiver("0", EventPosition.latest())
    service.attach_refusals.extend([BrokenError("not yet")])
    service.cut_lines()
    service.store(0, _encoded(2, 3))
    assert await _receive_numbers(receiver, 2) == [3, 4]


async def test_latest_of_an_untouched_partition_is_its_start(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """A partition without events has no last number to start behind."""
    receiver = await consumer.open_receiver("0", EventPosition.latest())
    service.store(0, _encoded(1))
    assert await _receive_numbers(receiver, 1) == [0]


async def test_broken_lines_leave_no_gap_and_no_double(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """The line is cut after every batch that is handed out; all events come once, in order."""
    service.store(0, _encoded(1000))
    receiver = await consumer.open_receiver("0", EARLIEST, prefetch_events=60, prefetch_bytes=4000)
    numbers: list[int] = []
    while len(numbers) < 1000:
        numbers += await _receive_numbers(receiver, min(50, 1000 - len(numbers)))
        if len(numbers) % 200 == 0:
            service.cut_lines()
    assert numbers == list(range(1000))
    assert service.connection_count > 3


@pytest.mark.slow
async def test_prefetch_is_bounded(service: FakeService, consumer: EventHubConsumer) -> None:
    """A receiver that nobody empties stops asking: its window is fetched, not the whole partition."""
    service.events_per_batch = 10
    service.store(0, _encoded(5000, size=1000))
    receiver = await consumer.open_receiver("0", EARLIEST, prefetch_events=100, prefetch_bytes=200_000)
    assert await _receive_numbers(receiver, 1000) == list(range(1000))
    fetched, before = receiver.next_sequence_number or 0, -1
    while fetched != before:
        await asyncio.sleep(0.01)
        fetched, before = receiver.next_sequence_number or 0, fetched
    assert receiver.buffered_event_count <= 400
    assert await _receive_numbers(receiver, 4000) == list(range(1000, 5000))


async def test_a_stolen_receiver_hears_it_at_once(service: FakeService, consumer: EventHubConsumer) -> None:
    """ReceiverStolenError surfaces before buffered events: they are the thief's now. No retries."""
    service.store(0, _encoded(100))
    receiver = await consumer.open_receiver("0", EARLIEST, owner_level=1)
    await _receive_numbers(receiver, 10)
    service.detach_readers(ReceiverStolenError("New receiver with higher epoch of '2'"))
    await until(lambda: receiver.is_over)
    for _ in range(2):
        with pytest.raises(ReceiverStolenError, match="higher epoch"):
            await receiver.receive()
    assert service.connection_count == 1


async def test_a_final_failure_comes_after_the_events_that_arrived(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """What was fetched before an error can still be had; then the error, each time."""
    service.store(0, _encoded(20))
    receiver = await consumer.open_receiver("0", EARLIEST)
    await _receive_numbers(receiver, 5)
    service.attach_refusals.append(UnauthorizedError("the policy was removed"))
    service.detach_readers(UnauthorizedError("the policy was removed"))
    assert await _receive_numbers(receiver, 15) == list(range(5, 20))
    with pytest.raises(UnauthorizedError, match="policy"):
        await receiver.receive()


async def test_a_token_that_ran_out_is_replaced_also_where_the_line_is_not_back_at_once(
    service: FakeService, consumer: EventHubConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that wakes: the first tries meet other troubles, each judged by itself."""
    service.store(0, _encoded(20))
    receiver = await consumer.open_receiver("0", EARLIEST)
    await _receive_numbers(receiver, 20)
    troubles = [BrokenError("no line yet"), BrokenError("no line yet")]
    authorize = AuthorizedConnection.authorize

    async def authorize_later(connection: AuthorizedConnection, audience: str) -> bool:
        if troubles:
            raise troubles.pop()
        return await authorize(connection, audience)

    monkeypatch.setattr(AuthorizedConnection, "authorize", authorize_later)
    service.detach_readers(UnauthorizedError("ExpiredToken"))
    await until(lambda: not troubles)
    service.store(0, _encoded(5, start=20))
    assert await _receive_numbers(receiver, 5) == list(range(20, 25))


async def test_refusals_of_the_first_attach_reach_the_caller(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """A lower owner level, or a place beyond the end, fails open_receiver; a passing error does not."""
    service.attach_refusals.append(ReceiverStolenError("with a higher epoch '1' already exists"))
    with pytest.raises(ReceiverStolenError, match="already exists"):
        await consumer.open_receiver("0", EARLIEST, owner_level=0)
    with pytest.raises(PositionOutOfRangeError, match="invalid"):
        await consumer.open_receiver("0", EventPosition.from_sequence_number(9))
    service.attach_refusals.append(BrokenError("moving"))
    service.store(0, _encoded(1))
    receiver = await consumer.open_receiver("0", EARLIEST)
    assert await _receive_numbers(receiver, 1) == [0]


async def test_a_reconnection_outwaits_its_own_ghost(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """After a cut the service may count the dead link among the five: that refusal passes, the first does
    not.
    """
    service.attach_refusals.append(QuotaExceededError("which is 5"))
    with pytest.raises(QuotaExceededError):
        await consumer.open_receiver("0", EARLIEST)
    receiver = await consumer.open_receiver("0", EARLIEST)
    service.attach_refusals.extend([QuotaExceededError("which is 5"), TidegateError("internal")])
    service.cut_lines()
    service.store(0, _encoded(3))
    assert await _receive_numbers(receiver, 3) == [0, 1, 2]
    assert not service.attach_refusals


async def test_an_attach_that_breaks_at_once_is_repeated_with_growing_waits(
    service: FakeService, consumer: EventHubConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that agrees and then breaks, over and over, is not asked again at full speed."""
    receiver = await consumer.open_receiver("0", EARLIEST)
    waits: list[int] = []

    async def record(retry: int, error: TidegateError) -> None:
        waits.append(retry)

    monkeypatch.setattr(receiver._connector, "wait_before_retry", record)
    service.breaks_after_attach.extend(BrokenError("moving") for _ in range(4))
    service.detach_readers(BrokenError("moving"))
    await until(lambda: not service.breaks_after_attach)
    service.store(0, _encoded(3))
    assert await _receive_numbers(receiver, 3) == [0, 1, 2]
    assert waits == [1, 2, 3, 4]
    service.detach_readers(BrokenError("moving"))
    service.store(0, _encoded(1))
    assert await _receive_numbers(receiver, 1) == [3]
    assert waits == [1, 2, 3, 4], "events arrived in between: the first attach after that is immediate"


async def test_retention_that_overtakes_a_reader_is_an_error(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """Events removed before they were read are named, not passed over in silence."""
    service.store(0, _encoded(30))
    receiver = await consumer.open_receiver("0", EARLIEST)
    assert await _receive_numbers(receiver, 30) == list(range(30))
    service.partitions[0].events += _encoded(70, 30)
    service.partitions[0].begin = 80
    service.cut_lines()
    with pytest.raises(PositionOutOfRangeError, match=r"sequence number 30.*first available is 80"):
        await receiver.receive()


async def test_a_jump_within_one_read_is_noticed(service: FakeService, consumer: EventHubConsumer) -> None:
    """Retention may overtake a reader between two events that then arrive together."""
    receiver = await consumer.open_receiver("0", EARLIEST)
    partition = service.partitions[0]
    service.store(0, _encoded(1))
    assert await _receive_numbers(receiver, 1) == [0]
    partition.events += _encoded(4, 1)
    for reader in service._readers.values():
        service._serve(reader)  # not written out yet
    partition.events += _encoded(95, 5)
    partition.begin = 80
    service.store(0, [])
    assert await _receive_numbers(receiver, 4) == [1, 2, 3, 4]
    with pytest.raises(PositionOutOfRangeError, match=r"sequence number 5.*first available is 80"):
        await receiver.receive()


async def test_a_strict_start_must_still_be_there(service: FakeService, consumer: EventHubConsumer) -> None:
    """must_start_at_position: a removed start is an error; without it reading begins at what is left."""
    service.store(0, _encoded(30))
    service.partitions[0].begin = 20
    lenient = await consumer.open_receiver("0", EventPosition.from_sequence_number(5))
    assert await _receive_numbers(lenient, 10) == list(range(20, 30))
    strict = await consumer.open_receiver(
        "0", EventPosition.from_sequence_number(5), must_start_at_position=True
    )
    with pytest.raises(PositionOutOfRangeError, match=r"number 5: the first available is 20"):
        await strict.receive()


async def test_a_hole_over_the_end_of_a_range_is_passed(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """The event behind it tells whoever waits for the end that nothing more will come."""
    service.partitions[0].hole = range(15, 25)
    service.store(0, _encoded(40))
    receiver = await consumer.open_receiver("0", EARLIEST, until_sequence_number=20)
    assert await _receive_numbers(receiver, 15) == list(range(15))
    assert (await _receive_numbers(receiver, 1)) == [25]


async def test_what_is_skipped_is_asked_for_at_once(
    service: FakeService, consumer: EventHubConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flow brings what is dropped and what is wanted, and nothing before the start is handed out."""
    grants: list[int] = []
    grant: Callable[[ReceiverLink, int], None] = ReceiverLink.grant_credit

    def noted(link: ReceiverLink, credit: int) -> None:
        grants.append(credit)
        grant(link, credit)

    each = service.events_per_batch
    service.store(0, _encoded(5 * each))
    start = EventPosition.from_sequence_number(0)
    receiver = await consumer.open_receiver(
        "0", start, must_start_at_position=True, until_sequence_number=each
    )
    assert await _receive_numbers(receiver, each) == list(range(each))
    monkeypatch.setattr(ReceiverLink, "grant_credit", noted)
    first, until_number = 2 * each + 7, 3 * each
    receiver.go_on(until_number, 1 << 20, from_sequence_number=first)
    assert await _receive_numbers(receiver, until_number - first) == list(range(first, until_number))
    assert grants == [2 if receiver.is_batched else 2 * each]


async def test_what_befalls_what_is_skipped_is_no_matter(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """Retention removes it, and the line breaks: the receiver goes on where it is to."""
    service.store(0, _encoded(10))
    receiver = await consumer.open_receiver("0", EARLIEST)
    assert await _receive_numbers(receiver, 10) == list(range(10))
    service.partitions[0].events += _encoded(60, 10)
    service.partitions[0].begin = 30
    receiver.go_on(None, 1 << 20, from_sequence_number=40)
    service.store(0, [])
    assert await _receive_numbers(receiver, 20) == list(range(40, 60))
    receiver.go_on(None, 1 << 20, from_sequence_number=90)
    service.cut_lines()
    service.store(0, _encoded(50, 70))
    assert await _receive_numbers(receiver, 30) == list(range(90, 120))


async def test_what_is_skipped_while_a_hole_is_looked_into_stays_skipped(
    service: FakeService, consumer: EventHubConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer about the hole comes later, and does not take the receiver back."""
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def late(*arguments: Any) -> PartitionEnds:
        is_asked.set()
        await may_answer.wait()
        return await read_partition(*arguments)

    monkeypatch.setattr("tidegate.client.receiver.read_partition", late)
    service.store(0, _encoded(10))
    receiver = await consumer.open_receiver("0", EARLIEST)
    assert await _receive_numbers(receiver, 10) == list(range(10))
    service.partitions[0].hole = range(10, 20)
    service.store(0, _encoded(50, 10))
    await is_asked.wait()
    receiver.go_on(None, 1 << 20, from_sequence_number=40)
    may_answer.set()
    assert await _receive_numbers(receiver, 20) == list(range(40, 60))


async def test_a_cancelled_receive_loses_nothing(service: FakeService, consumer: EventHubConsumer) -> None:
    """Cancelling a wait leaves the receiver usable, and the next call has every event."""
    receiver = await consumer.open_receiver("0", EARLIEST)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receiver.receive(), 0.01)
    service.store(0, _encoded(3))
    assert await _receive_numbers(receiver, 3) == [0, 1, 2]


async def test_closed_receivers_and_consumers_say_so(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """close ends waiting calls with ClosedError, of the receiver and of its consumer."""
    receiver = await consumer.open_receiver("0", EARLIEST)
    async with receiver:
        pass
    with pytest.raises(ClosedError):
        await receiver.receive()
    other = await consumer.open_receiver("0", EARLIEST)
    asyncio.get_running_loop().call_later(0.01, other.close_nowait)
    with pytest.raises(ClosedError):
        await other.receive()
    third = await consumer.open_receiver("0", EARLIEST)
    await consumer.close()
    with pytest.raises(ClosedError):
        await third.receive()
    with pytest.raises(ClosedError):
        await consumer.open_receiver("0", EARLIEST)


async def test_closing_while_reconnecting_ends_those_who_wait(
    service: FakeService, consumer: EventHubConsumer
) -> None:
    """A receiver between two connections hears of its consumer's end, too."""
    receiver = await consumer.open_receiver("0", EARLIEST)
    service.attach_refusals.extend([BrokenError("not yet")] * 3)
    service.cut_lines()
    waiting = asyncio.ensure_future(receiver.receive())  # noqa: TID251 - the test owns it
    await until(lambda: len(service.attach_refusals) < 3)
    await consumer.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(waiting, 30)


async def test_batched_delivery_can_be_declined() -> None:
    """The switch that does not ask for the extension gets an event per delivery, from any service."""
    async with FakeService(capabilities=(BATCH_DELIVERY_CAPABILITY,)) as service:
        service.store(0, _encoded(20))
        consumer = EventHubConsumer.from_connection_string(
            service.connection_string, is_batch_delivery_wanted=False
        )
        async with consumer:
            receiver = await consumer.open_receiver("0", EARLIEST)
            assert await _receive_numbers(receiver, 20) == list(range(20))
            assert not receiver.is_batched


async def test_properties_are_told(service: FakeService, consumer: EventHubConsumer) -> None:
    """Hub and partition properties, of a full and of an untouched partition."""
    service.store(0, _encoded(5))
    service.partitions[0].begin = 2
    hub = await consumer.get_event_hub_properties()
    assert (hub.name, hub.partition_ids) == ("hub", ("0", "1"))
    full = await consumer.get_partition_properties("0")
    assert (full.begin_sequence_number, full.last_enqueued_sequence_number) == (2, 4)
    assert (full.next_sequence_number, full.is_empty) == (5, False)
    assert full.last_enqueued_time is not None
    untouched = await consumer.get_partition_properties("1")
    assert (untouched.next_sequence_number, untouched.is_empty) == (0, True)
    assert untouched.last_enqueued_time is None
