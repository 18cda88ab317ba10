"""Programs without asyncio: the blocking producer, and the blocking consumer's events as they arrive."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate.client import BlockingConsumer, BlockingProducer, FailedEvents, RetryPolicy, run_blocking
from tidegate.client.credentials import Token
from tidegate.model.errors import (
    ClosedError,
    ConnectionStringError,
    EventTooLargeError,
    InvalidArgumentError,
    NotFoundError,
)
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService


@pytest.fixture
def connection_string(hub_service: HubService, event_hub: str) -> str:
    return hub_service.hub_connection_string(event_hub)


def test_what_is_sent_in_each_way_is_received(connection_string: str) -> None:
    """One, several, a batch, buffered ones; in order; the consumer's loop ends when nothing comes."""
    with BlockingProducer(connection_string) as producer:
        producer.send(EventData("0"), partition_id="1")
        producer.send([EventData("1"), EventData("2")], partition_id="1")
        batch = producer.create_batch(partition_id="1")
        assert batch.try_add(EventData("3"))
        producer.send_batch(batch)
        producer.enqueue(EventData("4"), partition_id="1")
        many = (EventData(str(number)) for number in range(5, 1300))
        assert producer.enqueue_many(many, partition_id="1") == 1295
        producer.flush()
        producer.enqueue(EventData("ü"), partition_key="ü")  # closing flushes
        assert producer.get_event_hub_properties().partition_ids == ("0", "1")
    with BlockingConsumer(connection_string) as consumer:
        bodies = [event.body.decode() for event in consumer.receive(max_wait_s=0.2)]
        assert sorted(bodies) == sorted([*map(str, range(1300)), "ü"])
        assert [each for each in bodies if each != "ü"] == [*map(str, range(1300))]
        for event in consumer.receive():  # left: nothing stays open
            assert event.body in (b"0", "ü".encode())
            break


def test_threads_share_a_producer(connection_string: str) -> None:
    """Each thread's events keep their order."""
    with BlockingProducer(connection_string) as producer, ThreadPoolExecutor(4) as threads:

        def send(name: int) -> None:
            for number in range(20):
                producer.enqueue(EventData(f"{name} {number}"), partition_id="0")

        list(threads.map(send, range(4)))
        producer.flush()
        with BlockingConsumer(connection_string) as consumer:
            found = [event.body.decode().split() for event in consumer.receive(max_wait_s=0.2)]
    for name in "0123":
        assert [number for each, number in found if each == name] == [*map(str, range(20))]


def test_errors_are_those_of_the_producer_with_asyncio(
    hub_service: HubService, connection_string: str
) -> None:
    """A wrong string at once; then what the service answers; after ``close`` none but ``close`` works."""
    with pytest.raises(ConnectionStringError, match="No event hub given"):
        BlockingProducer(hub_service.connection_string)
    with BlockingProducer(hub_service.connection_string, "absent") as producer, pytest.raises(NotFoundError):
        producer.send(EventData("x"))
    with BlockingProducer(connection_string) as producer:
        with pytest.raises(NotFoundError, match="no partition '9'"):
            producer.send(EventData("x"), partition_id="9")
        with pytest.raises(EventTooLargeError):
            producer.send(EventData(b"x" * 2_000_000))
        with pytest.raises(InvalidArgumentError, match=r"is an EventData, not str\. Write EventData"):
            producer.send(["x"])  # type: ignore[list-item]
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(EventData("x"))


def test_failed_events_go_to_on_error_which_must_not_wait_for_itself(connection_string: str) -> None:
    """It runs on the loop that calls wait for: a call there is refused, and does not hang."""
    seen: list[FailedEvents | Exception] = []

    def on_error(failed: FailedEvents) -> None:
        seen.append(failed)
        try:
            producer.flush()
        except InvalidArgumentError as error:
            seen.append(error)

    producer = BlockingProducer(connection_string, on_error=on_error, retry=RetryPolicy(retries_max=0))
    with producer:
        producer.send(EventData("x"), partition_id="0")
        inner = producer._producer

        async def fail() -> None:
            sender = inner._lanes_by_id["0"].sender
            inner.enqueue_nowait(EventData("late"), partition_id="0")
            inner._seal(inner._lanes_by_id["0"])
            sender.close(ClosedError("cut"))

        run_blocking(fail)
        producer.flush()
    assert isinstance(seen[0], FailedEvents)
    assert "its own event loop" in str(seen[1])


def test_ctrl_c_interrupts_a_call_and_leaves_nothing_behind(connection_string: str) -> None:
    """The call's coroutine is cancelled; the producer can be closed."""
    ended: list[str] = []

    class NeverAnswers:
        async def token_for(self, audience: str, *, now: float) -> Token:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(audience)
            raise AssertionError

    producer = BlockingProducer(connection_string, credential=NeverAnswers())
    with pytest.raises(KeyboardInterrupt):
        producer.send(EventData("x"))
    producer.close()
    assert len(ended) == 1


def test_a_forked_child_sends_over_a_connection_of_its_own(connection_string: str) -> None:
    """The parent's stays as it was."""
    with BlockingProducer(connection_string) as producer:
        producer.send(EventData("parent"), partition_id="0")
        child = os.fork()
        if not child:
            status = 1
            try:
                producer.send(EventData("child"), partition_id="0")
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        producer.send(EventData("parent"), partition_id="0")
    with BlockingConsumer(connection_string) as consumer:
        bodies = [event.body for event in consumer.receive(max_wait_s=0.2)]
    assert bodies == [b"parent", b"child", b"parent"]
