"""The statement that writes dead letters, built once per kind of database, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, and_, case, literal_column, or_

from tidegate.sql.core.dialects.base import Columns, SqlDialect
from tidegate.sql.core.schema import dead_letter
from tidegate.sql.core.values import (
    OVER_HTTP,
    REASON_CHARACTERS_MAX,
    TRACEBACK_CHARACTERS_MAX,
    ConsumerKey,
    DeadLetterStatus,
    NewDeadLetter,
    storable_key,
    storable_text,
)


@cache
def upsert(dialect: SqlDialect) -> Sequence[Executable]:
    """Insert dead letters, or reopen existing ones with one more attempt, by statements in order.

    One with another enqueued time is of another event: its hub was deleted and created again. A handler's
    attempts begin with its own: those of one that was added over HTTP do not count.
    """
    return dialect.upsert_values(dead_letter, _changes)


def _changes(new: Columns) -> dict[str, ColumnElement[Any]]:
    kept = ("first_failed_at", "attempts", *(column.name for column in dead_letter.primary_key))
    changes: dict[str, ColumnElement[Any]] = {
        column.name: new[column.name] for column in dead_letter.columns if column.name not in kept
    }
    # Literals: PyMySQL's executemany puts parameters only into VALUES.
    one: ColumnElement[int] = literal_column("1")
    over_http: ColumnElement[str] = literal_column(f"'{OVER_HTTP}'")
    is_again = and_(
        dead_letter.c.enqueued_time_ms == new["enqueued_time_ms"],
        or_(dead_letter.c.pipeline != over_http, new["pipeline"] == over_http),
    )
    changes["attempts"] = case((is_again, dead_letter.c.attempts + one), else_=one)
    changes["first_failed_at"] = case((is_again, dead_letter.c.first_failed_at), else_=new["first_failed_at"])
    return changes


def parameters_of(
    consumer: ConsumerKey,
    partition_id: str,
    letters: Sequence[NewDeadLetter],
    *,
    pipeline_name: str,
    now: datetime,
) -> list[dict[str, object]]:
    """The parameters of ``upsert``, one dictionary per dead letter."""
    rows: list[dict[str, object]] = [
        {
            "event_hub": consumer.event_hub,
            "consumer_group": consumer.consumer_group,
            "partition_id": partition_id,
            "sequence_number": letter.sequence_number,
            "offset": storable_text(letter.offset),
            "enqueued_time_ms": letter.enqueued_time_ms,
            "partition_key": None if letter.partition_key is None else storable_key(letter.partition_key),
            "payload": letter.payload,
            "status": DeadLetterStatus.OPEN.value,
            "attempts": 1,
            "first_failed_at": now,
            "last_failed_at": now,
            "pipeline": pipeline_name,
            **texts_of(letter.error_type, letter.reason, letter.traceback),
        }
        for letter in letters
    ]
    return [{f"new_{name}": value for name, value in row.items()} for row in rows]


def texts_of(error_type: str, reason: str, traceback: str) -> dict[str, str]:
    """A dead letter's three strings as stored: cut, and without characters that a database refuses."""
    return {
        "error_type": storable_text(error_type, REASON_CHARACTERS_MAX),
        "reason": storable_text(reason, REASON_CHARACTERS_MAX),
        "traceback": storable_text(traceback, TRACEBACK_CHARACTERS_MAX, is_end_kept=True),
    }
