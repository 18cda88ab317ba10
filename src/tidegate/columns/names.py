"""The names of events' columns. It does not import pyarrow, which naming a column does not need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.event_texts import property_of

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
"""The columns of an event, with names and types of the data source ``eventhubs``; there is also
``properties.NAME``, one property as a string, null if an event lacks it."""


def checked_columns(columns: Sequence[str], subject: str) -> tuple[str, ...]:
    """The columns that a reader or a batch function asks for. subject: how an error begins.

    Raises InvalidArgumentError unless there is at least one, each an event's column, none repeated.
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
