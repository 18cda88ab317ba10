"""The overview's oldest lag: the worst there may be, and no figure from before the database hung."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from tidegate.console.consumers import groups
from tidegate.console.consumers.groups import Consumers, FoundGroups
from tidegate.console.consumers.progress import HubLog, Place
from tidegate.console.overview.page import OverviewPages, oldest_lag_of
from tidegate.model.hub_properties import PartitionEnds
from tidegate.processor.group_view import GroupView, Lag
from tidegate.processor.lease import LeaseSnapshot
from tidegate.sql import ConsumerKey
from tidegate.transport.tasks import TaskOwner


def _group(name: str, seconds: float | None, events: int | None, *, is_hub_here: bool = True) -> Any:
    lag = Lag(events, seconds, 0)
    return SimpleNamespace(
        event_hub="h", consumer_group=name, lag=lag, is_hub_here=is_hub_here, stalled_count=0
    )


READ, LATE, LOST = _group("read", 0.0, 0), _group("late", 90.0, 7), _group("lost", None, None)


def test_the_worst_group_counts_and_unknown_is_not_zero() -> None:
    """A group that is not known is not taken for one that has read everything."""
    elsewhere = _group("other", None, None, is_hub_here=False)
    assert oldest_lag_of([elsewhere]) == ("–", "no consumer group keeps a checkpoint")
    assert oldest_lag_of([READ, LATE, elsewhere]) == ("1 min 30 s", "late of h, 7 events")
    assert oldest_lag_of([READ, LOST]) == ("unknown", "not known of lost of h")
    assert oldest_lag_of([LOST, LATE, LOST]) == ("at least 1 min 30 s", "not known of lost of h and 1 more")
    # There may be more groups in a database that is away.
    assert oldest_lag_of([], "away") == oldest_lag_of([READ], "away") == ("unknown", "away")
    assert oldest_lag_of([READ, LATE, LOST], "away") == ("at least 1 min 30 s", "away")


async def test_figures_do_not_outlast_a_database_that_hangs() -> None:
    """Numbers from before looked like those of now."""
    now_s, may_answer = 0.0, asyncio.Event()
    may_answer.set()

    async def groups(*_: object, **__: object) -> FoundGroups:
        await may_answer.wait()
        return FoundGroups([SimpleNamespace(summary=LATE)], (), {})  # type: ignore[list-item]

    clock = SimpleNamespace(monotonic=lambda: now_s)
    async with TaskOwner("test") as tasks:
        console, consumers = SimpleNamespace(clock=clock, tasks=tasks), SimpleNamespace(groups=groups)
        pages = OverviewPages(console, None, lambda: consumers, None)  # type: ignore[arg-type, return-value]
        assert (await pages._processing()).oldest_lag == "1 min 30 s"
        may_answer.clear()
        now_s = 6.0
        assert (await pages._processing()).oldest_lag == "1 min 30 s"
        now_s = 16.0
        assert (await pages._processing()).oldest_lag == "unknown"


async def test_a_hub_whose_checkpoints_move_all_the_time_leaves_lookups_to_others() -> None:
    """Its groups came first, and took all that one query looks up: how long others' events wait was never
    found."""

    async def read(*_: object, **__: object) -> list[Any]:
        return [SimpleNamespace(enqueued_time_ms=1_000)]

    event_hub = SimpleNamespace(partition=lambda _: SimpleNamespace(read=read))
    parts = SimpleNamespace(broker=SimpleNamespace(event_hub=lambda _: event_hub), clock=None)
    consumers = Consumers(parts, {}, None)  # type: ignore[arg-type]
    now, logs = datetime(2026, 9, 1, tzinfo=UTC), {"one": _log("one", 100), "two": _log("two", 1)}
    nothing = GroupView(LeaseSnapshot({}, now), {})
    await consumers._find_unread({Place(ConsumerKey(hub, "g"), ""): nothing for hub in logs}, logs, now)
    assert ("two", 0, "0", 3) in consumers._unread
    assert len(consumers._unread) == groups._UNREAD_LOOKUPS_MAX


def _log(name: str, count: int) -> HubLog:
    ends: dict[str, PartitionEnds | None] = {
        str(each): PartitionEnds(
            event_hub=name,
            partition_id=str(each),
            begin_sequence_number=3,
            next_sequence_number=5,
            last_enqueued_offset="4",
            last_enqueued_time_ms=1_000,
        )
        for each in range(count)
    }
    return HubLog(name, 0, frozenset({"g"}), ends)
