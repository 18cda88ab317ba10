"""Handlers that take a batch of events at once, as Arrow or as pandas, instead of one event.

Nothing here needs pyarrow or pandas; they are imported when a batch is run (``arrow``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.event_texts import property_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
    PandasFunction = Callable[[pd.DataFrame], pd.DataFrame]

EVENT_COLUMNS: Final = (
    "body",
    "partition",
    "offset",
    "sequenceNumber",
    "enqueuedTime",
    "publisher",
    "partitionKey",
    "properties",
    "systemProperties",
)
"""What a handler may ask for: the columns of the data source ``eventhubs``, with its names and types; and
``properties.NAME``, one of the properties as a string, null where an event does not have it."""

DEFAULT_COLUMNS: Final = ("body", "partition", "sequenceNumber", "enqueuedTime")
"""What a handler is given by default: all that costs nothing."""

PARTITION_COLUMN: Final = "partition"
SEQUENCE_NUMBER_COLUMN: Final = "sequenceNumber"
OFFSET_COLUMN: Final = "offset"
ENQUEUED_TIME_COLUMN: Final = "enqueuedTime"
PARTITION_KEY_COLUMN: Final = "partitionKey"
ERROR_COLUMN: Final = "_error"
SKIP_COLUMN: Final = "_skip"

BOOKKEEPING_COLUMNS: Final = (
    PARTITION_COLUMN,
    SEQUENCE_NUMBER_COLUMN,
    OFFSET_COLUMN,
    ENQUEUED_TIME_COLUMN,
    PARTITION_KEY_COLUMN,
    ERROR_COLUMN,
    SKIP_COLUMN,
)
"""Columns of a result that say which event a row came from and what to do with it. They are written to the
table where it has columns of these names."""


class BatchResultError(InvalidArgumentError):
    """A batch function returned what cannot be assigned to its events; nothing of it is written."""


class TransformationError(Exception):
    """A function or a DataFrame set ``_error`` for an event: the type and reason of its dead letter.

    Never raised.
    """


@dataclass(frozen=True, slots=True)
class _BatchFunction:
    function: Callable[[Any], Any]
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    """Which of ``EVENT_COLUMNS`` (or ``properties.NAME``) it is given, in this order; others are not decoded.
    A property by its name costs far less than a look-up in the column of all of them."""
    is_missing_skipped: bool = False
    """True: an event without a result is skipped on purpose. False: it is an error that stops the pipeline
    before anything of the batch is written."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgumentError(
                f"A batch handler needs a function, not {type(self.function).__name__}.",
                next_step="Give a function that takes a batch and returns one.",
            )
        object.__setattr__(self, "columns", checked_columns(self.columns, "A batch handler"))


@dataclass(frozen=True, slots=True)
class ArrowHandler(_BatchFunction):
    """A pipeline's handler that turns a ``pyarrow.RecordBatch`` of events into rows.

    It returns a RecordBatch or Table with the table's columns (a subset will do), and, where it needs them:

    - ``sequenceNumber``: the event that each row came from, copied from the input. Without it, row i belongs
      to event i, and there are as many rows as events.
    - ``_error``: a reason; the event becomes a dead letter and writes no row.
    - ``_skip``: true; the row is not written, and its event is done.

    Every event needs a result (``is_missing_skipped``), which must not depend on the other events of the
    batch: where the function raises, the batch is halved until each event that it raises for stands alone and
    becomes a dead letter with that reason. So it may see an event several times, in any company, and should
    have no effects of its own.
    """

    function: ArrowFunction


@dataclass(frozen=True, slots=True)
class PandasHandler(_BatchFunction):
    """A pipeline's handler that turns a ``pandas.DataFrame`` of events into rows; else as ``ArrowHandler``.

    ``properties`` and ``systemProperties`` are dicts, ``enqueuedTime`` is in UTC. The index of the result is
    ignored, and NaN, NaT and None all become NULL.
    """

    function: PandasFunction


BatchHandler = ArrowHandler | PandasHandler
"""A handler that takes many events at once, as columns."""


def checked_columns(columns: Sequence[str], subject: str) -> tuple[str, ...]:
    """The columns that a batch function asks for. subject: how an error begins.

    Raises InvalidArgumentError unless they are columns of events, at least one, each once.
    """
    if isinstance(columns, str):
        raise InvalidArgumentError(
            f"{subject} needs a list of column names, got the string {columns!r}.",
            next_step=f"Write columns=({columns!r},).",
        )
    unknown = [name for name in columns if name not in EVENT_COLUMNS and property_of(name) is None]
    if unknown:
        raise InvalidArgumentError(
            f"Events have no column {unknown[0]!r}.",
            next_step=f"They have {', '.join(EVENT_COLUMNS)}, and properties.NAME for one of the properties; "
            "fields of a body are yours to parse.",
        )
    if not columns or len(set(columns)) != len(columns):
        raise InvalidArgumentError(f"{subject} asks for one column or more, each once.")
    return tuple(columns)
