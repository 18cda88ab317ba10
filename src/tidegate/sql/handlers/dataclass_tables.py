"""Tables that are declared as dataclasses, whose instances are then rows.

Each annotation is a column. A type that databases store differently, or with fewer digits, has no column
unless it says which: ``Annotated[Decimal, Numeric(12, 2)]``.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Protocol,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from sqlalchemy import Column, MetaData, Table, types
from sqlalchemy.types import TypeEngine

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql.core.schema import UtcDateTime

EVENT_KEY: Final = ("partition_id", "sequence_number")
"""What identifies an event in its hub: as a primary key it prevents a second row for the event."""

_KEY_CHARACTERS_MAX: Final = 255
"""Of a string in a primary key (our choice: databases limit the bytes of a key)."""

_TYPES: Final[dict[object, TypeEngine[Any]]] = {
    bool: types.Boolean(),
    int: types.BigInteger(),
    float: types.Double(),
    str: types.Text(),
    bytes: types.LargeBinary(),
    datetime: UtcDateTime(),
    date: types.Date(),
    UUID: types.Uuid(),
}
_UNIONS: Final = (Union, python_types.UnionType)


class DataclassRow(Protocol):
    """An instance of a dataclass: a row whose columns are its fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def table_of(
    row: type,
    name: str,
    *,
    primary_key: Sequence[str] = EVENT_KEY,
    metadata: MetaData | None = None,
    schema: str | None = None,
) -> Table:
    """The table whose columns are the fields of the dataclass ``row``, in their order.

    A field of ``str``, ``int``, ``float``, ``bool``, ``bytes``, ``datetime`` (stored in UTC), ``date`` or
    ``UUID`` becomes a column NOT NULL, ``… | None`` one that may be NULL. ``Annotated[…, TYPE]`` gives a
    SQLAlchemy type: ``Annotated[str, String(64)]``. primary_key: the fields of the key, by default those that
    identify an event. metadata: None makes one for this table.
    Raises InvalidArgumentError: ``row`` is not a dataclass, a field's type has no column, or a field of the
    primary key is missing or may be None.
    """
    if not is_dataclass(row) or is_row(row):
        raise InvalidArgumentError(
            f"The table {name} needs a dataclass, not {row!r}.", next_step="Write @dataclass above the class."
        )
    try:
        hints = get_type_hints(row, include_extras=True)
    except NameError as error:
        raise InvalidArgumentError(f"An annotation of {row.__name__} is not known: {error}.") from error
    names = [field.name for field in fields(row)]
    if missing := [key for key in primary_key if key not in names]:
        raise InvalidArgumentError(
            f"{row.__name__} has no field {' and no '.join(missing)} for the table's primary key.",
            next_step="Add partition_id: str and sequence_number: int, which identify a row's event, or give "
            "primary_key=(…).",
        )
    columns = (_column(row, each, hints[each], is_key=each in primary_key) for each in names)
    return Table(name, MetaData() if metadata is None else metadata, *columns, schema=schema)


def _column(row: type, name: str, hint: object, *, is_key: bool) -> Column[Any]:
    hint, is_nullable, chosen = _read(hint)
    sql_type = _TYPES.get(hint) if chosen is None else chosen
    if sql_type is None:
        shown = hint.__name__ if isinstance(hint, type) else str(hint)
        raise InvalidArgumentError(
            f"The field {name} of {row.__name__} has the type {shown}, which has no column.",
            next_step="Use str, int, float, bool, bytes, datetime, date or UUID, one of them with | None, or "
            f"say which column: {name}: Annotated[{shown}, TYPE], with a type of SQLAlchemy.",
        )
    if is_key and is_nullable:
        raise InvalidArgumentError(
            f"The field {name} of {row.__name__} is in the primary key and may be None.",
            next_step="Take | None away, or name other fields with primary_key=(…).",
        )
    if is_key and chosen is None and hint is str:
        sql_type = types.String(_KEY_CHARACTERS_MAX)
    return Column(name, sql_type, primary_key=is_key, nullable=is_nullable, autoincrement=False)


def _read(hint: object) -> tuple[object, bool, TypeEngine[Any] | None]:
    """The type in an annotation, whether it may be None, and the SQL type that it names."""
    is_nullable, chosen = False, None
    while True:
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            for extra in extras:
                if isinstance(extra, type) and issubclass(extra, TypeEngine):
                    extra = extra()
                chosen = extra if chosen is None and isinstance(extra, TypeEngine) else chosen
            continue
        members = [each for each in get_args(hint) if each is not type(None)]
        if get_origin(hint) not in _UNIONS or len(members) != 1:
            return hint, is_nullable, chosen
        hint, is_nullable = members[0], True


def is_row(value: object) -> bool:
    """Whether a handler's result is one row as an instance of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def mapping_of(row: object) -> Mapping[str, object]:
    """The row as column name → value."""
    return {name: getattr(row, name) for name in _names(cast(type[DataclassRow], type(row)))}


@lru_cache(maxsize=256)
def _names(row: type[DataclassRow]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(row))
