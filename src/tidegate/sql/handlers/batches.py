"""Handlers of whole batches of events, as Arrow or pandas.

It does not import pyarrow or pandas; ``arrow`` does when a batch is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.columns.names import checked_columns
from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
    PandasFunction = Callable[[pd.DataFrame], pd.DataFrame]

DEFAULT_COLUMNS: Final = ("body", "partition", "sequenceNumber", "enqueuedTime")
"""What a handler is given by default: everything that costs nothing."""

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
"""Columns of a result that say which event a row came from and what to do with it. They are written if the
table has columns of these names."""


class BatchResultError(InvalidArgumentError):
    """A batch function's result cannot be assigned to its events; none of it is written."""


class TransformationError(Exception):
    """A function or a DataFrame set ``_error`` for an event: the type and reason of its dead letter.

    Never raised.
    """


@dataclass(frozen=True, slots=True)
class _BatchFunction:
    function: Callable[[Any], Any]
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    """Which of ``EVENT_COLUMNS`` (or ``properties.NAME``) it is given, in this order; others are not decoded.
    One property by name costs far less than a look-up in the column of all properties."""
    is_missing_skipped: bool = False
    """True: an event without a result is skipped on purpose. False: it is an error, which stops the pipeline
    before any of the batch is written."""

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

    It returns a RecordBatch or Table with columns of the table (a subset is enough) and, optionally:

    - ``sequenceNumber``: the event that each row came from, copied from the input. Without it, row i belongs
      to event i, and there are as many rows as events.
    - ``_error``: a reason; the event becomes a dead letter and writes no row.
    - ``_skip``: true; the row is not written, and its event is done.

    Every event needs a result (unless ``is_missing_skipped``), which must not depend on the batch's other
    events: if the function raises, the batch is halved until each event for which it raises is isolated and
    becomes a dead letter. So the function may get an event several times, in any batch, and should have no
    effects of its own.
    """

    function: ArrowFunction


@dataclass(frozen=True, slots=True)
class PandasHandler(_BatchFunction):
    """Like ``ArrowHandler``, but turns a ``pandas.DataFrame`` of events into rows.

    ``properties`` and ``systemProperties`` are dicts, ``enqueuedTime`` is in UTC. The index of the result is
    ignored, and NaN, NaT and None all become NULL.

    If the columns come from the bodies, as in ``pandas.DataFrame([json.loads(body) …])``, senders choose
    them: they can fill any column of the table, and an unknown name or a list can stop the partition. So name
    the columns, for example with ``frame.reindex(columns=["device", "celsius"])``, and set their types; a
    function that raises for a body makes only that event a dead letter.
    """

    function: PandasFunction


BatchHandler = ArrowHandler | PandasHandler
"""A handler of many events at once, as columns."""
