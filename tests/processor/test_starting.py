"""Where a partition starts: every kind of checkpoint against every state of the log."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.client import PartitionEnds
from tidegate.model.errors import EventHubReplacedError, PositionOutOfRangeError
from tidegate.model.position import EventPosition, PositionKind
from tidegate.processor import PositionLostPolicy, ProcessorCheckpoint
from tidegate.processor.pump.starting import decide_recovery, decide_start, find_loss

CREATED_AT_MS = 1_700_000_000_000
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIEST = EventPosition.earliest()


def _log(begin: int, until: int) -> PartitionEnds:
    return PartitionEnds("hub", "0", begin, until, str(until - 1), round(NOON.timestamp() * 1000))


def _at(sequence_number: int | None, created_at_ms: int | None = CREATED_AT_MS) -> ProcessorCheckpoint:
    return ProcessorCheckpoint("0", sequence_number, "7", 1_000, created_at_ms)


@pytest.mark.parametrize(
    ("initial", "position", "number"),
    [
        (EARLIEST, EARLIEST, 3),
        (EventPosition.latest(), EventPosition.from_sequence_number(9, is_inclusive=False), 10),
        (EventPosition.from_sequence_number(5), EventPosition.from_sequence_number(5), 5),
        (EventPosition.from_sequence_number(0), EventPosition.from_sequence_number(0), 3),
        (EventPosition.from_enqueued_time(NOON), EventPosition.from_enqueued_time(NOON), None),
    ],
)
def test_without_checkpoint_the_initial_position_counts(
    initial: EventPosition, position: EventPosition, number: int | None
) -> None:
    """Positions by number are known beforehand; those by time only when the first event is read."""
    start = decide_start(None, initial, _log(3, 10))
    assert (start.position, start.next_sequence_number) == (position, number)


def test_the_latest_of_an_empty_partition_is_its_first_event() -> None:
    """An event that comes between the question and the receiver is read."""
    start = decide_start(None, EventPosition.latest(), _log(0, 0))
    assert (start.position, start.next_sequence_number) == (EARLIEST, 0)


@pytest.mark.parametrize(
    ("checkpoint", "kind", "number", "is_strict"),
    [
        (_at(4), PositionKind.SEQUENCE_NUMBER, 5, True),
        (_at(-1), PositionKind.EARLIEST, 3, False),
        (_at(None), PositionKind.OFFSET, None, False),
        (ProcessorCheckpoint("0", None, None, 1_000), PositionKind.ENQUEUED_TIME, None, False),
    ],
)
def test_a_checkpoint_is_gone_on_from_by_the_best_it_has(
    checkpoint: ProcessorCheckpoint, kind: PositionKind, number: int | None, is_strict: bool
) -> None:
    """Sequence number before offset before time; only a number can tell that events are missing."""
    start = decide_start(checkpoint, EventPosition.latest(), _log(3, 10))
    assert (start.position.kind, start.next_sequence_number) == (kind, number)
    assert start.must_start_at_position is is_strict


@pytest.mark.parametrize("number", [2, 3, 9])
def test_what_the_log_holds_is_no_loss(number: int) -> None:
    """From the event before the first held to the last one: reading can go on."""
    assert find_loss(_at(number), _log(3, 10), event_hub_created_at_ms=CREATED_AT_MS) is None


@pytest.mark.parametrize("number", [-1, None])
def test_a_checkpoint_without_a_number_is_never_found_lost(number: int | None) -> None:
    """Nothing processed, or a position that only the service can judge."""
    assert find_loss(_at(number), _log(3, 10), event_hub_created_at_ms=CREATED_AT_MS) is None


@pytest.mark.parametrize(
    ("checkpoint", "log", "words"),
    [
        (_at(10), _log(3, 10), ["sequence number 11", "beyond the end", "holds 3 to 9"]),
        (_at(1), _log(3, 10), ["2 to 2", "retention", "holds 3 to 9"]),
        (_at(1), _log(10, 10), ["2 to 9", "retention", "empty", "gets 10"]),
    ],
)
def test_a_loss_names_what_was_wanted_and_what_is_there(
    checkpoint: ProcessorCheckpoint, log: PartitionEnds, words: list[str]
) -> None:
    """Whoever reads the error can decide without asking the service again."""
    loss = find_loss(checkpoint, log, event_hub_created_at_ms=CREATED_AT_MS)
    assert isinstance(loss, PositionOutOfRangeError)
    assert all(word in str(loss) for word in [*words, "'hub'", "Partition 0"])


def test_a_checkpoint_of_another_hub_of_this_name_is_told_apart() -> None:
    """Its number may lie within the log and nevertheless means another event."""
    loss = find_loss(_at(4), _log(3, 10), event_hub_created_at_ms=CREATED_AT_MS + 1)
    assert isinstance(loss, EventHubReplacedError)
    unknown = find_loss(_at(4, None), _log(3, 10), event_hub_created_at_ms=CREATED_AT_MS + 1)
    assert unknown is None, "a store that does not keep the hub's age cannot tell"


@pytest.mark.parametrize(
    ("policy", "log", "number", "offset"),
    [
        (PositionLostPolicy.EARLIEST, _log(3, 10), 2, None),
        (PositionLostPolicy.LATEST, _log(3, 10), 9, "9"),
        (PositionLostPolicy.EARLIEST, _log(10, 10), 9, "9"),
        (PositionLostPolicy.LATEST, _log(0, 0), -1, None),
    ],
)
def test_after_a_loss_the_checkpoint_is_where_reading_goes_on(
    policy: PositionLostPolicy, log: PartitionEnds, number: int, offset: str | None
) -> None:
    """The next start finds a checkpoint without loss, and an offset only where it is known."""
    recovery = decide_recovery(policy, log, event_hub_created_at_ms=CREATED_AT_MS)
    assert (recovery.checkpoint.sequence_number, recovery.checkpoint.offset) == (number, offset)
    assert recovery.start.next_sequence_number == number + 1
    assert find_loss(recovery.checkpoint, log, event_hub_created_at_ms=CREATED_AT_MS) is None
