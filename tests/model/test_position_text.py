"""Positions as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition, parse_position

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EventPosition.earliest()),
        ("latest", EventPosition.latest()),
        ("@4711", EventPosition.from_sequence_number(4711)),
        ("90s", EventPosition.from_enqueued_time(NOW - timedelta(seconds=90))),
        ("1.5h", EventPosition.from_enqueued_time(NOW - timedelta(minutes=90))),
        ("7d", EventPosition.from_enqueued_time(NOW - timedelta(days=7))),
        ("2026-01-31T10:00:00Z", EventPosition.from_enqueued_time(NOW - timedelta(hours=2))),
        ("2026-01-31T12:00:00+02:00", EventPosition.from_enqueued_time(NOW - timedelta(hours=2))),
        ("2026-01-31", EventPosition.from_enqueued_time(NOW - timedelta(hours=12))),
    ],
)
def test_positions(text: str, position: EventPosition) -> None:
    """Each documented way of writing a position means what the help says; a time without zone is UTC."""
    assert parse_position(text, now_utc=NOW) == position


@pytest.mark.parametrize(
    "text", ["", "@", "@x", "@-1", "2w", "yesterday", "99999999999999d", "h", "@" + 5000 * "9"]
)
def test_unknown_positions_are_usage_errors(text: str) -> None:
    """What cannot be meant is said to be so, with what could have been."""
    with pytest.raises(InvalidArgumentError, match="earliest"):
        parse_position(text, now_utc=NOW)
