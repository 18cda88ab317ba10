"""Runs batch functions, and accounts for every event of a batch. No database here.

Theory of operation. A function is called with a whole batch. If it raises, the batch is halved until each
event for which it raises is isolated; the exception is then that dead letter's reason. Its result is checked
as a whole: one that cannot be assigned to events is the function's fault, not an event's, and is raised.
Importing this module needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Table, types

from tidegate.columns.schema import TYPES
from tidegate.columns.valid import valid_text
from tidegate.model.events import ReceivedEvent
from tidegate.sql.core.arrow_rows import ArrowRows, SequenceNumbers
from tidegate.sql.core.halving import failures_of
from tidegate.sql.core.memory import is_of_event
from tidegate.sql.core.row_groups import required_columns
from tidegate.sql.core.values import encoded_form_of
from tidegate.sql.handlers.batches import (
    BOOKKEEPING_COLUMNS,
    ERROR_COLUMN,
    SEQUENCE_NUMBER_COLUMN,
    SKIP_COLUMN,
    ArrowHandler,
    BatchHandler,
    BatchResultError,
    TransformationError,
)
from tidegate.wire.event_texts import EventTexts, decode_whole, property_of

_UNDECODED_COLUMNS = frozenset({"partition", "offset", "sequenceNumber", "enqueuedTime"})

_FLAT_TYPES = (
    types.String,
    types.Integer,
    types.Numeric,
    types.Boolean,
    types.LargeBinary,
    types.DateTime,
    types.Date,
    types.Time,
)
"""SQL types with single values: a list in such a column is a mistake, not a string."""


@dataclass(slots=True)
class BatchOutcome:
    """The results for a batch's events; an event in neither list was skipped on purpose."""

    groups: list[ArrowRows] = field(default_factory=list)
    failures: list[tuple[int, BaseException]] = field(default_factory=list)
    """(sequence number, reason), ascending; the function returned those that are ``TransformationError``."""


def run_batch_handler(
    handler: BatchHandler,
    table: Table,
    batch: pa.RecordBatch,
    *,
    on_failure: Callable[[BaseException, int], None] | None = None,
) -> BatchOutcome:
    """Run ``handler`` over ascending events of a hub partition, isolating those for which it raises.

    batch: has ``sequenceNumber`` and the handler's columns. on_failure: called with what each call raises and
    its number of events; what it raises ends the run. Raises BatchResultError if a result cannot be
    assigned to its events, and MemoryError if the process is short of memory.
    """
    outcome = BatchOutcome()
    numbers = numbers_of(batch)
    given = batch.select(list(handler.columns))

    def attempt(low: int, until: int) -> None:
        try:
            result = _call(handler, given.slice(low, until - low))
        except BatchResultError:
            raise
        except BaseException as error:  # whatever a user's function raises, the other events continue
            if not is_of_event(error):
                raise
            if on_failure is not None:
                on_failure(error, until - low)
            raise _CallFailedError from error
        part = numbers[low:until]
        rows, failures = account(
            result,
            _row_numbers(result, part),
            table,
            asked=part,
            is_missing_skipped=handler.is_missing_skipped,
        )
        if len(rows):
            outcome.groups.append(rows)
        outcome.failures += failures

    for index, failed in failures_of(attempt, 0, batch.num_rows, _CallFailedError):
        assert failed.__cause__ is not None
        outcome.failures.append((int(numbers[index]), failed.__cause__))
    return outcome


class _CallFailedError(Exception):
    """Its cause is what the function raised."""


def account(
    result: pa.Table,
    row_numbers: SequenceNumbers,
    table: Table,
    *,
    asked: SequenceNumbers | None = None,
    is_missing_skipped: bool = True,
) -> tuple[ArrowRows, list[tuple[int, TransformationError]]]:
    """The rows to write, ascending, and the events with ``_error`` in any of their rows, which write none.

    row_numbers: each row's event. asked: the events given to the function, ascending; None: not checked.
    Raises BatchResultError for columns that ``table`` lacks or cannot hold, for missing events (unless
    ``is_missing_skipped``), and for events that were not given.
    """
    columns = _table_columns(result, table)
    if asked is not None:
        _check_complete(row_numbers, asked, is_missing_skipped=is_missing_skipped)
    if np.any(np.diff(row_numbers) < 0):
        # A stable sort: several rows of one event keep their order.
        order: SequenceNumbers = np.argsort(row_numbers, kind="stable").astype(np.int64)
        result, row_numbers = result.take(order), row_numbers[order]
    is_written = np.ones(len(row_numbers), dtype=bool)
    failures: list[tuple[int, TransformationError]] = []
    if ERROR_COLUMN in result.column_names:
        reasons = result.column(ERROR_COLUMN)
        if reasons.null_count < len(reasons):
            failures = _failures(reasons, row_numbers)
            is_written &= ~np.isin(row_numbers, [number for number, _ in failures])
    if SKIP_COLUMN in result.column_names:
        is_written &= ~_flags(result.column(SKIP_COLUMN))
    rows = result.select(columns)
    if not is_written.all():
        rows, row_numbers = rows.filter(pa.array(is_written)), row_numbers[is_written]
    missing = [name for name in required_columns(table) if name not in columns]
    if missing and rows.num_rows:
        raise BatchResultError(
            f"The result has no column {missing[0]!r}, which the table {table.name} requires.",
            next_step=f"It has {', '.join(result.column_names)}.",
        )
    return ArrowRows(rows, row_numbers), failures


def numbers_of(rows: pa.Table | pa.RecordBatch) -> SequenceNumbers:
    """The column ``sequenceNumber``. Raises BatchResultError if it has nulls or is not of integers."""
    column = rows.column(SEQUENCE_NUMBER_COLUMN)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise BatchResultError(
            f"The column {SEQUENCE_NUMBER_COLUMN} holds {column.type}"
            f"{' with nulls' if column.null_count else ''}, not the number of each row's event.",
            next_step="Copy it from the input unchanged.",
        )
    numbers: SequenceNumbers = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    return numbers


def event_batch_of(events: Sequence[ReceivedEvent], columns: Iterable[str]) -> pa.RecordBatch:
    """Events as the data source's columns, always with ``sequenceNumber``. Slow: event by event."""
    names = list(dict.fromkeys((*columns, SEQUENCE_NUMBER_COLUMN)))
    texts: list[tuple[EventTexts, bytes | None]] = []
    if not _UNDECODED_COLUMNS.issuperset(names):
        texts = [decode_whole(encoded_form_of(event)) for event in events]
    values: dict[str, list[Any]] = {
        "partition": [event.partition_id for event in events],
        "offset": [event.offset for event in events],
        "sequenceNumber": [event.sequence_number for event in events],
        "enqueuedTime": [event.enqueued_time_ms * 1000 for event in events],
        "body": [body for _, body in texts],
        "publisher": [item.publisher for item, _ in texts],
        "partitionKey": [item.partition_key for item, _ in texts],
        "properties": [list(item.properties.items()) for item, _ in texts],
        "systemProperties": [list(item.system_properties.items()) for item, _ in texts],
    }
    for name in names:
        wanted = property_of(name)
        if wanted is not None:
            values[name] = [item.properties.get(wanted) for item, _ in texts]
    return pa.RecordBatch.from_arrays(
        [pa.array(values[name], type=TYPES.get(name, pa.string())) for name in names], names=names
    )


def _call(handler: BatchHandler, batch: pa.RecordBatch) -> pa.Table:
    """Call the function once; returns its result as an Arrow table."""
    if isinstance(handler, ArrowHandler):
        result: object = handler.function(batch)
        if isinstance(result, pa.RecordBatch):
            return pa.Table.from_batches([result])
        if isinstance(result, pa.Table):
            return result
        raise _wrong_type(result, "a pyarrow.RecordBatch or Table")
    import pandas as pd

    frame: object = handler.function(batch.to_pandas(maps_as_pydicts="lossy", timestamp_as_object=False))
    if not isinstance(frame, pd.DataFrame):
        raise _wrong_type(frame, "a pandas.DataFrame")
    return pa.Table.from_pandas(frame, preserve_index=False)


def _wrong_type(result: object, wanted: str) -> BatchResultError:
    return BatchResultError(
        f"The batch handler returned {type(result).__name__}, not {wanted}.",
        next_step="Return one, which may be empty.",
    )


def _row_numbers(result: pa.Table, asked: SequenceNumbers) -> SequenceNumbers:
    """The event of each row: by ``sequenceNumber``, or in the order of the given events."""
    if SEQUENCE_NUMBER_COLUMN in result.column_names:
        return numbers_of(result)
    if result.num_rows != len(asked):
        raise BatchResultError(
            f"The batch handler was given {len(asked)} events and returned {result.num_rows} rows without a "
            f"column {SEQUENCE_NUMBER_COLUMN}, so the rows cannot be assigned to events.",
            next_step=f"Return {SEQUENCE_NUMBER_COLUMN} unchanged, or one row for each event.",
        )
    return asked


def _check_complete(
    row_numbers: SequenceNumbers, asked: SequenceNumbers, *, is_missing_skipped: bool
) -> None:
    if np.array_equal(row_numbers, asked):
        return
    found = np.unique(row_numbers)
    strange = np.setdiff1d(found, asked, assume_unique=True)
    if len(strange):
        raise BatchResultError(
            f"The batch handler returned a row of event {strange[0]}, which it was not given.",
            next_step=f"Copy {SEQUENCE_NUMBER_COLUMN} from the input unchanged.",
        )
    if len(found) == len(asked) or is_missing_skipped:
        return
    missing = np.setdiff1d(asked, found, assume_unique=True)
    raise BatchResultError(
        f"The batch handler returned nothing for {len(missing)} of {len(asked)} events, the first is "
        f"{missing[0]}; nothing of the batch was written.",
        next_step=f"Return a row for each, with `{SKIP_COLUMN}` true to write none or `{ERROR_COLUMN}` for a "
        "dead letter; or set is_missing_skipped=True.",
    )


def _table_columns(result: pa.Table, table: Table) -> list[str]:
    """The result's columns to write to ``table``."""
    names = result.column_names
    if len(set(names)) != len(names):
        raise BatchResultError("The result of the handler has two columns with the same name.")
    unknown = [name for name in names if name not in table.columns and name not in BOOKKEEPING_COLUMNS]
    if unknown:
        raise BatchResultError(
            f"The result has the column {unknown[0]!r}, which the table {table.name} lacks.",
            next_step=f"It has {', '.join(table.columns.keys())}.",
        )
    found = [name for name in names if name in table.columns]
    for name in found:
        kind, sql_type = result.schema.field(name).type, table.columns[name].type
        if pa.types.is_nested(kind) and isinstance(sql_type, _FLAT_TYPES):
            raise BatchResultError(
                f"The result's column {name!r} holds {kind}, and {table.name}.{name} holds single values "
                f"({sql_type!r}).",
                next_step="Return one value, or give the table's column the type JSON.",
            )
    return found


def _failures(
    reasons: pa.ChunkedArray[Any], row_numbers: SequenceNumbers
) -> list[tuple[int, TransformationError]]:
    """The events that have a reason, each with its first."""
    places = np.flatnonzero(pc.is_valid(reasons).to_numpy())
    # A step in Spark may quote a body that is not text.
    values = valid_text(reasons.filter(pc.is_valid(reasons))).to_pylist()
    first: dict[int, TransformationError] = {}
    for number, reason in zip(row_numbers[places].tolist(), values, strict=True):
        if number not in first:
            first[number] = TransformationError(str(reason))
    return list(first.items())


def _flags(column: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """``_skip`` as booleans; null is false."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=bool)
    if not pa.types.is_boolean(column.type):
        raise BatchResultError(f"The column {SKIP_COLUMN} holds {column.type}, not booleans.")
    compute: Any = pc
    flags: np.ndarray[Any, np.dtype[np.bool_]] = compute.fill_null(column, False).to_numpy()
    return flags
