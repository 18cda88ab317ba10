"""What a shadow is called, and where it and its live pipeline are.

A shadow has a table of its own, ``TABLE__NAME`` beside the live one, and checkpoints, dead letters and their
audit trail under a consumer group of its own, ``GROUP~NAME``. A suffix is what every database has: a
transaction does not span SQLite's attached files, and MariaDB has no schemas.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Table, and_, exc, select

from tidegate.model.errors import Fault, InvalidArgumentError, TidegateError
from tidegate.processor.lease import SHADOW_MARK
from tidegate.sql.core.database import Database
from tidegate.sql.core.failures import translate
from tidegate.sql.core.schema import checkpoint, in_partition_order, of_consumer
from tidegate.sql.core.values import ConsumerKey

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,19}")
_IDENTIFIER_MAX: Final = 63
"""Characters of a table's name in PostgreSQL; MariaDB has one more."""


class ShadowError(TidegateError, fault=Fault.STATE):
    """A shadow that is not where its live pipeline is, or cannot be swapped; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """The next version of a pipeline, beside the live one. Raises InvalidArgumentError if unusable."""

    name: str
    pipeline_name: str
    live: ConsumerKey
    """The live pipeline's, whose group the pipeline declares."""
    table: Table
    """As the next version declares it, with the live one's name."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidArgumentError(
                f"{self.name[:40]!r} cannot be the name of a shadow.",
                next_step="Use up to 20 small letters, digits and underscores, beginning with a letter.",
            )
        if len(self.spare_name("1")) > _IDENTIFIER_MAX:
            raise InvalidArgumentError(
                f"The table name {self.table_name} is too long.", next_step="Give the shadow a shorter name."
            )
        if not self.table.primary_key.columns:
            raise InvalidArgumentError(
                f"The table {self.table.name} has no primary key, so its rows cannot be compared.",
                next_step="Declare one, for example the event's partition and sequence number.",
            )

    @property
    def consumer(self) -> ConsumerKey:
        """Whose checkpoints and dead letters are the shadow's."""
        return ConsumerKey(self.live.event_hub, f"{self.live.consumer_group}{SHADOW_MARK}{self.name}")

    @property
    def query_name(self) -> str:
        """The name under which the pipeline runs on Spark."""
        return f"{self.pipeline_name}.{self.name}"

    @property
    def table_name(self) -> str:
        """The name of the shadow's table."""
        return f"{self.table.name}__{self.name}"

    def spare_name(self, purpose: str) -> str:
        """The name of a table that a swap needs."""
        return f"{self.table_name}__{purpose}"

    def shadow_table(self) -> Table:
        """The shadow's table, declared in the live one's metadata."""
        table = self.table
        known = table.metadata.tables.get(f"{table.schema}." * bool(table.schema) + self.table_name)
        if known is not None:
            return known
        copy = table.to_metadata(table.metadata, name=self.table_name)
        # A schema has one of each name, and after a swap the live table keeps those of its shadow.
        token = uuid.uuid4().hex[:8]
        parts: list[Any] = [*copy.indexes, *copy.constraints]
        for part in parts:
            if isinstance(part.name, str):
                part.name = f"{part.name[:40]}_{token}"
        return copy


@dataclass(frozen=True, slots=True)
class ShadowPosition:
    """How far both are in a partition: the next sequence number; None: nothing is processed."""

    partition_id: str
    live: int | None
    shadow: int | None

    @property
    def is_same(self) -> bool:
        """Whether both have processed the same events; none, if the number is 0 or absent."""
        return (self.live or 0) == (self.shadow or 0)


def read_positions(live: Connection, own: Connection, shadow: Shadow) -> list[ShadowPosition]:
    """Both positions in each partition. live, own: connections that see the live one's, and the shadow's.

    Raises as ``live_positions``.
    """
    ours, theirs = live_positions(live, shadow), _positions(own, shadow.consumer)
    return [ShadowPosition(each, ours.get(each), theirs.get(each)) for each in {**ours, **theirs}]


def live_positions(connection: Connection, shadow: Shadow) -> dict[str, int]:
    """The live checkpoints, up to which a shadow is replayed. Raises ShadowError if there are none."""
    found = _positions(connection, shadow.live)
    if not found:
        raise ShadowError(
            f"The pipeline {shadow.pipeline_name} has no checkpoint of {shadow.live} in this database.",
            next_step="A shadow is for a pipeline that has run. Check --database, or run the pipeline.",
        )
    return found


def _positions(connection: Connection, consumer: ConsumerKey) -> dict[str, int]:
    row = checkpoint.c
    mine = and_(of_consumer(checkpoint, consumer), row.next_sequence_number.is_not(None))
    statement = select(row.partition_id, row.next_sequence_number).where(mine)
    found = connection.execute(statement.order_by(*in_partition_order(checkpoint)))
    return {row.partition_id: row.next_sequence_number for row in found}


def check_positions(shadow: Shadow, positions: Sequence[ShadowPosition]) -> None:
    """Raises ShadowError unless both have processed the same events."""
    apart = [each for each in positions if not each.is_same]
    if apart:
        said = "; ".join(
            f"partition {each.partition_id}: shadow {each.shadow or 0}, live {each.live or 0}"
            for each in apart
        )
        raise ShadowError(
            f"The shadow {shadow.name} has not processed the same events as the live pipeline: {said}.",
            next_step="Stop the live pipeline if it runs, and run `tidegate pipeline replay`: it ends at "
            "the live checkpoint.",
        )


@contextmanager
def reading_snapshot(database: Database) -> Iterator[Connection]:
    """A transaction that sees one state of the database, whatever is committed meanwhile."""
    try:
        with database.read() as connection:
            database.dialect.begin_snapshot(connection)
            yield connection
    except exc.SQLAlchemyError as error:
        raise translate(error, doing="comparing a shadow", where=database.url) from error
