"""The table of a lease's states against a store: every walk through it ends where the table says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.processor.lease import LEASE_STEPS, GroupKey, LeaseSnapshot, LeaseState, LeaseStep
from tidegate.processor.stores.memory import MemoryStore

GROUP = GroupKey("localhost", "hub", "$Default")
DURATION_S = 30.0


class Clock:
    """A store's clock."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def now_utc(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()


def test_every_state_is_entered_and_left() -> None:
    """But for the first, which no step leads to."""
    assert {start for start, _ in LEASE_STEPS} == set(LeaseState)
    assert {*LEASE_STEPS.values()} == set(LeaseState) - {LeaseState.ABSENT}


@given(st.lists(st.sampled_from(LeaseStep), max_size=30))
@pytest.mark.slow
def test_a_store_goes_where_the_table_says(steps: list[LeaseStep]) -> None:
    """Steps that the table lacks are left out: hosts do not try them."""
    asyncio.run(_walk(steps))


async def _walk(steps: list[LeaseStep]) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    state = LeaseState.ABSENT
    for step in steps:
        if (state, step) not in LEASE_STEPS:
            continue
        await _take(store, clock, await store.list_leases(GROUP), step)
        state = LEASE_STEPS[state, step]
        snapshot = await store.list_leases(GROUP)
        assert snapshot.state("0", DURATION_S) is state
        is_owned = state in (LeaseState.HELD, LeaseState.REQUESTED)
        assert snapshot.leases["0"].is_expired(snapshot.now, DURATION_S) is not is_owned


async def _take(store: MemoryStore, clock: Clock, snapshot: LeaseSnapshot, step: LeaseStep) -> None:
    lease = snapshot.leases.get("0")
    match step:
        case LeaseStep.ACQUIRE | LeaseStep.STEAL | LeaseStep.TAKE_OVER:
            asked = lease.requested_by if lease is not None else None
            assert await store.acquire(GROUP, "0", asked or "thief", expected=lease) is not None
        case LeaseStep.EXPIRE | LeaseStep.LAPSE:
            clock.now += timedelta(seconds=DURATION_S)
        case LeaseStep.REQUEST:
            assert lease is not None
            other = "who asks" if lease.owner != "who asks" else "who asks next"
            await store.request(GROUP, lease, other)
        case LeaseStep.RENEW:
            assert lease is not None
            clock.now += timedelta(seconds=DURATION_S / 3)
            assert await store.renew(GROUP, [lease])
        case LeaseStep.RELEASE | LeaseStep.HAND_OVER:
            assert lease is not None
            await store.release(GROUP, [lease])
