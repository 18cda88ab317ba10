"""Runs handlers over events, and groups their rows by columns. No database here.

Each set of columns is checked against the table once. ``commit.batch`` finds values that only the database
can refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, cast

from sqlalchemy import Table

from tidegate.model.clock import Clock
from tidegate.model.events import ReceivedEvent, refuse_undecodable
from tidegate.sql.core.memory import is_of_event
from tidegate.sql.core.values import PartitionRows
from tidegate.sql.handlers.dataclass_tables import is_row, mapping_of
from tidegate.sql.handlers.pipeline import Handler, Pipeline

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup

_CALLS_S_MAX: Final = 0.5
"""A transaction makes no further call after this time (our choice: a partition that is closed, and on SQLite
all writers, wait for its end)."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How a transaction's events are divided into calls of the handler."""

    events_max: int
    """Events of a call, at most."""
    clock: Clock

    def ranges(self, event_count: int, size: int | None = None) -> Iterator[tuple[int, int]]:
        """The first event and the end of each call; fewer than all if they take too long.

        size: fewer events per call.
        """
        over_at = self.clock.monotonic() + _CALLS_S_MAX
        step = min(self.events_max, size or self.events_max)
        for low in range(0, event_count, step):
            if low and self.clock.monotonic() >= over_at:
                return
            yield low, min(low + step, event_count)


class HandlerResultError(TypeError):
    """A handler returned or inserted something other than rows; a dead letter's reason."""


class UnknownColumnError(ValueError):
    """A handler's row names a column that the table lacks; a dead letter's reason."""


def handle_events(
    pipeline: Pipeline,
    events: Sequence[ReceivedEvent],
    fail: Callable[[ReceivedEvent, BaseException], None],
    *,
    on_failure: Callable[[BaseException, int], None] | None = None,
) -> list[RowGroup]:
    """Run the pipeline's handler; returns its rows by column set, each in the order of the events.

    An event writes all of its rows or none. fail: called for each event for which the handler raises or
    returns invalid rows. on_failure: called before that with the error of each call and its number of events;
    what it raises ends the run. A batch handler gets all events at once. Raises BatchResultError, see
    ``ArrowHandler``.
    """
    if pipeline.batch_handler is not None:
        # Imported here, because only users of such handlers need pyarrow.
        from tidegate.sql.handlers.arrow import event_batch_of, run_batch_handler

        batch = event_batch_of(events, pipeline.batch_handler.columns)
        outcome = run_batch_handler(pipeline.batch_handler, pipeline.table, batch, on_failure=on_failure)
        by_number = {event.sequence_number: event for event in events}
        for number, failure in outcome.failures:
            fail(by_number[number], failure)
        return [*outcome.groups]
    handler = cast(Handler, pipeline.handler)
    shapes = _Shapes(pipeline.table)
    refuse_undecodable(events)
    for event in events:
        try:
            result = handler(event)
            if result is None:
                continue
            # The usual type first: ``is_row`` asks what every result is, which costs more than the rest.
            if type(result) is not dict and is_row(result):
                result = mapping_of(result)
            if type(result) is dict and shapes.add_like_last(event.sequence_number, result):
                continue
            shapes.add(event.sequence_number, _rows_of(result))
        except BaseException as error:  # whatever a user's handler raises, the others continue
            if not is_of_event(error):
                raise
            if on_failure is not None:
                on_failure(error, 1)
            fail(event, error)
    return [*shapes.groups()]


def groups_of(table: Table, rows: Iterable[object]) -> list[PartitionRows]:
    """Rows by column set, each group in their order. Raises HandlerResultError and UnknownColumnError."""
    shapes = _Shapes(table)
    for number, row in enumerate(rows):
        if type(row) is not dict or not shapes.add_like_last(number, row):
            shapes.add(number, [_row_of(row)])
    return shapes.groups()


class _Shapes:
    """Groups rows by their column sets, checking each set once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known = frozenset(table.columns.keys())
        self._by_columns: dict[frozenset[str], _Shape] = {}
        self._last: _Shape | None = None

    def add_like_last(self, sequence_number: int, row: dict[str, object]) -> bool:
        """Add a row quickly if it has the previous row's columns; returns False if not."""
        shape = self._last
        if shape is None or len(row) != shape.width:
            return False
        try:
            values = shape.values_of(row)
        except KeyError:
            return False
        shape.values.append(values)
        shape.sequence_numbers.append(sequence_number)
        return True

    def add(self, sequence_number: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Add all rows of one event, or none of them."""
        shapes = [self._shape_of(row) for row in rows]
        # Read all before keeping any, because a custom mapping may raise.
        read = [shape.values_of(row) for shape, row in zip(shapes, rows, strict=True)]
        for shape, values in zip(shapes, read, strict=True):
            shape.values.append(values)
            shape.sequence_numbers.append(sequence_number)
            self._last = shape

    def groups(self) -> list[PartitionRows]:
        """The added rows, one group per column set."""
        return [
            PartitionRows(shape.columns, shape.values, shape.sequence_numbers)
            for shape in self._by_columns.values()
            if shape.values
        ]

    def _shape_of(self, row: Mapping[str, object]) -> _Shape:
        if not row:
            raise HandlerResultError("The handler returned an empty row. Return None for no row.")
        names = frozenset(row)
        shape = self._by_columns.get(names)
        if shape is None:
            unknown = sorted(map(repr, names - self._known))
            if unknown:
                raise UnknownColumnError(
                    f"The table {self._table.name} has no column {', '.join(unknown)}. "
                    f"It has {', '.join(self._table.columns.keys())}."
                )
            shape = self._by_columns[names] = _Shape(tuple(row))
        return shape


class _Shape:
    __slots__ = ("columns", "sequence_numbers", "values", "values_of", "width")

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.width = len(columns)
        self.values: list[tuple[object, ...]] = []
        self.sequence_numbers: list[int] = []
        name = columns[0]
        self.values_of: Callable[[Mapping[str, object]], tuple[object, ...]] = (
            itemgetter(*columns) if self.width > 1 else lambda row: (row[name],)
        )


def _rows_of(result: object) -> list[Mapping[str, object]]:
    if isinstance(result, Mapping):
        return [result]
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise HandlerResultError(
            f"The handler returned {type(result).__name__}. Return a mapping or a dataclass's instance (one "
            "row), an iterable of such, or None."
        )
    return [_row_of(row) for row in result]


def _row_of(row: object) -> Mapping[str, object]:
    if is_row(row):
        return mapping_of(row)
    if not isinstance(row, Mapping):
        raise HandlerResultError(
            f"A row must be a mapping or a dataclass's instance, not {type(row).__name__}."
        )
    return row
