"""What a producer promises, against a service that gives every kind of trouble on order."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.client.fake_service import FakeService, until

from tidegate.client import EventHubProducer, FailedEvents, RetryPolicy, SendFailedError
from tidegate.client import producer as producer_module
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    EventTooLargeError,
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    OutOfOrderSequenceError,
    ServerBusyError,
    TidegateError,
    UnauthorizedError,
    WouldBlockError,
)
from tidegate.model.events import EventData
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.wire.event_codec import decode_event
from tidegate.wire.names import IDEMPOTENT_BATCH_CAPABILITY

IDEMPOTENT = (IDEMPOTENT_BATCH_CAPABILITY,)
QUICK = RetryPolicy(retries_max=5, delay_s=0.001, delay_s_max=0.002)


def _events(count: int, start: int = 0) -> list[EventData]:
    return [EventData(b"%d" % number) for number in range(start, start + count)]


def _bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture(params=["idempotent", "plain"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[FakeService]:
    """A service that knows idempotent batches, and one that does not."""
    capabilities = IDEMPOTENT if request.param == "idempotent" else ()
    async with FakeService(capabilities=capabilities) as running:
        yield running


@pytest.fixture
async def idempotent_service() -> AsyncIterator[FakeService]:
    async with FakeService(capabilities=IDEMPOTENT) as running:
        yield running


def _producer(service: FakeService, **arguments: Any) -> EventHubProducer:
    chosen: dict[str, Any] = {"retry": QUICK, "timeout_s": 5.0} | arguments
    return EventHubProducer.from_connection_string(service.connection_string, **chosen)


async def test_send_stores_one_batch_in_order(service: FakeService) -> None:
    """send returns after the acknowledgement, and its events are one batch, in order."""
    async with _producer(service) as producer:
        await producer.send(_events(3), partition_id="1")
        assert service.partitions[1].bodies() == _bodies(3)
    assert service.batch_sizes == [3]


async def test_a_key_decides_the_partition_and_stays_in_the_event(service: FakeService) -> None:
    """The key is hashed as the service would, and every event still carries it."""
    async with _producer(service) as producer:
        await producer.send(_events(2), partition_key="device-1")
        chosen = service.partitions[partition_for_key("device-1", 2)]
    assert [decode_event(event).partition_key for event in chosen.events] == ["device-1"] * 2


async def test_sends_without_a_key_take_turns(service: FakeService) -> None:
    """Without key and partition the load is spread."""
    async with _producer(service) as producer:
        for number in range(4):
            await producer.send(_events(1, number))
    assert [len(partition.events) for partition in service.partitions] == [2, 2]


async def test_a_filled_batch_is_sent_as_it_is(service: FakeService) -> None:
    """try_add says when a batch is full, and what it took is what is stored."""
    async with _producer(service) as producer:
        batch = await producer.create_batch(partition_id="0", bytes_max=4096)
        added = 0
        while batch.try_add(EventData(b"x" * 100)):
            added += 1
        assert 30 < added < 41
        assert batch.size_bytes <= 4096
        await producer.send_batch(batch)
    assert service.batch_sizes == [added]


async def test_buffered_events_share_batches_and_keep_their_order(service: FakeService) -> None:
    """Events of different keys fill one batch per partition; within it they lie as they were given."""
    async with _producer(service, linger_ms=1000.0) as producer:
        keys = [f"key-{number % 7}" for number in range(200)]
        assert await producer.enqueue_many(_events(200), partition_keys=keys) == 200
        await producer.flush()
        assert producer.buffered_bytes == 0
    assert len(service.batch_sizes) == 2
    for index, partition in enumerate(service.partitions):
        expected = [
            b"%d" % number for number in range(200) if partition_for_key(f"key-{number % 7}", 2) == index
        ]
        assert partition.bodies() == expected


async def test_events_linger_only_while_a_batch_is_in_flight(service: FakeService) -> None:
    """An event leaves at once, with what is buffered in the same turn. Later ones of its partition wait for
    the acknowledgement, and those of another do not."""
    async with _producer(service, linger_ms=60_000.0) as producer:
        await producer.start()
        service.is_acknowledging = False
        for _ in range(3):
            producer.enqueue_nowait(EventData(b"x"), partition_id="0")
        await until(lambda: service.batch_sizes == [3])
        for _ in range(2):
            producer.enqueue_nowait(EventData(b"x"), partition_id="0")
            await asyncio.sleep(0)
        producer.enqueue_nowait(EventData(b"x"), partition_id="1")
        await until(lambda: service.batch_sizes == [3, 1])
        service.acknowledge()
        await until(lambda: service.batch_sizes == [3, 1, 2])


async def test_events_without_a_key_linger_while_any_batch_is_in_flight(service: FakeService) -> None:
    """Otherwise each of a slow stream would be a batch of its own, of the next partition."""
    async with _producer(service, linger_ms=60_000.0) as producer:
        await producer.start()
        service.is_acknowledging = False
        producer.enqueue_nowait(EventData(b"x"))
        await until(lambda: service.batch_sizes == [1])
        for _ in range(4):
            producer.enqueue_nowait(EventData(b"x"))
            await asyncio.sleep(0.001)
        assert service.batch_sizes == [1]
        service.acknowledge()
        await until(lambda: service.batch_sizes == [1, 4])


async def test_events_wait_for_their_partition_while_many_batches_are_unacknowledged(
    idempotent_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a service that is behind would get a batch for each event, and fall further behind."""
    monkeypatch.setattr(producer_module, "_UNACKNOWLEDGED_MAX", 2)
    service = idempotent_service
    async with _producer(service, linger_ms=1.0) as producer:
        await producer.start()
        service.is_acknowledging = False
        for partition_id in ("0", "1"):
            producer.enqueue_nowait(EventData(b"x"), partition_id=partition_id)
        await until(lambda: service.batch_sizes == [1, 1])
        for _ in range(4):
            producer.enqueue_nowait(EventData(b"x"), partition_id="0")
            await asyncio.sleep(0.003)
        assert service.batch_sizes == [1, 1]
        service.acknowledge()
        await until(lambda: service.batch_sizes == [1, 1, 4])


async def test_events_that_waited_for_a_batch_leave_when_it_is_withdrawn(
    idempotent_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that is cancelled before it left gets no acknowledgement; what waited behind it must leave."""
    monkeypatch.setattr(producer_module, "_UNACKNOWLEDGED_MAX", 1)
    service = idempotent_service
    async with _producer(service, linger_ms=1.0) as producer, asyncio.TaskGroup() as tasks:
        await producer.start()
        sender = producer._lanes_by_id["0"].sender
        with monkeypatch.context() as waiting:
            waiting.setattr(sender, "_wake", lambda: None)  # as while its link is being attached
            sending = tasks.create_task(producer.send(_events(1), partition_id="0"))
            await until(lambda: not sender.is_idle)
            producer.enqueue_nowait(EventData(b"x"), partition_id="0")
            await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait([sending])
        await until(lambda: service.batch_sizes == [1])


async def test_lingering_events_leave_by_themselves(idempotent_service: FakeService) -> None:
    """A buffered event is sent after the linger time, with nobody flushing, and nothing acknowledged."""
    service = idempotent_service
    async with _producer(service, linger_ms=1.0) as producer:
        service.is_acknowledging = False
        for number in (b"first", b"lonely"):
            await producer.enqueue(EventData(number), partition_id="0")
            await until(lambda: number in service.partitions[0].bodies())  # noqa: B023
        service.acknowledge()


async def test_batches_are_cut_by_encoded_size(service: FakeService) -> None:
    """No batch outgrows its bound, and a full one does not wait for the linger time."""
    async with _producer(service, linger_ms=60_000.0, batch_bytes_max=10_000) as producer:
        await producer.enqueue_many([EventData(b"y" * 1000)] * 50, partition_id="0")
        await producer.flush()
    assert len(service.partitions[0].events) == 50
    assert max(service.batch_sizes) <= 10


async def test_a_full_buffer_makes_enqueue_wait_and_nowait_raise(service: FakeService) -> None:
    """Memory is bounded: with the service silent, one waits and the other says so; both go on afterwards."""
    async with _producer(service, buffer_bytes_max=5_000, linger_ms=0.0) as producer:
        service.is_acknowledging = False
        await producer.enqueue_many([EventData(b"z" * 1000)] * 5, partition_id="0")
        with pytest.raises(WouldBlockError, match="full"):
            producer.enqueue_nowait(EventData(b"late"), partition_id="0")
        waiting = asyncio.ensure_future(  # noqa: TID251 - the test owns it
            producer.enqueue(EventData(b"patient"), partition_id="0")
        )
        await until(lambda: len(service.partitions[0].events) >= 1)
        assert not waiting.done()
        service.acknowledge()
        await asyncio.wait_for(waiting, 30)
        await producer.flush()
    assert service.partitions[0].bodies()[-1] == b"patient"


async def test_events_too_large_are_refused_before_anything_is_sent(service: FakeService) -> None:
    """One event or a batch over the limit raises, stores nothing, and leaves the producer usable."""
    async with _producer(service) as producer:
        with pytest.raises(EventTooLargeError, match="exceeds the limit"):
            await producer.send([EventData(b"x" * EVENT_BYTES_MAX)], partition_id="0")
        with pytest.raises(EventTooLargeError, match="together"):
            await producer.send([EventData(b"x" * 600_000)] * 2, partition_id="0")
        with pytest.raises(EventTooLargeError):
            await producer.enqueue(EventData(b"x" * EVENT_BYTES_MAX), partition_id="0")
        assert service.partitions[0].events == []
        await producer.send(_events(1), partition_id="0")
    assert service.partitions[0].bodies() == _bodies(1)


async def test_destinations_that_cannot_be_meant_are_refused(service: FakeService) -> None:
    """Key and partition together, an oversize key, an unknown partition: the caller hears it at once."""
    async with _producer(service) as producer:
        with pytest.raises(InvalidArgumentError, match="not both"):
            await producer.send(_events(1), partition_key="k", partition_id="0")
        with pytest.raises(InvalidArgumentError, match="characters"):
            await producer.send(_events(1), partition_key="k" * 129)
        with pytest.raises(NotFoundError, match="no partition '7'"):
            await producer.enqueue(EventData(b""), partition_id="7")


async def test_a_busy_service_is_tried_again_in_order(service: FakeService) -> None:
    """Refused batches, with others behind them in flight, arrive once and in order."""
    async with _producer(service, batch_bytes_max=2000, linger_ms=0.0) as producer:
        service.refusals.extend([None, ServerBusyError("busy"), ServerBusyError("busy")])
        # The wire's server-busy says 4 s; this one must not slow the test.
        service.refusals = type(service.refusals)(
            BrokenError("try again") if refusal else None for refusal in service.refusals
        )
        await producer.enqueue_many(_events(100), partition_id="0")
        for number in range(100, 200):
            await producer.enqueue(EventData(b"%d" % number), partition_id="0")
        await producer.flush()
    assert service.partitions[0].bodies() == _bodies(200)


async def test_lost_acknowledgements_store_nothing_twice(idempotent_service: FakeService) -> None:
    """Stored, then cut before the answer, again and again: each event is there once, in order."""
    service = idempotent_service
    async with _producer(service, batch_bytes_max=2000, linger_ms=0.0) as producer:
        service.lost_acknowledgements = 3
        for start in range(0, 300, 50):
            await producer.enqueue_many(_events(50, start), partition_id="0")
        await producer.send(_events(1, 300), partition_id="0")
        await producer.flush()
    assert service.partitions[0].bodies() == _bodies(301)
    assert service.connection_count == 4


async def test_several_batches_are_in_flight_where_they_are_numbered(idempotent_service: FakeService) -> None:
    """Idempotent batches do not wait for each other's acknowledgement; four at most are unanswered."""
    service = idempotent_service
    async with _producer(service, batch_bytes_max=2000, linger_ms=0.0) as producer:
        service.is_acknowledging = False
        await producer.enqueue_many([EventData(b"x" * 1500)] * 6, partition_id="0")
        await until(lambda: len(service.batch_sizes) >= 4)
        await asyncio.sleep(0.02)
        assert len(service.batch_sizes) == 4
        service.acknowledge()
        await producer.flush()
    assert len(service.partitions[0].events) == 6


async def test_partitions_write_in_turns() -> None:
    """Woken together, all would put their batches into the stream's queue, which each write copies."""
    async with (
        FakeService(partition_count=64, capabilities=IDEMPOTENT) as service,
        _producer(service) as producer,
    ):
        await asyncio.gather(*(producer.send(_events(1), partition_id=str(each)) for each in range(64)))
        assert service._server is not None
        drivers = list(service._server.drivers)
        for driver in drivers:
            driver.pause_reading()
        authorized = await producer._connector.connected()
        assert authorized.connection._driver is not None
        stream = authorized.connection._driver._stream
        assert stream is not None
        sends = asyncio.gather(
            *(producer.send(EventData(bytes(200_000)), partition_id=str(each)) for each in range(64))
        )
        await until(lambda: not stream.is_writable)
        most = stream.held_bytes
        for driver in drivers:
            driver.resume_reading()
        while not sends.done():
            await asyncio.sleep(0)
            most = max(most, stream.held_bytes)
        await sends
    assert most < 1_000_000
    assert all(len(partition.events) == 2 for partition in service.partitions)


async def test_a_service_that_forgot_the_producer_is_told_anew(idempotent_service: FakeService) -> None:
    """Out-of-order on a batch that was never tried before starts over with a new producer id."""
    service = idempotent_service
    async with _producer(service) as producer:
        await producer.send(_events(1), partition_id="0")
        service.refusals.append(OutOfOrderSequenceError("who are you?"))
        await producer.send(_events(1, 1), partition_id="0")
        await producer.send(_events(1, 2), partition_id="0")
    assert service.partitions[0].bodies() == _bodies(3)
    assert len(service.partitions[0].next_sequences) == 2


async def test_a_final_refusal_fails_one_batch_and_the_others_go_on(service: FakeService) -> None:
    """What is refused for good reaches flush with its events; batches around it are stored in order."""
    async with _producer(service, batch_bytes_max=400, linger_ms=60_000.0) as producer:
        service.refusals.extend([None, EventTooLargeError("the hub's own limit is lower")])
        await producer.enqueue_many([EventData(b"%d" % n + b"." * 150) for n in range(8)], partition_id="0")
        with pytest.raises(SendFailedError, match="2 events") as caught:
            await producer.flush()
        await producer.flush()  # told once
    (failed,) = caught.value.failed
    assert isinstance(failed.error, EventTooLargeError)
    lost = [decode_event(event).body.rstrip(b".") for event in failed.events]
    kept = [body.rstrip(b".") for body in service.partitions[0].bodies()]
    assert lost == [b"2", b"3"]
    assert kept == [b"0", b"1", b"4", b"5", b"6", b"7"]


async def test_a_refusal_costs_no_batch_before_it(idempotent_service: FakeService) -> None:
    """Refused for good while the batch before it is stored and unanswered: only the refused one failed."""
    service = idempotent_service
    async with _producer(service, batch_bytes_max=2000, linger_ms=0.0) as producer:
        service.is_acknowledging = False
        service.refusals.extend([None, EventTooLargeError("the hub's own limit is lower")] * 3)
        await producer.enqueue_many([EventData(bytes([n]) * 1500) for n in range(2)], partition_id="0")
        await until(lambda: len(service.refusals) <= 4)
        await asyncio.sleep(0.02)
        service.acknowledge()
        with pytest.raises(SendFailedError) as caught:
            await producer.flush()
        assert producer.buffered_bytes == 0
    (failed,) = caught.value.failed
    assert [decode_event(event).body[0] for event in failed.events] == [1]
    assert [body[0] for body in service.partitions[0].bodies()] == [0]


async def test_failed_events_go_to_the_callback_instead(service: FakeService) -> None:
    """With on_error, flush raises nothing and the callback is given the events."""
    failures: list[FailedEvents] = []
    async with _producer(service, on_error=failures.append, linger_ms=1000.0) as producer:
        service.refusals.extend([UnauthorizedError("no Send claim")] * 2)  # once more under a new token
        await producer.enqueue(EventData(b"lost"), partition_id="1")
        await producer.flush()
    (failed,) = failures
    assert (failed.partition_id, type(failed.error), len(failed.events)) == ("1", UnauthorizedError, 1)


async def test_a_callback_that_fails_costs_no_events(service: FakeService) -> None:
    """An on_error that raises is logged, and the events reach flush instead."""

    def fail(failed: FailedEvents) -> None:
        raise KeyError("the caller's bug")

    async with _producer(service, on_error=fail, batch_bytes_max=400, linger_ms=60_000.0) as producer:
        service.refusals.append(EventTooLargeError("the hub's own limit is lower"))
        await producer.enqueue_many([EventData(b"." * 150)] * 4, partition_id="1")
        with pytest.raises(SendFailedError, match="2 events"):
            await producer.flush()
    assert len(service.partitions[1].events) == 2


async def test_keys_must_match_their_events(service: FakeService) -> None:
    """Fewer or more keys than events is the caller's error, not a silent loss."""
    async with _producer(service) as producer:
        for keys in (["a"], ["a", "b", "c"]):
            with pytest.raises(InvalidArgumentError, match="as many partition_keys as events"):
                await producer.enqueue_many(_events(2), partition_keys=keys)
        broken = (str(int("mine")) for _ in range(2))
        with pytest.raises(ValueError, match="mine"):
            await producer.enqueue_many(_events(2), partition_keys=broken)
        with pytest.raises(InvalidArgumentError, match="only one of partition_keys"):
            await producer.enqueue_many(_events(1), partition_keys=["a"], partition_id="0")


async def test_errors_of_send_are_of_their_kind(service: FakeService) -> None:
    """A final refusal reaches send's caller as it is, and the next send works."""
    async with _producer(service) as producer:
        service.refusals.extend([UnauthorizedError("no Send claim")] * 2)  # once more under a new token
        with pytest.raises(UnauthorizedError, match="no Send claim"):
            await producer.send(_events(1), partition_id="0")
        await producer.send(_events(1), partition_id="0")
    assert service.partitions[0].bodies() == _bodies(1)


@pytest.mark.parametrize("error", [UnauthorizedError("expired"), NotFoundError("no such hub")])
async def test_a_refused_token_is_not_tried_again(service: FakeService, error: TidegateError) -> None:
    """A wrong key or an unknown hub fails the first call, once."""
    service.token_error = error
    producer = _producer(service)
    with pytest.raises(type(error), match=re.escape(error.message)):
        await producer.send(_events(1))
    assert len(service.tokens) == 1
    await producer.close()


async def test_a_refused_attach_fails_all_that_waits(service: FakeService) -> None:
    """Trouble that is not about one batch fails the queue at once, instead of batch by batch."""
    async with _producer(service, batch_bytes_max=400, linger_ms=60_000.0) as producer:
        await producer.start()
        service.attach_refusals.extend([UnauthorizedError("no Send claim")] * 2)  # once more with a new token
        await producer.enqueue_many([EventData(b"." * 150)] * 6, partition_id="1")
        with pytest.raises(SendFailedError) as caught:
            await producer.flush()
    assert sum(len(failed.events) for failed in caught.value.failed) == 6
    assert service.partitions[1].events == []


async def test_the_services_own_limit_is_heeded() -> None:
    """Where the service takes less per message than Event Hubs usually does, batches are made to fit."""
    async with FakeService(message_bytes_max=20_000) as service, _producer(service) as producer:
        batch = await producer.create_batch(partition_id="0")
        assert 19_000 < batch.bytes_max < 20_000
        with pytest.raises(EventTooLargeError):
            await producer.send([EventData(b"x" * 20_000)], partition_id="0")
        await producer.enqueue_many([EventData(b"x" * 1000)] * 100, partition_id="0")
        await producer.flush()
        assert len(service.partitions[0].events) == 100


@pytest.mark.slow
async def test_a_silent_service_times_out(service: FakeService) -> None:
    """No answer is an OperationTimeoutError after the retries, not a hang."""
    policy = RetryPolicy(retries_max=1, delay_s=0.001, delay_s_max=0.002)
    async with _producer(service, timeout_s=0.5, retry=policy) as producer:
        await producer.start()
        service.is_acknowledging = False
        with pytest.raises(OperationTimeoutError, match=r"within 0\.5 s"):
            await producer.send(_events(1), partition_id="0")
        service.is_acknowledging = True
        await producer.send(_events(1, 1), partition_id="0")


async def test_nobody_listening_is_a_clear_error() -> None:
    """A dead address says where it looked and what to check."""
    async with FakeService() as service:
        connection_string = service.connection_string
    policy = RetryPolicy(retries_max=1, delay_s=0.001, delay_s_max=0.002)
    producer = EventHubProducer.from_connection_string(connection_string, retry=policy)
    with pytest.raises(BrokenError, match=r"127\.0\.0\.1"):
        await producer.send(_events(1))
    await producer.close()


async def test_a_cancelled_send_leaves_the_producer_whole(service: FakeService) -> None:
    """Cancelling one send loses neither order nor the next send's answer."""
    async with _producer(service) as producer:
        await producer.send(_events(1), partition_id="0")
        service.is_acknowledging = False
        cancelled = asyncio.ensure_future(producer.send(_events(1, 1), partition_id="0"))  # noqa: TID251
        await until(lambda: len(service.batch_sizes) == 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        service.acknowledge()
        await producer.send(_events(1, 2), partition_id="0")
        await producer.flush()
    assert service.partitions[0].bodies() == _bodies(3)


async def test_a_cancelled_send_that_still_waits_is_never_sent() -> None:
    """What had not left when its caller gave up does not leave afterwards, and nothing stays counted."""
    async with FakeService() as service, _producer(service) as producer:  # one batch in flight at a time
        service.is_acknowledging = False
        first = asyncio.ensure_future(producer.send(_events(1), partition_id="0"))  # noqa: TID251
        await until(lambda: len(service.batch_sizes) == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(_events(1, 7), partition_id="0"), 0.05)
        service.acknowledge()
        await first
        await producer.send(_events(1, 1), partition_id="0")
        assert producer.buffered_bytes == 0
    assert service.partitions[0].bodies() == _bodies(2)


async def test_a_closed_producer_says_so(service: FakeService) -> None:
    """After close nothing hangs and nothing is taken."""
    producer = _producer(service)
    await producer.enqueue(EventData(b"last words"), partition_id="0")
    await producer.close()
    await producer.close()
    assert service.partitions[0].bodies() == [b"last words"]
    with pytest.raises(ClosedError):
        await producer.send(_events(1))
    with pytest.raises(ClosedError):
        await producer.enqueue(EventData(b""))
    with pytest.raises(ClosedError):
        producer.enqueue_nowait(EventData(b""), partition_id="0")


async def test_closing_under_a_filling_buffer_drops_nothing_unsaid(service: FakeService) -> None:
    """Whoever enqueues while somebody else closes hears of it; what was taken is stored."""
    producer = _producer(service)
    await producer.start()

    def endless() -> Iterator[EventData]:
        for number in itertools.count():
            yield EventData(b"%d" % number)

    filling = asyncio.ensure_future(  # noqa: TID251 - the test owns it
        producer.enqueue_many(endless(), partition_key="k")
    )
    await until(lambda: producer.buffered_bytes > 0)
    # Returns although more is enqueued all the time.
    await asyncio.wait_for(producer.flush(), 30)
    await producer.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(filling, 30)
    bodies = service.partitions[partition_for_key("k", 2)].bodies()
    assert bodies == _bodies(len(bodies))
    assert bodies


async def test_what_closing_could_not_send_is_told(service: FakeService) -> None:
    """A close that is cancelled while the service is silent gives the events to the callback."""
    failures: list[FailedEvents] = []
    producer = _producer(service, on_error=failures.append)
    await producer.start()
    service.is_acknowledging = False
    await producer.enqueue(EventData(b"unsure"), partition_id="0")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.05)
    (failed,) = failures
    assert isinstance(failed.error, ClosedError)
    assert [decode_event(event).body for event in failed.events] == [b"unsure"]
