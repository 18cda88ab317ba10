"""Tables that are declared as dataclasses, and handlers that return their instances."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, ClassVar, Optional
from uuid import UUID

import pytest
from sqlalchemy import MetaData, Numeric, String, Text
from sqlalchemy.schema import CreateTable
from tests.sql.support import event_with, rows_in

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import Database, DeadLetters, Pipeline, process_partition_batch, table_of
from tidegate.sql.core.values import DeadLetterFilter

_UUID = UUID("12345678123456781234567812345678")
_TIME = datetime(2026, 11, 29, 9, 30, 1, 123456, tzinfo=timezone(timedelta(hours=2)))


@dataclass
class Reading:
    """One column of each kind; what is no field is no column."""

    partition_id: str
    sequence_number: int
    device: Annotated[str, String(64)]
    celsius: float
    is_good: bool
    raw: bytes
    at: datetime
    day: date
    id: UUID
    price: Annotated[Decimal, Numeric(12, 2)]
    note: str | None = None
    old: Optional[int] = field(default=None, init=False)  # noqa: UP045 - the other form
    UNIT: ClassVar[str] = "C"

    @property
    def fahrenheit(self) -> float:
        return self.celsius * 1.8 + 32


def _read(event: ReceivedEvent) -> Reading:
    return Reading(
        event.partition_id,
        event.sequence_number,
        json.loads(event.body)["device"],
        0.1 + 0.2,
        True,
        b"\xff\x00",
        _TIME,
        date(2026, 11, 29),
        _UUID,
        Decimal("12.34"),
    )


def _run(database: Database, handler: Callable[[ReceivedEvent], object], *bodies: object) -> list[object]:
    """The rows after a batch of events with these bodies."""
    table = table_of(Reading, "readings")
    pipeline = Pipeline("readings", "readings", table, handler)  # type: ignore[arg-type]
    database.ensure_table(table)
    events = [event_with(body, number) for number, body in enumerate(bodies)]
    process_partition_batch(
        database, pipeline, "0", events, start_sequence_number=0, until_sequence_number=len(bodies)
    )
    return [*rows_in(database, table)]


def test_each_type_comes_back_as_it_was(database: Database) -> None:
    """On every database: all digits of a float, the microseconds of a time, which is in UTC."""
    (row,) = _run(database, _read, {"device": "ä1"})
    assert row == (
        "0", 0, "ä1", 0.1 + 0.2, True, b"\xff\x00", _TIME.astimezone(UTC), date(2026, 11, 29), _UUID,
        Decimal("12.34"), None, None,
    )  # fmt: skip


def test_a_handler_returns_one_instance_or_several(sqlite_url: str) -> None:
    """Beside mappings; one that cannot be a row is a dead letter with what to return."""

    def handler(event: ReceivedEvent) -> object:
        row = _read(event)
        if row.device == "two":
            other = _read(event)
            other.sequence_number += 100
            return [row, vars(other)]
        return Reading if row.device == "class" else row

    with Database.open(sqlite_url) as database:
        rows = _run(database, handler, {"device": "one"}, {"device": "two"}, {"device": "class"})
        (letter,) = DeadLetters(database).list(DeadLetterFilter(), limit=None)
    assert [row[1] for row in rows] == [0, 1, 101]  # type: ignore[index]
    assert letter.reason.startswith("The handler returned type. Return a mapping or a dataclass's instance")


def test_a_table_is_as_declared() -> None:
    """Keys, NULL, names; it can be shown without a database."""
    metadata = MetaData()
    table = table_of(Reading, "r", primary_key=["device", "note2"][:1], metadata=metadata, schema="s")
    assert metadata.tables["s.r"] is table
    assert [column.name for column in table.primary_key] == ["device"]
    assert {column.name for column in table.columns if column.nullable} == {"note", "old"}
    assert isinstance(table.columns["note"].type, Text)
    keyed = table_of(Reading, "r")
    assert [column.name for column in keyed.primary_key] == ["partition_id", "sequence_number"]
    assert keyed.columns["partition_id"].type.length == 255  # type: ignore[attr-defined]
    assert "NOT NULL" in str(CreateTable(keyed))


@dataclass
class Odd:
    partition_id: str | None
    sequence_number: int
    tags: list[str]
    both: int | str
    unknown: "Missing" = None  # type: ignore[name-defined]  # noqa: F821, UP037


@dataclass
class Price:
    item: str
    price: Decimal | None


@dataclass
class Tagged:
    item: str
    tags: list[str]


@dataclass
class Mixed:
    item: int | str


@dataclass
class Optionally:
    item: str | None


@pytest.mark.parametrize(
    ("row", "key", "words"),
    [
        (
            Price,
            ["item"],
            r"field price of Price has the type Decimal, which has no column.*Annotated\[Decimal",
        ),
        (Tagged, ["item"], r"the type list\[str\], which has no column"),
        (Mixed, ["item"], r"the type int \| str, which has no column"),
        (Optionally, ["item"], r"in the primary key and may be None\. Take \| None away"),
        (Price, ["partition_id", "sequence_number"], "no field partition_id and no sequence_number"),
        (Odd, ["tags"], "An annotation of Odd is not known: name 'Missing'"),
        (int, ["item"], "needs a dataclass, not <class 'int'>"),
        (Price("a", None), ["item"], "needs a dataclass"),
    ],
)
def test_what_has_no_table_is_named(row: type, key: list[str], words: str) -> None:
    """The field, its type, and what to write."""
    with pytest.raises(InvalidArgumentError, match=words):
        table_of(row, "t", primary_key=key)


def test_a_pipeline_wants_the_table_and_not_the_class() -> None:
    """Said where the pipeline is declared, with what to write."""
    with pytest.raises(
        InvalidArgumentError, match=r"is not a sqlalchemy.Table, but Reading\. Write table_of\(Read"
    ):
        Pipeline("p", "h", Reading, _read)  # type: ignore[arg-type]
