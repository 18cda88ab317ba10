"""Throughput units: never more in than they allow, no longer refused than said, egress never refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Throughput
from tidegate.model.errors import InvalidArgumentError, ServerBusyError
from tidegate.model.limits import (
    EGRESS_BYTES_PER_UNIT,
    EGRESS_EVENTS_PER_UNIT,
    EVENT_BYTES_MAX,
    INGRESS_BYTES_PER_UNIT,
    INGRESS_EVENTS_PER_UNIT,
    THROUGHPUT_UNITS_MAX,
)
from tidegate.server.opening import open_broker

# A batch (events, bytes), and the seconds that pass before it comes.
_OFFER = st.tuples(
    st.integers(1, 3000), st.integers(1, EVENT_BYTES_MAX), st.floats(0.0, 2.0, allow_nan=False)
)
_UNITS = st.integers(1, 4)


def _admit(throughput: Throughput, events: int, size: int) -> None:
    """Offer a batch to a partition that has got nothing yet: the namespace's limits apply alone."""
    throughput.admit_ingress(throughput.partition_unit(), events, size)


def _delay_s(throughput: Throughput, events: int, size: int) -> float:
    return throughput.egress_delay_s(throughput.partition_unit(), events, size)


def _retry_after_s(throughput: Throughput, events: int, size: int) -> float | None:
    """Offer a batch; None where it was admitted."""
    try:
        _admit(throughput, events, size)
    except ServerBusyError as error:
        return error.retry_after_s or 0.0
    return None


def _is_admitted(throughput: Throughput, events: int, size: int) -> bool:
    return _retry_after_s(throughput, events, size) is None


def test_without_units_everything_passes(clock: SetClock) -> None:
    """Off is the default, and costs no waiting and no refusal."""
    throughput = Throughput(clock)
    for _ in range(1000):
        _admit(throughput, 10_000, EVENT_BYTES_MAX)
        assert _delay_s(throughput, 10_000, EVENT_BYTES_MAX) == 0.0
    assert throughput.statistics().throttled_requests == 0


@given(units=_UNITS, offers=st.lists(_OFFER, max_size=60))
@pytest.mark.slow
def test_never_more_in_than_rate_and_burst(units: int, offers: list[tuple[int, int, float]]) -> None:
    """Over every stretch of time: at most rate * time + max(a second of rate, the largest batch)."""
    clock = SetClock()
    throughput = Throughput(clock, units)
    admitted: list[tuple[float, int, int]] = []
    for events, size, pause_s in offers:
        clock.advance(seconds=pause_s)
        if _is_admitted(throughput, events, size):
            admitted.append((clock.monotonic(), events, size))
    for begin in range(len(admitted)):
        for end in range(begin, len(admitted)):
            elapsed_s = admitted[end][0] - admitted[begin][0]
            for column, per_unit in ((1, INGRESS_EVENTS_PER_UNIT), (2, INGRESS_BYTES_PER_UNIT)):
                amounts = [int(row[column]) for row in admitted[begin : end + 1]]
                rate = units * per_unit
                # The clock counts microseconds: so much may pass unseen at either end.
                assert sum(amounts) <= rate * (elapsed_s + 2e-6) + max(rate, *amounts)


@pytest.mark.slow
@given(units=_UNITS, offers=st.lists(_OFFER, max_size=40), last=_OFFER)
def test_who_waits_as_told_is_admitted(
    units: int, offers: list[tuple[int, int, float]], last: tuple[int, int, float]
) -> None:
    """A refused caller that comes back alone after ``retry_after_s`` gets in, whatever came before."""
    clock = SetClock()
    throughput = Throughput(clock, units)
    for events, size, pause_s in (*offers, last):
        clock.advance(seconds=pause_s)
        retry_after_s = _retry_after_s(throughput, events, size)
        if retry_after_s is not None:
            assert retry_after_s > 0
            clock.advance(seconds=retry_after_s)
            _admit(throughput, events, size)


@pytest.mark.slow
@given(units=_UNITS, offers=st.lists(_OFFER, max_size=60))
def test_a_patient_producer_gets_all_of_its_units(units: int, offers: list[tuple[int, int, float]]) -> None:
    """No more waiting than needed: what is told to wait for is used up to a rounding of milliseconds."""
    clock = SetClock()
    throughput = Throughput(clock, units)
    start, waits = clock.monotonic(), 0
    for events, size, _ in offers:
        retry_after_s = _retry_after_s(throughput, events, size)
        if retry_after_s is not None:
            clock.advance(seconds=retry_after_s)
            _admit(throughput, events, size)
            waits += 1
    # Each batch costs the slower of its two sums at most.
    needed_s = sum(
        max(events / INGRESS_EVENTS_PER_UNIT, size / INGRESS_BYTES_PER_UNIT) / units
        for events, size, _ in offers
    )
    assert clock.monotonic() - start <= needed_s + 0.003 * waits + 1e-3


@given(units=_UNITS, sizes=st.lists(st.integers(1, EVENT_BYTES_MAX), min_size=1, max_size=80))
def test_receivers_together_get_no_more_than_the_units(units: int, sizes: list[int]) -> None:
    """Three receivers that wait as they are told: rate * time, a second of it, and a slice each at first."""
    clock = SetClock()
    throughput = Throughput(clock, units)
    start = clock.monotonic()
    resume_at = [start] * 3
    sent = 0
    for size in sizes:
        receiver = min(range(3), key=lambda index: resume_at[index])
        if resume_at[receiver] > clock.monotonic():
            clock.advance(seconds=resume_at[receiver] - clock.monotonic() + 2e-6)
        sent += size
        resume_at[receiver] = clock.monotonic() + _delay_s(throughput, 1, size)
        rate = units * EGRESS_BYTES_PER_UNIT
        assert sent <= rate * (clock.monotonic() - start + 1e-4) + rate + 3 * EVENT_BYTES_MAX


def test_receivers_take_turns(clock: SetClock) -> None:
    """Of receivers that always have something, each gets its share: the first is not served alone."""
    throughput = Throughput(clock, 1)
    resume_at, sent = [clock.monotonic()] * 4, [0] * 4
    for _ in range(400):
        receiver = min(range(4), key=lambda index: resume_at[index])
        if resume_at[receiver] > clock.monotonic():
            clock.advance(seconds=resume_at[receiver] - clock.monotonic() + 2e-6)
        sent[receiver] += 1
        resume_at[receiver] = clock.monotonic() + _delay_s(throughput, 100, 50_000)
    # The first second is free for all; the rest goes round.
    assert max(sent) - min(sent) <= 2 * EGRESS_BYTES_PER_UNIT // 50_000


def test_one_unit_in_numbers(clock: SetClock) -> None:
    """1,000 events or 1 MB in, 4,096 events or 2 MB out, in a second; a fifth comes back in a fifth."""
    throughput = Throughput(clock, 1)
    assert [_is_admitted(throughput, 500, 1) for _ in range(3)] == [True, True, False]
    clock.advance(seconds=0.2)
    assert [_is_admitted(throughput, 100, 1) for _ in range(3)] == [True, True, False]
    clock.advance(seconds=10)
    assert [_is_admitted(throughput, 1, EVENT_BYTES_MAX // 2) for _ in range(3)] == [True, True, False]
    assert _delay_s(throughput, EGRESS_EVENTS_PER_UNIT, 1) == 0.0
    assert _delay_s(throughput, EGRESS_EVENTS_PER_UNIT // 2, 1) == pytest.approx(0.5)
    clock.advance(seconds=10)
    assert _delay_s(throughput, 1, EGRESS_BYTES_PER_UNIT) == 0.0
    assert _delay_s(throughput, 1, EGRESS_BYTES_PER_UNIT) == pytest.approx(1.0)
    clock.advance(seconds=10)
    assert _delay_s(throughput, 0, 0) == 0.0


def test_the_largest_batches_pass_one_unit(clock: SetClock) -> None:
    """More events than the unit has in a second: not refused for ever, but paid for afterwards."""
    throughput = Throughput(clock, 1)
    _admit(throughput, 5000, EVENT_BYTES_MAX)
    with pytest.raises(ServerBusyError) as caught:
        _admit(throughput, 1000, 1)
    assert caught.value.retry_after_s == pytest.approx(5.0, abs=0.01)
    assert "50002" in str(caught.value)


def test_a_partition_uses_one_unit_at_most(clock: SetClock) -> None:
    """However many there are; what one may not use, another may, and none waits for another's."""
    throughput = Throughput(clock, 4)
    first, second = throughput.partition_unit(), throughput.partition_unit()
    throughput.admit_ingress(first, INGRESS_EVENTS_PER_UNIT, 1)
    with pytest.raises(ServerBusyError, match=r"partition is being throttled.*more partitions") as caught:
        throughput.admit_ingress(first, INGRESS_EVENTS_PER_UNIT // 2, 1)
    assert caught.value.retry_after_s == pytest.approx(0.5, abs=0.01)
    throughput.admit_ingress(second, 1, INGRESS_BYTES_PER_UNIT)
    assert throughput.egress_delay_s(first, 0, EGRESS_BYTES_PER_UNIT) == 0.0
    assert throughput.egress_delay_s(first, 0, EGRESS_BYTES_PER_UNIT) == pytest.approx(1.0)
    assert throughput.egress_delay_s(second, EGRESS_EVENTS_PER_UNIT, 1) == 0.0
    clock.advance(seconds=0.5)
    throughput.admit_ingress(first, INGRESS_EVENTS_PER_UNIT // 2, 1)
    throughput.set_units(None)
    throughput.admit_ingress(first, INGRESS_EVENTS_PER_UNIT, EVENT_BYTES_MAX)


def test_refusals_are_counted_and_cost_nothing(clock: SetClock) -> None:
    """Counters of what was refused; a thousand refusals do not put off the next admission."""
    throughput = Throughput(clock, 1)
    _admit(throughput, 1000, 1)
    for _ in range(1000):
        assert not _is_admitted(throughput, 10, 7)
    clock.advance(seconds=0.011)
    _admit(throughput, 10, 7)
    _delay_s(throughput, 0, 2 * EGRESS_BYTES_PER_UNIT)
    statistics = throughput.statistics()
    assert (statistics.throttled_requests, statistics.throttled_events) == (1000, 10_000)
    assert (statistics.throttled_bytes, statistics.delayed_deliveries) == (7000, 1)


@pytest.mark.slow
@given(changes=st.lists(st.tuples(st.none() | _UNITS, st.floats(0.0, 1.0), st.integers(1, 999)), max_size=30))
def test_changing_units_gives_nothing_away(changes: list[tuple[int | None, float, int]]) -> None:
    """While limited, each stretch admits what its own rate allows; what is owed stays owed."""
    clock = SetClock()
    throughput = Throughput(clock, 1)
    allowed, admitted = float(INGRESS_EVENTS_PER_UNIT), 0
    for units, pause_s, events in changes:
        before = clock.monotonic()
        clock.advance(seconds=pause_s)
        allowed += INGRESS_EVENTS_PER_UNIT * (throughput.units or 0) * (clock.monotonic() - before + 2e-6)
        throughput.set_units(units)
        if units is None:
            # Limits that come back begin anew.
            allowed, admitted = 0.0, 0
            throughput.set_units(2)
            allowed += 2 * INGRESS_EVENTS_PER_UNIT
        while _is_admitted(throughput, events, 1):
            admitted += events
        assert admitted <= allowed + 1e-6


def test_a_clock_that_goes_back_is_no_harm(clock: SetClock) -> None:
    """A monotonic clock does not; if one did, nothing would be taken away or given twice."""
    throughput = Throughput(clock, 1)
    _admit(throughput, 500, 1)
    clock.advance(seconds=-5)
    _admit(throughput, 500, 1)
    clock.advance(seconds=5)
    assert not _is_admitted(throughput, 100, 1)


@pytest.mark.parametrize("units", [0, -1, THROUGHPUT_UNITS_MAX + 1])
async def test_units_have_a_range(broker: Broker, units: int) -> None:
    """And a number out of it changes nothing, in memory or on disk."""
    await broker.set_throughput_units(3)
    with pytest.raises(InvalidArgumentError):
        await broker.set_throughput_units(units)
    assert broker.throughput.units == 3


@pytest.mark.slow
async def test_units_are_set_at_run_time_and_survive_a_restart(tmp_path: Path, clock: SetClock) -> None:
    """All hubs share them; a refused batch is not stored, is counted, and gets in after its wait."""
    broker = await open_broker(tmp_path, clock=clock)
    first, second = [await broker.create_event_hub(name, partition_count=1) for name in ("first", "second")]
    partition = second.partition("0")
    await broker.set_throughput_units(1)
    await first.partition("0").append(b"x" * 1000, [1] * 1000)
    with pytest.raises(ServerBusyError) as caught:
        await partition.append(b"y", [1])
    assert partition.next_sequence_number == 0
    assert caught.value.retry_after_s is not None
    clock.advance(seconds=caught.value.retry_after_s)
    await partition.append(b"y", [1])
    statistics = second.statistics()
    assert (statistics.incoming_requests, statistics.throttled_requests) == (2, 1)
    assert statistics.incoming_events == 1
    assert broker.statistics().incoming_events == 1001
    await broker.delete_event_hub("first")
    assert broker.statistics().incoming_events == 1001
    await broker.close()
    broker = await open_broker(tmp_path, clock=clock)
    assert broker.throughput.units == 1
    await broker.set_throughput_units(None)
    await broker.close()
    broker = await open_broker(tmp_path, clock=clock)
    assert broker.throughput.units is None
    await broker.close()
