"""Reads a dead letter's event back: from the dead letter's copy, or from the log by its pointer.

The copy is the whole event, so a dead letter that has one needs no log. An event of the log counts as found
only if it has the dead letter's enqueued time: a recreated hub has other events with the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.model.errors import NotFoundError, PositionOutOfRangeError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.core.values import DeadLetter, EventReader
from tidegate.wire.event_codec import decode_event


def read_back(reader: EventReader, event_hub: str, page: Sequence[DeadLetter]) -> dict[int, ReceivedEvent]:
    """The events of one partition's dead letters that still exist, by sequence number.

    Only those without a copy are read from the log. page: ascending, not empty.
    """
    found: dict[int, ReceivedEvent] = {}
    times_ms: dict[int, int] = {}
    for letter in page:
        event = event_of_copy(letter)
        if event is None:
            times_ms[letter.sequence_number] = letter.enqueued_time_ms
        else:
            found[letter.sequence_number] = event
    if times_ms:
        for event in _read_available(reader, event_hub, page[0].partition_id, list(times_ms)):
            if event.enqueued_time_ms == times_ms.get(event.sequence_number):
                found[event.sequence_number] = event
    return found


def find_event(letter: DeadLetter, reader: EventReader) -> ReceivedEvent:
    """The event of one dead letter: from its copy, else from the log by its pointer.

    Raises NotFoundError if the log no longer holds it and there is no copy.
    """
    try:
        found = read_back(reader, letter.event_hub, [letter]).get(letter.sequence_number)
    except NotFoundError:  # the hub or the partition itself is gone
        found = None
    if found is None:
        raise NotFoundError(
            f"The log no longer holds event {letter.sequence_number} of partition {letter.partition_id} "
            f"of {letter.event_hub}, and its dead letter has no copy of it.",
            next_step="Discard the dead letter. Copied payloads would outlive the log.",
        )
    return found


def event_of_copy(letter: DeadLetter) -> ReceivedEvent | None:
    """The event from the dead letter's copy; None: only the log has it."""
    if letter.payload is None:
        return None
    return ReceivedEvent(
        partition_id=letter.partition_id,
        sequence_number=letter.sequence_number,
        offset=letter.offset,
        enqueued_time_ms=letter.enqueued_time_ms,
        encoded=letter.payload,
        decode=decode_event,
    )


def _read_available(
    reader: EventReader, event_hub: str, partition_id: str, numbers: Sequence[int]
) -> list[ReceivedEvent]:
    """The events that the log still holds. Retention deletes the oldest, so the rest is found by halving."""
    try:
        return list(reader.read_events(event_hub, partition_id, numbers))
    except PositionOutOfRangeError:
        pass
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        try:
            list(reader.read_events(event_hub, partition_id, [numbers[middle]]))
            high = middle
        except PositionOutOfRangeError:
            low = middle + 1
    if low == len(numbers):
        return []
    try:
        return list(reader.read_events(event_hub, partition_id, numbers[low:]))
    except PositionOutOfRangeError:
        # Beyond the log's end (a new hub), or deleted by retention meanwhile: read them one by one.
        return _read_one_by_one(reader, event_hub, partition_id, numbers[low:])


def _read_one_by_one(
    reader: EventReader, event_hub: str, partition_id: str, numbers: Sequence[int]
) -> list[ReceivedEvent]:
    found: list[ReceivedEvent] = []
    for number in numbers:
        try:
            found += reader.read_events(event_hub, partition_id, [number])
        except PositionOutOfRangeError:
            continue
    return found
