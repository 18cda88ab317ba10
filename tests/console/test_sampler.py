"""The console's rates: what the sampler makes of the broker's counters, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.busy_threads import busy_threads
from tests.support.clocks import SetClock

from tidegate.broker import Broker, EventHub
from tidegate.console.hubs.recorder import ChartRecorder
from tidegate.console.hubs.sampler import HISTORY_SAMPLES, RECENT_SAMPLES, Rates, Sampler
from tidegate.server.opening import open_broker


@pytest.fixture
def clock() -> SetClock:
    """Time of broker and sampler."""
    return SetClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: SetClock) -> AsyncIterator[Broker]:
    """A namespace with a hub of two partitions."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.create_event_hub("hub", partition_count=2)
    yield broker
    await broker.close()


async def _append(event_hub: EventHub, count: int, partition_id: str = "0") -> None:
    event = b"\x00\x53\x75\xa0\x01x"
    await event_hub.partition(partition_id).append(event * count, [len(event)] * count)


async def test_rates_are_what_came_since_the_last_look(
    broker: Broker, clock: SetClock, tmp_path: Path
) -> None:
    """By the time that has passed, a second or not; nothing is known before the second look."""
    sampler, event_hub = Sampler(broker, clock, tmp_path), broker.event_hub("hub")
    sampler.look()
    assert not sampler.history
    await _append(event_hub, 30)
    event_hub.partition("1").count_delivered(8, 800)
    clock.advance(2.0)
    sampler.look()
    rates = sampler.hub(event_hub).rates
    assert (rates.incoming_events, rates.outgoing_events, rates.outgoing_bytes) == (15.0, 4.0, 400.0)
    assert sampler.history[-1].rates == rates
    assert sampler.history[-1].time_utc == clock.now_utc()
    clock.advance(1.0)
    sampler.look()
    assert sampler.hub(event_hub).rates == Rates()
    assert list(sampler.hub(event_hub).recent) == [15.0, 0.0]


async def test_a_hub_that_comes_or_goes_leaves_no_jump(
    broker: Broker, clock: SetClock, tmp_path: Path
) -> None:
    """A deleted hub takes its counts along, and one made under its name starts anew."""
    sampler = Sampler(broker, clock, tmp_path)
    sampler.look()
    await _append(broker.event_hub("hub"), 100)
    clock.advance(1.0)
    sampler.look()
    await broker.delete_event_hub("hub")
    made = await broker.create_event_hub("hub", partition_count=1)
    assert sampler.hub(made).rates == Rates()
    clock.advance(1.0)
    sampler.look()
    assert sampler.history[-1].rates == Rates()
    await _append(made, 7)
    clock.advance(1.0)
    sampler.look()
    assert sampler.hub(made).rates.incoming_events == 7.0


async def test_partitions_are_looked_at_while_somebody_does(
    broker: Broker, clock: SetClock, tmp_path: Path
) -> None:
    """Their rates are means of ten seconds; a minute after the last question nothing is kept of them."""
    sampler, event_hub = Sampler(broker, clock, tmp_path), broker.event_hub("hub")
    sampler.look()
    assert sampler.partition_rate(event_hub, 1) is None
    sampler.watch_partitions(event_hub)
    for _ in range(5):
        sampler.look()
        await _append(event_hub, 10, "1")
        clock.advance(1.0)
    sampler.look()
    assert sampler.partition_rate(event_hub, 0) == 0.0
    assert sampler.partition_rate(event_hub, 1) == 10.0
    clock.advance(61.0)
    sampler.look()
    assert sampler.partition_rate(event_hub, 1) is None


async def test_what_is_kept_is_bounded(broker: Broker, clock: SetClock, tmp_path: Path) -> None:
    """However long the service runs."""
    sampler, event_hub = Sampler(broker, clock, tmp_path), broker.event_hub("hub")
    for _ in range(HISTORY_SAMPLES + 50):
        sampler.watch_partitions(event_hub)
        sampler.look()
        clock.advance(1.0)
    samples = sampler.hub(event_hub)
    assert (len(sampler.history), len(samples.recent)) == (HISTORY_SAMPLES, RECENT_SAMPLES)
    assert len(samples.partitions) == 11


async def test_the_rate_of_an_added_partition(broker: Broker, clock: SetClock, tmp_path: Path) -> None:
    """Not known until all samples have the partition; the others' rates go on."""
    sampler, event_hub = Sampler(broker, clock, tmp_path), broker.event_hub("hub")
    sampler.look()
    sampler.watch_partitions(event_hub)
    sampler.look()
    await broker.update_event_hub("hub", partition_count=3)
    await _append(event_hub, 10, "0")
    await _append(event_hub, 20, "2")
    clock.advance(1.0)
    sampler.look()
    assert [sampler.partition_rate(event_hub, index) for index in range(3)] == [10.0, 0.0, None]
    for _ in range(10):
        clock.advance(1.0)
        sampler.look()
    assert sampler.partition_rate(event_hub, 2) == 0.0


async def test_the_disk_is_used_beside_busy_pages(broker: Broker, clock: SetClock, tmp_path: Path) -> None:
    """Free space, and the charts' past, do not wait behind forms that compute."""
    with busy_threads():
        sampler = Sampler(broker, clock, tmp_path)
        await sampler._look_at_disk()
        assert sampler.disk.free_bytes is not None
        recorder = ChartRecorder(broker, sampler, clock, tmp_path / "charts")
        await recorder.note()
        await recorder.save()
        await recorder.load()
        assert (tmp_path / "charts").exists()
