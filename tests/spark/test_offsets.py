"""The journalled offset and the arithmetic of what a micro-batch reads."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import InvalidArgumentError, PositionOutOfRangeError
from tidegate.model.hub_properties import PartitionEnds
from tidegate.spark.source.offsets import (
    PIECES_MAX,
    TASK_EVENTS,
    Loss,
    PartitionRange,
    StreamOffset,
    TaskLayout,
    added_losses,
    clip_lost_events,
    end_of_micro_batch,
    pack_ranges,
    ranges_between,
    split_ranges,
    spread_limit,
    task_count,
)


def _ends(begin: int, until: int) -> PartitionEnds:
    return PartitionEnds("hub", "0", begin, until)


def test_the_json_form_is_fixed() -> None:
    """Checkpoint directories outlive releases: this text must go on being written and read."""
    text = '{"version": 1, "eventHubCreatedAtMs": 1767225600000, "partitions": {"0": 5, "1": 0}}'
    offset = StreamOffset({"0": 5, "1": 0}, 1767225600000)
    assert json.dumps(offset.to_json()) == text
    assert StreamOffset.from_json(json.loads(text)) == offset
    lossy = '{"version": 1, "eventHubCreatedAtMs": 5, "partitions": {"0": 5}, "lostEvents": {"0": 3}}'
    assert json.dumps(StreamOffset({"0": 5}, 5, {"0": 3}).to_json()) == lossy
    assert StreamOffset.from_json(json.loads(lossy)) == StreamOffset({"0": 5}, 5, {"0": 3})
    cut = StreamOffset({"0": 5}, 5, layout=TaskLayout(3, True))
    assert StreamOffset.from_json(json.loads(json.dumps(cut.to_json()))) == cut


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 1},
        {"version": 1, "partitions": {"0": 1}},
        {"version": 1, "eventHubCreatedAtMs": 1, "partitions": {"0": "1"}},
        {"version": "1", "eventHubCreatedAtMs": 1, "partitions": {}},
        {"version": 1, "eventHubCreatedAtMs": 1, "partitions": {}, "lostEvents": [1]},
        {"version": 1, "eventHubCreatedAtMs": 1, "partitions": {}, "tasks": 2},
        {"version": 1, "eventHubCreatedAtMs": 1, "partitions": {}, "tasks": {"max": 0, "areSplit": False}},
        {"topic": {"0": 3}},
    ],
)
def test_an_offset_of_something_else_is_refused(value: dict[str, object]) -> None:
    """A checkpoint directory of another source gives one clear error, not a KeyError."""
    with pytest.raises(InvalidArgumentError, match="not of the format"):
        StreamOffset.from_json(value)


def test_an_offset_of_a_newer_version_says_so() -> None:
    """Going back to an older Tidegate is told from damage."""
    with pytest.raises(InvalidArgumentError, match="version 2"):
        StreamOffset.from_json({"version": 2, "ranges": []})


def test_a_limit_is_shared_by_backlog() -> None:
    """A partition with three times the backlog gets three times the events."""
    assert spread_limit({"0": 3000, "1": 1000, "2": 0}, 400) == {"0": 300, "1": 100, "2": 0}


def test_a_small_backlog_does_not_starve() -> None:
    """One event behind a million is read in the next micro-batch."""
    shares = spread_limit({"0": 1_000_000, "1": 1, "2": 1}, 10)
    assert shares == {"0": 8, "1": 1, "2": 1}


def test_shares_use_the_limit_and_never_exceed_it() -> None:
    """For any backlogs: the sum is the limit or the whole backlog, and no share exceeds its backlog."""
    for seed in range(500):
        rng = random.Random(seed)
        backlogs = {str(key): rng.choice([0, 1, 7, 1000, 10**9]) for key in range(rng.randint(1, 40))}
        limit = rng.randint(1, 5000)
        shares = spread_limit(backlogs, limit)
        assert sum(shares.values()) == min(limit, sum(backlogs.values())), f"seed {seed}"
        assert all(0 <= shares[key] <= backlogs[key] for key in backlogs), f"seed {seed}"


def test_ranges_are_half_open_and_never_empty() -> None:
    """What one micro-batch ends with, the next begins with; idle partitions make no range."""
    assert ranges_between({"0": 5, "1": 7}, {"0": 9, "1": 7, "2": 3}) == [
        PartitionRange("0", 5, 9),
        PartitionRange("2", 0, 3),
    ]


def test_a_micro_batch_ends_within_its_limit() -> None:
    """Half of the backlog fits: each partition gets its half, and an idle one stays where it is."""
    bounds = {"0": _ends(0, 100), "1": _ends(0, 300), "2": _ends(5, 5)}
    start = {"0": 0, "1": 100, "2": 5}
    ends = end_of_micro_batch(start, bounds, events_max=150, until=None, fail_on_data_loss=True)
    assert ends == {"0": 50, "1": 200, "2": 5}
    ends = end_of_micro_batch(start, bounds, events_max=None, until=None, fail_on_data_loss=True)
    assert ends == {"0": 100, "1": 300, "2": 5}


def test_available_now_stops_where_it_began() -> None:
    """Events that arrive while a query drains the hub are left to the next query; a new partition, too."""
    bounds = {"0": _ends(0, 500), "1": _ends(0, 10)}
    until = {"0": 100}
    assert end_of_micro_batch({"0": 90}, bounds, events_max=None, until=until, fail_on_data_loss=True) == {
        "0": 100,
        "1": 0,
    }
    # Restarted beyond the target (events were read in between): never backwards.
    ends = end_of_micro_batch({"0": 120}, bounds, events_max=None, until=until, fail_on_data_loss=True)
    assert ends["0"] == 120


def test_deleted_events_do_not_use_up_the_limit() -> None:
    """After data loss the micro-batch still makes progress in what is there."""
    bounds = {"0": _ends(1000, 1500)}
    ends = end_of_micro_batch({"0": 10}, bounds, events_max=100, until=None, fail_on_data_loss=False)
    assert ends == {"0": 1100}


def test_a_hub_that_lost_its_end_is_an_error() -> None:
    """A log that was restored from an old copy must not be read as if nothing had happened."""
    bounds = {"0": _ends(0, 50)}
    with pytest.raises(PositionOutOfRangeError, match="ends at 50"):
        end_of_micro_batch({"0": 80}, bounds, events_max=None, until=None, fail_on_data_loss=True)
    ends = end_of_micro_batch({"0": 80}, bounds, events_max=None, until=None, fail_on_data_loss=False)
    assert ends == {"0": 80}


def test_packing_keeps_partitions_whole_and_tasks_even() -> None:
    """The exactly-once sink needs a partition in one task; a slow task holds up the whole micro-batch."""
    ranges = [PartitionRange(str(index), 0, 100 + index) for index in range(16)]
    tasks = pack_ranges(ranges, 2)
    assert len(tasks) == 2
    assert (
        sorted((item for task in tasks for item in task), key=lambda item: int(item.partition_id)) == ranges
    )
    loads = [sum(item.event_count for item in task) for task in tasks]
    assert max(loads) - min(loads) <= 116
    assert pack_ranges([], 4) == []
    assert len(pack_ranges(ranges[:3], 8)) == 3


def test_lost_events_are_an_error_that_names_them() -> None:
    """By default a query stops rather than to skip events that retention deleted."""
    ranges = [PartitionRange("0", 5, 50), PartitionRange("1", 5, 50)]
    bounds = {"0": _ends(5, 50), "1": _ends(20, 50)}
    with pytest.raises(
        PositionOutOfRangeError, match=r"Partition 1: sequence number 5 .* available one is 20"
    ):
        clip_lost_events(ranges, bounds, fail_on_data_loss=True)
    readable, losses = clip_lost_events(ranges, bounds, fail_on_data_loss=False)
    assert readable == [PartitionRange("0", 5, 50), PartitionRange("1", 20, 50)]
    assert losses == [Loss("1", 5, 20, 15)]
    assert added_losses({"0": 1, "1": 2}, losses) == {"0": 1, "1": 17}


def test_a_range_that_is_lost_whole_is_left_out() -> None:
    """Nothing is left to read of it, and an empty range would be an error of its own."""
    readable, losses = clip_lost_events(
        [PartitionRange("0", 5, 10)], {"0": _ends(20, 50)}, fail_on_data_loss=False
    )
    assert (readable, losses) == ([], [Loss("0", 5, 20, 5)])


_RANGES = st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), min_size=0, max_size=12).map(
    lambda items: [PartitionRange(str(key), start, start + count) for key, (start, count) in enumerate(items)]
)


@given(_RANGES, st.integers(1, 40))
@pytest.mark.slow
def test_pieces_cover_each_range_once_and_in_order(ranges: list[PartitionRange], tasks_max: int) -> None:
    """No event is left out or read twice; never more readers of a partition than it allows."""
    pieces = split_ranges(ranges, tasks_max)
    for item in ranges:
        mine = [piece for piece in pieces if piece.partition_id == item.partition_id]
        assert mine[0].start_sequence_number == item.start_sequence_number
        assert mine[-1].until_sequence_number == item.until_sequence_number
        for before, after in pairwise(mine):
            assert before.until_sequence_number == after.start_sequence_number
        assert [piece.is_last_piece for piece in mine] == [False] * (len(mine) - 1) + [True]
        assert len(mine) <= PIECES_MAX
        assert len(mine) == 1 or all(piece.event_count >= TASK_EVENTS for piece in mine)
    tasks = pack_ranges(pieces, tasks_max)
    assert len(tasks) <= tasks_max
    assert sorted(map(repr, pieces)) == sorted(repr(piece) for task in tasks for piece in task)


@given(st.integers(0, 10**8), st.integers(1, 2000), st.integers(0, 2000))
def test_tasks_by_events(event_count: int, tasks_min: int, more: int) -> None:
    """Never fewer than a small one has, nor more than is allowed; those beyond have enough to do."""
    tasks_max = tasks_min + more
    count = task_count(event_count, tasks_min=tasks_min, tasks_max=tasks_max)
    assert tasks_min <= count <= tasks_max
    assert count == tasks_min or event_count >= count * TASK_EVENTS
    assert count == tasks_max or event_count < (count + 1) * TASK_EVENTS
    assert task_count(event_count, tasks_min=tasks_max, tasks_max=tasks_max) == tasks_max


def test_a_skewed_partition_is_shared_out() -> None:
    """One partition with nearly all events would keep one core busy and the others waiting."""
    ranges = [PartitionRange("0", 100, 400_100), PartitionRange("1", 0, 20_000)]
    tasks = pack_ranges(split_ranges(ranges, 4), 4)
    assert [sum(piece.event_count for piece in task) for task in tasks] == [120_000] + [100_000] * 3
    whole = pack_ranges(ranges, 4)
    assert sorted(sum(piece.event_count for piece in task) for task in whole) == [20_000, 400_000]
