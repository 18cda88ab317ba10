"""Handlers that take a batch of events at once, as Arrow or as pandas, instead of one event.

What a user declares; nothing here needs pyarrow or pandas. They are imported when a batch is run
(``arrow``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
``properties.NAME``, one of the properties as text, null where an event does not have it."""

DEFAULT_COLUMNS: Final = ("body", "partition", "sequenceNumber", "enqueuedTime")
"""What a handler is given where it does not say: all that costs nothing to make."""

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
"""Columns of a result that say which event a row came from and what is to become of it. They are written to
the table where it has columns of these names."""


class BatchResultError(InvalidArgumentError):
    """A function over batches returned what cannot be put down to its events; nothing of it is written."""


class TransformationError(Exception):
    """A function or a DataFrame set ``_error`` for an event: the type and reason of its dead letter.

    Never raised.
    """


@dataclass(frozen=True, slots=True)
class ArrowHandler:
    """A pipeline's handler that turns a ``pyarrow.RecordBatch`` of events into rows.

    It returns a RecordBatch or Table with the table's columns (a subset will do), and, where it needs them:

    - ``sequenceNumber``: the event that each row came from, taken over from its input. Without it, row i is
      of event i, and there are as many rows as events.
    - ``_error``: a reason; the event becomes a dead letter and writes no row.
    - ``_skip``: true; the row is not written, and its event is done.

    Every event has to come out of it in one of these ways (``is_missing_skipped``). What it makes of an event
    must not depend on the other events of the batch: where it raises, the batch is halved until each event
    that it raises for stands alone, which becomes a dead letter with that reason. So it may see an event
    several times, in any company, and should have no effects of its own.
    """

    function: ArrowFunction
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    """Which of ``EVENT_COLUMNS`` (or ``properties.NAME``) it is given, in this order; what is not asked for
    is not decoded. A property by its name costs far less than a look-up in the column of all of them."""
    is_missing_skipped: bool = False
    """True: an event that does not come out is skipped on purpose. False: it is an error that stops the
    pipeline before anything of the batch is written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _checked(self.function, self.columns))


@dataclass(frozen=True, slots=True)
class PandasHandler:
    """A pipeline's handler that turns a ``pandas.DataFrame`` of events into rows; else as ``ArrowHandler``.

    ``properties`` and ``systemProperties`` are dicts, ``enqueuedTime`` has the zone UTC. Of what it returns,
    the index is not looked at, and NaN, NaT and None all are NULL.
    """

    function: PandasFunction
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    """As in ``ArrowHandler``."""
    is_missing_skipped: bool = False
    """As in ``ArrowHandler``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _checked(self.function, self.columns))


BatchHandler = ArrowHandler | PandasHandler
"""A handler that is given many events at once, as columns."""


def _checked(function: object, columns: tuple[str, ...]) -> tuple[str, ...]:
    if not callable(function):
        raise InvalidArgumentError(
            f"A handler of batches needs a function, not {type(function).__name__}.",
            next_step="Give a function that takes a batch and returns one.",
        )
    return checked_columns(columns, "A handler of batches")


def checked_columns(columns: Sequence[str], subject: str) -> tuple[str, ...]:
    """The columns that a function over batches asks for. subject: who asks, as an error begins.

    Raises InvalidArgumentError where they are not columns of events, or none, or named twice.
    """
    if isinstance(columns, str):
        raise InvalidArgumentError(
            f"{subject} asks for columns by a list of names, not the text {columns!r}.",
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
