"""Checks that a DataFrame fits a ledger sink's tables, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import ArrayType, MapType, StructType
from sqlalchemy import ARRAY, JSON
from sqlalchemy.types import TypeDecorator

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.ledger.tasks import TABLE_COLUMN
from tidegate.sql import ConsumerKey
from tidegate.sql.core.row_groups import required_columns
from tidegate.sql.handlers.batches import BOOKKEEPING_COLUMNS, ERROR_COLUMN
from tidegate.sql.ledger.rows import LedgerTable, WriteMode

_EVENT_NEEDED = ("partition", "sequenceNumber", "offset", "enqueuedTime")


def check_columns(
    sink_name: str,
    schema: StructType,
    tables: Mapping[str, LedgerTable],
    destination: str | None,
    consumer: ConsumerKey | None,
    is_refused_dead_lettered: bool,
) -> None:
    """Raises InvalidArgumentError if rows of ``schema`` cannot be written.

    destination: the table for all rows; None: the only one, or the one that each row names.
    """
    names = schema.fieldNames()
    targets = _targets(sink_name, names, tables, destination)
    known = {column for target in targets for column in target.table.columns.keys()}  # noqa: SIM118
    unknown = [
        name for name in names if name not in known and name not in (*BOOKKEEPING_COLUMNS, TABLE_COLUMN)
    ]
    if unknown:
        raise InvalidArgumentError(
            f"The rows have a column {unknown[0]!r}, and "
            f"{' and '.join(target.table.name for target in targets)} have none of that name.",
            next_step=f"There are {', '.join(sorted(known))}.",
        )
    for target in targets:
        _check_table(schema, target)
    if ERROR_COLUMN in names or is_refused_dead_lettered:
        _check_events(sink_name, names, consumer)


def _targets(
    sink_name: str, names: list[str], tables: Mapping[str, LedgerTable], destination: str | None
) -> list[LedgerTable]:
    if destination is not None and destination not in tables:
        raise InvalidArgumentError(
            f"The sink {sink_name!r} has no table {destination!r}.",
            next_step=f"It has {', '.join(tables)}.",
        )
    if destination is None and len(tables) > 1 and TABLE_COLUMN not in names:
        raise InvalidArgumentError(
            f"The sink {sink_name!r} has several tables, and the rows do not say which they are for.",
            next_step=f"Add a column {TABLE_COLUMN} that holds one of {', '.join(tables)}, or call "
            "write({name: rows, …}, batch_id).",
        )
    return list(tables.values()) if destination is None else [tables[destination]]


def _check_table(schema: StructType, target: LedgerTable) -> None:
    names = set(schema.fieldNames())
    needed: list[str] = [*target.order_by]
    if target.mode is WriteMode.UPSERT:
        needed += target.key_columns
    needed += required_columns(target.table)
    missing = [name for name in needed if name not in names]
    if missing:
        raise InvalidArgumentError(
            f"The rows have no column {missing[0]!r}, which the table {target.table.name} needs.",
            next_step=f"They have {', '.join(schema.fieldNames())}.",
        )
    for its in target.table.columns:
        if its.key not in names and its.default is not None and its.default.is_callable:
            raise InvalidArgumentError(
                f"The rows have no column {its.key!r}, and its default in the table {target.table.name} is "
                "a function in Python: rows that are merged in the database would all get one value of it.",
                next_step="Add the column to the rows, or give it a server_default.",
            )
    for field in schema.fields:
        column = target.table.columns.get(field.name)
        if column is None or not isinstance(field.dataType, ArrayType | MapType | StructType):
            continue
        if not isinstance(column.type, ARRAY | JSON | TypeDecorator):
            raise InvalidArgumentError(
                f"The column {field.name!r} is {field.dataType.simpleString()}, and in the table "
                f"{target.table.name} it is {column.type!r}.",
                next_step="Select its parts as columns, make it text with to_json, or give the table a "
                "column of the type JSON.",
            )


def _check_events(sink_name: str, names: list[str], consumer: ConsumerKey | None) -> None:
    if consumer is None:
        raise InvalidArgumentError(
            f"The sink {sink_name!r} does not know whose dead letters its rows become.",
            next_step="Give it consumer=ConsumerKey(event_hub, consumer_group).",
        )
    missing = [name for name in _EVENT_NEEDED if name not in names]
    if missing:
        raise InvalidArgumentError(
            f"Rows that may become dead letters have no column {missing[0]!r}.",
            next_step=f"Keep the columns {', '.join(_EVENT_NEEDED)} as they came, so that the event can be "
            "found again.",
        )
