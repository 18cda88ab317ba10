"""Where to start reading, as people write it: ``earliest``, ``latest``, ``2h``, ``@4711`` or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_time(text: str, *, now_utc: datetime) -> datetime:
    """The time that ``text`` means: ``90s``, ``15m``, ``2h``, ``7d`` ago, or ISO 8601 (without zone: UTC).

    Raises InvalidArgumentError for anything else.
    """
    try:
        return _time_of(text, now_utc)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{text!r} is not a valid time.",
            next_step="Use an age (90s, 15m, 2h, 7d), or a time in ISO 8601.",
        ) from error


def parse_position(text: str, *, now_utc: datetime) -> EventPosition:
    """The position that ``text`` means.

    ``earliest``; ``latest``; ``90s``, ``15m``, ``2h``, ``7d``: enqueued since that long ago; ``@4711``: that
    sequence number of each partition; a time in ISO 8601 (without zone: UTC). Raises InvalidArgumentError for
    anything else.
    """
    if text == "earliest":
        return EventPosition.earliest()
    if text == "latest":
        return EventPosition.latest()
    if text.startswith("@") and text[1:].isascii() and text[1:].isdigit():
        return EventPosition.from_sequence_number(int(text[1:]))
    try:
        return EventPosition.from_enqueued_time(_time_of(text, now_utc))
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{text!r} is not a valid starting position.",
            next_step="Use earliest, latest, @SEQUENCE_NUMBER, a time in ISO 8601, or an age (90s, "
            "15m, 2h, 7d).",
        ) from error


def _time_of(text: str, now_utc: datetime) -> datetime:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_utc - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
    time = datetime.fromisoformat(text)
    # Convert to UTC at once: near the calendar's ends a time may not exist in UTC, and is invalid then.
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
