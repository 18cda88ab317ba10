"""Work that is begun again, by itself or beside another, is stored once; against the real service."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tidegate.client import (
    BlockingConsumer,
    ProducerIdentity,
    RepeatableProducer,
    RepeatableWork,
    RetryPolicy,
)
from tidegate.client.credentials import SharedKeyCredential
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import (
    EventTooLargeError,
    NotFoundError,
    ProducerEpochStolenError,
    RepeatDiffersError,
)
from tidegate.model.events import EventData
from tidegate.testing.hub import HubProcess, HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event, event_body


@pytest.fixture
def producer(hub_service: HubService, event_hub: str) -> Iterator[RepeatableProducer]:
    """A producer for a fresh hub with two partitions."""
    with RepeatableProducer(hub_service.connection_string, event_hub) as opened:
        yield opened


def _batch(*bodies: str) -> tuple[bytes, int]:
    return b"".join(wrap_event(encode_event(EventData(body.encode()))) for body in bodies), len(bodies)


def _do(producer: RepeatableProducer, identity: ProducerIdentity, batches: list[list[str]]) -> int:
    with producer.begin(identity) as work:
        return _send(work, batches)


def _send(work: RepeatableWork, batches: list[list[str]]) -> int:
    for bodies in batches:
        work.submit("0", *_batch(*bodies))
    return work.flush()


def _stored(service: HubService | HubProcess, event_hub: str, partition_id: str = "0") -> list[str]:
    with BlockingConsumer(service.connection_string, event_hub) as consumer:
        end = consumer.get_partition_properties(partition_id).next_sequence_number
        chunks = consumer.read_encoded(partition_id, 0, end)
        return [bytes(event_body(message)).decode() for chunk in chunks for message in chunk.messages]


def _batches(count: int, first: int = 0) -> list[list[str]]:
    return [
        [f"{number}-{index}" for index in range(1 + number % 3)] for number in range(first, first + count)
    ]


def _flat(batches: list[list[str]]) -> list[str]:
    return [body for batch in batches for body in batch]


def test_work_that_is_begun_again_goes_on_where_it_stood(
    hub_service: HubService, producer: RepeatableProducer
) -> None:
    """Far more batches than the service remembers one by one; then all of it again, which stores nothing."""
    identity, batches = ProducerIdentity(7, 3), _batches(50)
    assert producer.layout.is_repeat_safe
    assert producer.layout.partition_ids == ("0", "1")
    assert _do(producer, identity, batches[:40]) == 0
    assert _do(producer, identity, batches) == len(_flat(batches[:40]))
    assert _do(producer, identity, batches) == len(_flat(batches))
    assert _stored(hub_service, producer.event_hub) == _flat(batches)


def test_the_next_epoch_begins_at_0_and_shuts_out_the_last(
    hub_service: HubService, producer: RepeatableProducer
) -> None:
    """Each micro-batch is an epoch: the next one's numbers are its own, and a straggler is refused."""
    first, second = _batches(5), _batches(5, first=100)
    late = producer.begin(ProducerIdentity(7, 0))
    late.submit("0", *_batch(*first[0]))
    late.flush()
    _do(producer, ProducerIdentity(7, 0), first)
    assert _do(producer, ProducerIdentity(7, 1), second) == 0
    late.submit("0", *_batch("straggler"))
    with late, pytest.raises(ProducerEpochStolenError):
        late.flush()
    with pytest.raises(ProducerEpochStolenError):
        _do(producer, ProducerIdentity(7, 0), first)
    assert _stored(hub_service, producer.event_hub) == _flat(first) + _flat(second)


@pytest.mark.parametrize(
    "again",
    [
        [["a"], ["X", "c"], ["d"]],
        [["a"], ["b"], ["c"], ["d"]],
        [["a", "b"], ["c"], ["d"]],
        [["a"]],
    ],
    ids=["another event", "cut in more", "cut otherwise", "fewer"],
)
@pytest.mark.slow
def test_other_events_under_the_same_identity_are_refused(
    hub_service: HubService, producer: RepeatableProducer, again: list[list[str]]
) -> None:
    """An upstream that is not deterministic is told, and nothing more is stored."""
    identity, batches = ProducerIdentity(7), [["a"], ["b", "c"]]
    _do(producer, identity, batches)
    with producer.begin(identity) as work:
        with pytest.raises(RepeatDiffersError):
            _send(work, again)
        if again != [["a"]]:  # of which all is stored: that it is too little is known at the end only
            with pytest.raises(RepeatDiffersError):
                _send(work, [["more"]])
    assert _stored(hub_service, producer.event_hub) == ["a", "b", "c"]


@pytest.mark.slow
def test_two_at_once_store_each_batch_once(hub_service: HubService, producer: RepeatableProducer) -> None:
    """A speculative attempt beside the first: any interleaving gives the work once, in order."""
    identity, batches = ProducerIdentity(9, 1), _batches(300)
    with (
        RepeatableProducer(hub_service.connection_string, producer.event_hub) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        done = [threads.submit(_do, each, identity, batches) for each in (producer, other)]
        for future in done:
            future.result(60)
    assert _stored(hub_service, producer.event_hub) == _flat(batches)


@pytest.mark.slow
@pytest.mark.parametrize("is_link_ended", [True, False], ids=["the link is ended", "a batch is refused"])
def test_a_token_that_runs_out_before_it_is_replaced_ends_no_work(
    hub_service: HubService, event_hub: str, monkeypatch: pytest.MonkeyPatch, *, is_link_ended: bool
) -> None:
    """As on a machine that has slept: the batch comes again under a new token, and is stored once.

    Whether the service ends the link or a batch meets the end of the token first, is chance else.
    """
    monkeypatch.setattr("tidegate.client.connector.refresh_delay_s", lambda expiry, now: 3600.0)
    if not is_link_ended:
        monkeypatch.setattr("tidegate.gateway.amqp.claims.ConnectionClaims._on_timer", lambda claims: None)
    full = ConnectionString.parse(hub_service.connection_string)
    credential = SharedKeyCredential(
        full.shared_access_key_name or "", full.shared_access_key or "", token_lifetime_s=4
    )
    batches: list[list[str]] = []
    with (
        RepeatableProducer(hub_service.connection_string, event_hub, credential=credential) as producer,
        producer.begin(ProducerIdentity(7, 3)) as work,
    ):
        until = time.monotonic() + 6
        while time.monotonic() < until:
            # With hardly a pause, so that there is nearly always something on its way, but never much: a slow
            # machine would be busy with it for minutes.
            batches += _batches(1, len(batches))
            work.submit("0", *_batch(*batches[-1]))
            if len(batches) % 50 == 0:
                work.flush()
        work.flush()
    assert _stored(hub_service, event_hub) == _flat(batches)


@pytest.mark.slow
def test_many_batches_that_wait_cost_no_more_each(
    producer: RepeatableProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at all that waits each time that one of them is settled."""

    looked_at: list[int] = []
    wait: Any = asyncio.wait

    async def noted(futures: Any, **named: Any) -> Any:
        looked_at.append(len(futures))
        return await wait(futures, **named)

    monkeypatch.setattr(asyncio, "wait", noted)
    batches = _batches(500)
    with producer.begin(ProducerIdentity(8)) as work:
        for batch in batches:
            work.submit("0", *_batch(*batch))
        assert work.flush() == 0
    assert max(looked_at, default=0) < 50


def test_an_unknown_partition_and_a_batch_too_large_are_refused(producer: RepeatableProducer) -> None:
    """Both by name; the second by the service, for who cuts the batches knows the limit."""
    with producer.begin(ProducerIdentity(1)) as work, pytest.raises(NotFoundError, match="no partition '5'"):
        work.submit("5", *_batch("a"))
    with producer.begin(ProducerIdentity(1)) as work:
        work.submit("0", *_batch("a" * (producer.layout.batch_bytes_max + 300)))
        with pytest.raises(EventTooLargeError):
            work.flush()


@pytest.mark.slow
def test_a_service_that_is_killed_costs_and_doubles_nothing() -> None:
    """SIGKILL while batches are under way, a start on the same log, and the work goes on by itself."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    batches = [[f"{number}-{'x' * 2000}"] * 3 for number in range(600)]
    kills = sorted(random.Random(seed).sample(range(len(batches)), 2))
    with HubProcess() as service:
        hub = service.create_hub(partition_count=1)
        with (
            RepeatableProducer(service.connection_string, hub, retry=RetryPolicy(retries_max=50)) as producer,
            producer.begin(ProducerIdentity(5)) as work,
        ):
            for number, bodies in enumerate(batches):
                if number in kills:
                    service.kill()
                    service.start()
                work.submit("0", *_batch(*bodies))
            work.flush()
        assert _stored(service, hub) == _flat(batches)
