"""Converts a column's values before the driver gets them, so that all databases store the same.

COPY is stricter than INSERT: it refuses ``5.0`` and ``t`` for an integer; MariaDB would round ``5.7``. A time
without a zone would depend on the server's setting; one with a zone would lose it in a column without zones.
MariaDB's driver would make five zero bytes of the number 5, and the server a date of an amount; what a column
cannot hold is refused instead, unless the type is a user's own. SQLAlchemy's own processors run afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Dialect, exc, types
from sqlalchemy.types import TypeEngine

from tidegate.model.errors import text_of
from tidegate.sql.core.dialects import DIALECTS
from tidegate.sql.core.dialects.base import IntegerRule, is_bytes_like
from tidegate.sql.core.memory import is_of_event

Column = Sequence[object]
Preparation = Callable[[Column], Column]
"""Converts a column's values to others of the same meaning; returns its argument if nothing changes."""
Processor = Callable[[Any], object]

INTEGERS: Final = (
    types.Integer,
    types.BigInteger,
    types.SmallInteger,
    types.INTEGER,
    types.BIGINT,
    types.SMALLINT,
)
TIMES: Final = (types.DateTime, types.TIMESTAMP, types.DATETIME)

_HELD: Final[dict[type, tuple[type, ...]]] = {
    bytes: (bytes, bytearray, memoryview),
    datetime: (date, str),  # a datetime is a date
    date: (date, str),
    time: (time, datetime, timedelta, str),
    timedelta: (timedelta, str),
}
"""By the Python type of a column: what it can hold. Drivers and servers read meanings into other values:
lengths, seconds, and times written without separators."""


def preparation_of(sql_type: TypeEngine[Any], dialect: Dialect) -> Preparation | None:
    """The check and conversion that a type's values need on this database; None: they need none."""
    check, convert = _check_of(sql_type.dialect_impl(dialect), dialect), _conversion_of(sql_type, dialect)
    if check is None or convert is None:
        return check or convert
    return lambda values: convert(check(values))


def _check_of(sql_type: TypeEngine[Any], dialect: Dialect) -> Preparation | None:
    if isinstance(sql_type, types.TypeDecorator) or not _is_processed_by_sqlalchemy(sql_type):
        return None  # the user's own function decides what it takes
    try:
        held_as = sql_type.python_type
    except NotImplementedError:
        return None
    if held_as not in _HELD:
        return None
    return partial(_checked, held_as, DIALECTS[dialect.name].time_forms.get(held_as))


def _is_processed_by_sqlalchemy(sql_type: TypeEngine[Any]) -> bool:
    return type(sql_type).bind_processor.__module__.startswith("sqlalchemy.")


def _checked(held_as: type, form: re.Pattern[str] | None, values: Column) -> Column:
    """The values unchanged. Raises TypeError and ValueError.

    form: matches the beginning of strings that the column can hold; None: any.
    """
    kinds = set(map(type, values))
    for kind in kinds:
        if kind is NoneType or issubclass(kind, _HELD[held_as]):
            continue
        if held_as is not bytes or not all(is_bytes_like(value) for value in values if type(value) is kind):
            raise TypeError(f"a column of {held_as.__name__} cannot hold {kind.__name__}")
    if form is not None and any(issubclass(kind, str) for kind in kinds):
        for value in values:
            if isinstance(value, str) and not form.match(value):
                raise ValueError(f"{value[:80]!r} is not a {held_as.__name__} in ISO 8601")
    return values


def _conversion_of(sql_type: TypeEngine[Any], dialect: Dialect) -> Preparation | None:
    if sql_type._variant_mapping:  # another type on one of the databases: the user's own choice
        return None
    ours = DIALECTS[dialect.name]
    if type(sql_type) in INTEGERS and ours.integer_rule is not IntegerRule.AS_GIVEN:
        return _integers if ours.integer_rule is IntegerRule.CONVERTED else _checked_integers
    if type(sql_type) in TIMES:
        return _moments if ours.has_zones and getattr(sql_type, "timezone", False) else _utc_without_zone
    if isinstance(sql_type, types.Uuid) and sql_type.as_uuid and not dialect.supports_native_uuid:
        return _uuids
    return None


def processor_of(sql_type: TypeEngine[Any], dialect: Dialect) -> Preparation | None:
    """SQLAlchemy's own processing for the driver; None if the type has none.

    Anything that a type raises for a value becomes a StatementError, as in SQLAlchemy's own insert.
    """
    process = sql_type.dialect_impl(dialect).bind_processor(dialect)
    return None if process is None else partial(_processed, process)


def _processed(process: Processor, values: Column) -> Column:
    try:
        return list(map(process, values))
    except BaseException as error:
        if not is_of_event(error):
            raise
        words = f"({type(error).__name__}) {text_of(error)}"
        raise exc.StatementError(words, None, None, error, hide_parameters=True) from error


def _integers(values: Column) -> Column:
    """Integral floats become integers (pandas turns integers with gaps into floats); true becomes 1."""
    if not any(issubclass(kind, float | bool) for kind in set(map(type, values))):
        return values
    return [
        int(value) if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()) else value
        for value in values
    ]


def _checked_integers(values: Column) -> Column:
    """The same, and a fraction is refused. Raises ValueError."""
    converted = _integers(values)
    for value in converted:
        if isinstance(value, float | Decimal | str) and not _is_integer(value):
            raise ValueError(f"{value!r} is not an integer")
    return converted


def _is_integer(value: float | Decimal | str) -> bool:
    if isinstance(value, str):
        return value.strip().lstrip("+-").isdecimal()
    return isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value()


def _utc_without_zone(values: Column) -> Column:
    return [
        value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, datetime) and value.tzinfo is not None
        else value
        for value in values
    ]


def _moments(values: Column) -> Column:
    """Reads times without a zone as UTC, whatever the server's zone."""
    return [
        value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
        for value in values
    ]


def _uuids(values: Column) -> Column:
    """Accepts strings, as PostgreSQL does: Spark and Arrow have no other form."""
    return [UUID(value) if isinstance(value, str) else value for value in values]
