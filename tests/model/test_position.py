"""A position is refused where it cannot be meant, at the place where it is written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.model.position import EventPosition, PositionKind


def test_each_way_to_name_a_position() -> None:
    """Defaults follow the official SDKs: an offset is exclusive, sequence number and time are inclusive."""
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert EventPosition.earliest().is_inclusive
    assert EventPosition.latest() == EventPosition(PositionKind.LATEST)
    assert not EventPosition.from_offset("7").is_inclusive
    assert EventPosition.from_sequence_number(7).is_inclusive
    assert EventPosition.from_enqueued_time(when).value == when


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PositionKind.OFFSET, 7),
        (PositionKind.SEQUENCE_NUMBER, "7"),
        (PositionKind.EARLIEST, "x"),
        (PositionKind.ENQUEUED_TIME, datetime(2026, 1, 2)),  # noqa: DTZ001
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(kind: PositionKind, value: object) -> None:
    """An offset given as a number would compare as text later, far from the mistake."""
    with pytest.raises(InvalidArgumentError):
        EventPosition(kind, value)  # type: ignore[arg-type]


def test_contents_are_decoded_once_and_only_when_asked() -> None:
    """A consumer that only looks at positions must not pay for decoding."""
    calls: list[bytes] = []

    def decode(encoded: bytes | memoryview) -> EventContents:
        calls.append(bytes(encoded))
        return EventContents(body=b"body", partition_key="k")

    event = ReceivedEvent(
        partition_id="0", sequence_number=1, offset="1", enqueued_time_ms=1500, encoded=b"raw", decode=decode
    )
    assert event.enqueued_time == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert "sequence_number=1" in repr(event)
    assert calls == []
    assert (event.body, event.partition_key, event.body) == (b"body", "k", b"body")
    assert calls == [b"raw"]


def test_the_body_alone_does_not_decode_the_rest() -> None:
    """Most handlers read the body only: they must not pay for properties they never look at."""

    def decode(encoded: bytes | memoryview) -> EventContents:
        raise AssertionError("everything was decoded")

    event = ReceivedEvent(
        partition_id="0",
        sequence_number=1,
        offset="1",
        enqueued_time_ms=0,
        encoded=b"..body",
        decode=decode,
        decode_body=lambda encoded: memoryview(encoded)[2:],
    )
    assert event.body == b"body"
    assert event.body is event.body
