"""The filters that say where a receiver starts.

A selector filter is an expression: ``amqp.annotation.x-opt-offset > '8448'``, by offset, sequence number or
enqueued time (milliseconds since 1970; older clients call it ``x-opt-enqueuedtimeutc``), with ``>``, ``>=``
or ``=``, which starts at the event itself. The value may have single quotes, double quotes or none; case is
ignored. Offset ``-1`` is the start, ``@latest`` the end. ``AND`` joins comparisons: the receiver starts where
all of them are met.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from tidegate.amqp.types import Described
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition, PositionKind
from tidegate.model.times import milliseconds_of, time_of
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, SELECTOR_FILTER, SEQUENCE_NUMBER

START_OF_STREAM: Final = "-1"
END_OF_STREAM: Final = "@latest"
"""Offsets with a special meaning."""

OLD_ENQUEUED_TIME: Final = "x-opt-enqueuedtimeutc"
"""The enqueued time in filters of IoT Hub's and Event Hubs' documentation of 2015 to 2018."""

SELECTOR_FILTER_CODE: Final = 0x468C00000004
"""The registered descriptor of ``apache.org:selector-filter:string``."""

COMPARISONS_MAX: Final = 8
"""In all selectors of a receiver (our choice: official clients send one, and each costs a look-up)."""

_EXPRESSION_CHARACTERS_MAX = 1024
_COMPARISON = re.compile(
    r"""\s*amqp\.annotation\.(?P<name>[\w-]+)\s*(?P<operator>>=|>|=)\s*
    (?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s'"]+))\s*""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_AND = re.compile(r"and\b", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NO_SEGMENT = "-1:"
"""Precedes a sequence number of a namespace without geo-replication (Java SDK, EventHubReactorSession)."""


def parse_selector(expression: str) -> tuple[EventPosition, ...]:
    """The positions in an expression, at least one. A receiver starts at the last of them.

    Raises InvalidArgumentError for an invalid expression.
    """
    if len(expression) > _EXPRESSION_CHARACTERS_MAX:
        raise _bad_selector(expression)
    positions = []
    start = 0
    while True:
        comparison = _COMPARISON.match(expression, start)
        if comparison is None:
            raise _bad_selector(expression)
        positions.append(_position(comparison, expression))
        if comparison.end() == len(expression):
            return tuple(positions)
        joined = _AND.match(expression, comparison.end())
        if joined is None:
            raise _bad_selector(expression)
        start = joined.end()


def _position(comparison: re.Match[str], expression: str) -> EventPosition:
    name, value = comparison["name"].lower(), comparison[comparison.lastgroup or "bare"].strip()
    is_inclusive = comparison["operator"] != ">"
    if value.lower() == END_OF_STREAM:
        return EventPosition.latest()
    if name == OFFSET and value:
        if value == START_OF_STREAM:
            return EventPosition.earliest()
        return EventPosition.from_offset(value, is_inclusive=is_inclusive)
    if name == SEQUENCE_NUMBER:
        number = _number(value.removeprefix(_NO_SEGMENT), expression)
        return EventPosition.from_sequence_number(number, is_inclusive=is_inclusive)
    if name in (ENQUEUED_TIME, OLD_ENQUEUED_TIME):
        try:
            time_utc = time_of(_number(value, expression))
        except OverflowError as exc:
            raise _bad_selector(expression) from exc
        return EventPosition.from_enqueued_time(time_utc, is_inclusive=is_inclusive)
    raise _bad_selector(expression)


def _number(value: str, expression: str) -> int:
    if _NUMBER.fullmatch(value) is None:
        raise _bad_selector(expression)
    return int(value)


def format_selector(position: EventPosition) -> str:
    """The expression for a position. ``parse_selector`` returns an equal position from it."""
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
            return f"amqp.annotation.{ENQUEUED_TIME} {operator} '{milliseconds_of(position.value)}'"


def selector_filter(position: EventPosition) -> dict[object, object]:
    """A source's filter that starts a receiver at ``position``."""
    return {SELECTOR_FILTER: Described(SELECTOR_FILTER, format_selector(position))}


def honoured_filters(filters: Mapping[object, object]) -> dict[object, object]:
    """Those of a source's filters that are in force: its selectors.

    Clients differ in the descriptor, and Qpid Proton in the key: either one identifies a selector.
    """
    return {key: value for key, value in filters.items() if _is_selector(key, value)}


def _is_selector(key: object, value: object) -> bool:
    if key == SELECTOR_FILTER:
        return True
    return isinstance(value, Described) and value.descriptor in (SELECTOR_FILTER, SELECTOR_FILTER_CODE)


def positions_from_filters(filters: Mapping[object, object]) -> tuple[EventPosition, ...]:
    """The positions in a source's filters; the earliest if there is none. A receiver starts at the last of
    them. Only one is an enqueued time: the last, which includes the others.

    Raises InvalidArgumentError for invalid filters, and for more than COMPARISONS_MAX comparisons.
    """
    positions: list[EventPosition] = []
    for value in honoured_filters(filters).values():
        expression = value.value if isinstance(value, Described) else value
        if isinstance(expression, str):
            positions += parse_selector(expression)
        elif expression is not None:
            raise _bad_selector(type(expression).__name__)
        if len(positions) > COMPARISONS_MAX:
            raise InvalidArgumentError(
                f"The position filters hold more than {COMPARISONS_MAX} comparisons.",
                next_step="Send only the last position: a receiver starts where all comparisons are met.",
            )
    return _with_one_time(positions) or (EventPosition.earliest(),)


def _with_one_time(positions: Sequence[EventPosition]) -> tuple[EventPosition, ...]:
    """All but the earlier enqueued times. The log is searched for a time; the other kinds are arithmetic."""
    times = {
        (position.value, not position.is_inclusive): position
        for position in positions
        if isinstance(position.value, datetime)
    }
    others = tuple(position for position in positions if not isinstance(position.value, datetime))
    return (*others, times[max(times)]) if times else others


def _bad_selector(expression: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Cannot parse the position filter {expression[:200]!r}.",
        next_step=f"Compare amqp.annotation.{OFFSET}, {SEQUENCE_NUMBER} or {ENQUEUED_TIME} "
        "(milliseconds since 1970) with >, >= or =, and join comparisons with AND: "
        f"amqp.annotation.{OFFSET} > '8448'.",
    )
