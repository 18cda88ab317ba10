"""Reading checkpoints: where each consumer is. They are moved only by ``UnitOfWork.advance``."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select

from tidegate.sql.database import Database
from tidegate.sql.schema import checkpoint
from tidegate.sql.values import Checkpoint, ConsumerKey


class CheckpointReader:
    """Reads checkpoints without waiting for those who move them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, consumer: ConsumerKey) -> dict[str, Checkpoint]:
        """This consumer's checkpoints by partition id; a partition that was never touched is absent.

        Raises DatabaseError and DatabaseUnavailableError.
        """
        row = checkpoint.c
        mine = (row.event_hub == consumer.event_hub, row.consumer_group == consumer.consumer_group)
        return {found.partition_id: found for found in self._select(*mine)}

    def read_all(self) -> list[Checkpoint]:
        """Every consumer's checkpoints, by hub, group and partition. Raises as ``read`` does."""
        return self._select()

    def _select(self, *conditions: ColumnElement[bool]) -> list[Checkpoint]:
        row = checkpoint.c
        statement = (
            select(checkpoint)
            .where(*conditions)
            .order_by(row.event_hub, row.consumer_group, func.length(row.partition_id), row.partition_id)
        )
        with self._database.read() as connection:
            return [Checkpoint(**found) for found in connection.execute(statement).mappings()]
