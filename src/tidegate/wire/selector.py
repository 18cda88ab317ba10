"""Where a receiver starts, as the filter of its source says it.

The filter's value is an expression: ``amqp.annotation.x-opt-offset > '8448'``, by offset, sequence number or
enqueued time, with ``>`` or ``>=``, the value quoted or not. Offset ``-1`` is the start, ``@latest`` the end.
Clients disagree about the filter's descriptor, so it is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from tidegate.amqp.types import Described
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition, PositionKind
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, SELECTOR_FILTER, SEQUENCE_NUMBER

START_OF_STREAM: Final = "-1"
END_OF_STREAM: Final = "@latest"
"""Offsets with a meaning of their own."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_EXPRESSION_CHARACTERS_MAX = 1024
_EXPRESSION = re.compile(
    r"\s*amqp\.annotation\.(?P<name>[\w-]+)\s*(?P<operator>>=|>)\s*(?P<quote>'?)(?P<value>[^']*?)(?P=quote)\s*",
    re.ASCII,
)


def parse_selector(expression: str) -> EventPosition:
    """The position that a filter's expression means.

    Raises InvalidArgumentError when it means none.
    """
    match = _EXPRESSION.fullmatch(expression) if len(expression) <= _EXPRESSION_CHARACTERS_MAX else None
    if match is None:
        raise _bad_selector(expression)
    name, value, is_inclusive = match["name"], match["value"].strip(), match["operator"] == ">="
    if value == END_OF_STREAM:
        return EventPosition.latest()
    if name == OFFSET and value:
        if value == START_OF_STREAM:
            return EventPosition.earliest()
        return EventPosition.from_offset(value, is_inclusive=is_inclusive)
    try:
        if name == SEQUENCE_NUMBER:
            return EventPosition.from_sequence_number(int(value), is_inclusive=is_inclusive)
        if name == ENQUEUED_TIME:
            time_utc = _EPOCH + timedelta(milliseconds=int(value))
            return EventPosition.from_enqueued_time(time_utc, is_inclusive=is_inclusive)
    except (ValueError, OverflowError) as exc:
        raise _bad_selector(expression) from exc
    raise _bad_selector(expression)


def format_selector(position: EventPosition) -> str:
    """The expression for a position; ``parse_selector`` gives an equal one back."""
    operator = ">=" if position.is_inclusive else ">"
    match position.kind:
        case PositionKind.EARLIEST:
            return f"amqp.annotation.{OFFSET} > '{START_OF_STREAM}'"
        case PositionKind.LATEST:
            return f"amqp.annotation.{OFFSET} > '{END_OF_STREAM}'"
        case PositionKind.OFFSET:
            return f"amqp.annotation.{OFFSET} {operator} '{position.value}'"
        case PositionKind.SEQUENCE_NUMBER:
            return f"amqp.annotation.{SEQUENCE_NUMBER} {operator} '{position.value}'"
        case PositionKind.ENQUEUED_TIME:
            assert isinstance(position.value, datetime)
            since_epoch_ms = (position.value - _EPOCH) // timedelta(milliseconds=1)
            return f"amqp.annotation.{ENQUEUED_TIME} {operator} '{since_epoch_ms}'"


def selector_filter(position: EventPosition) -> dict[object, object]:
    """A source's filter that starts a receiver at ``position``."""
    return {SELECTOR_FILTER: Described(SELECTOR_FILTER, format_selector(position))}


def position_from_filters(filters: Mapping[object, object]) -> EventPosition:
    """The position that a source's filters ask for; the earliest where they do not say.

    Raises InvalidArgumentError when they say something that means nothing.
    """
    value = filters.get(SELECTOR_FILTER)
    if isinstance(value, Described):
        value = value.value
    if value is None:
        return EventPosition.earliest()
    if not isinstance(value, str):
        raise _bad_selector(type(value).__name__)
    return parse_selector(value)


def _bad_selector(expression: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The position filter {expression[:200]!r} is not understood.",
        next_step="Compare amqp.annotation.x-opt-offset, -sequence-number or -enqueued-time by > or >=.",
    )
