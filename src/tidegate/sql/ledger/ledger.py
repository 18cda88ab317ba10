"""The ledger records committed micro-batches, for queries whose rows belong to no partition.

Theory of operation. After a shuffle, rows have no sequence numbers, so no checkpoint shows whether they were
written. Spark identifies a micro-batch by its query's id (stored in the checkpoint directory) and a number
that grows by one; the offsets that Spark journals before running it fix its contents. Per query name, the
ledger keeps the query id, the next number and, for the latest batches, a fingerprint of those offsets. Every
transaction locks the name's one row, whose epoch each run of the query raises, so that an overtaken driver
cannot commit.

``decide_batch``, a pure function, decides what happens to a batch. The user can allow what it refuses, once:
the token in the refusal names one batch of one query, so leaving it in a program allows nothing else.

Order of locks: the writers' file lock (SQLite), the query's row, target tables, dead letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update

from tidegate.model.errors import FencedError, InvalidArgumentError, LedgerMismatchError
from tidegate.sql.core.database import Database
from tidegate.sql.core.dialects.base import locking
from tidegate.sql.core.lost_commit import CommitOutcome
from tidegate.sql.core.schema import batch_ledger, ledger_query
from tidegate.sql.core.unit_of_work import UnitOfWork, default_owner
from tidegate.sql.core.values import ConsumerKey, storable_text

BATCHES_KEPT: Final = 200
"""Ledger rows kept per query (our choice: twice what Spark keeps of its own journal,
``spark.sql.streaming.minBatchesToRetain``, so a restored checkpoint directory is recognised)."""

NAME_CHARACTERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch as Spark identifies it."""

    query_id: str
    """Of the checkpoint directory: the same for every run that continues it."""
    run_id: str
    """Of one run of the query."""
    batch_id: int
    fingerprint: str | None
    """Of the offsets that fix its contents; None: they could not be read."""
    previous_id: int | None = None
    """The batch that this run gave the ledger last; None: this is its first one."""

    @property
    def adoption(self) -> str:
        """The token with which a user allows this batch if the ledger refuses it."""
        return f"{self.query_id}:{self.batch_id}"


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the ledger knows of a query and one of its batches."""

    query_id: str
    next_batch_id: int
    is_batch_known: bool = False
    """Whether the ledger still has a row for this batch number and query id."""
    fingerprint: str | None = None
    """Of that row."""


class Decision(Enum):
    """What to do with a micro-batch."""

    WRITE = "write"
    SKIP = "skip"
    """Already committed; Spark was stopped before it could record that."""
    ADOPT = "adopt"
    """Write it, and continue the ledger from it, as the user allowed."""


def decide_batch(state: LedgerState | None, batch: MicroBatch, adoption: str | None = None) -> Decision:
    """Decide what to do with ``batch``.

    state: None: the ledger has no query of this name. adoption: the token that the user gave. Raises
    LedgerMismatchError if writing could duplicate rows and skipping could lose some.
    """
    trouble = _trouble(state, batch)
    if trouble is None:
        is_next = state is None or batch.batch_id >= state.next_batch_id
        return Decision.WRITE if is_next else Decision.SKIP
    if adoption == batch.adoption:
        return Decision.ADOPT
    problem, remedy = trouble
    raise LedgerMismatchError(
        problem,
        next_step=f"{remedy} To continue from this batch anyway, start once with adopt={batch.adoption!r}: "
        "upserted complete rows then become correct with each row's next change, and appended rows may be "
        "missing or duplicated.",
    )


_SKIPPED: Final = (
    "If a function of yours gave the sink nothing for them, let it call write for each micro-batch, also for "
    "one without rows."
)


def _trouble(state: LedgerState | None, batch: MicroBatch) -> tuple[str, str] | None:
    """What is wrong with this batch, and the remedy; None: nothing."""
    number = batch.batch_id
    if state is None:
        if number == 0:
            return None
        return (
            f"The first batch that the ledger sees of this query is number {number}: the {number} before it "
            "were written elsewhere, or the database was replaced.",
            "Start with a new checkpoint directory to begin from the source's start, or restore the "
            f"database. {_SKIPPED}",
        )
    if state.query_id != batch.query_id:
        return (
            f"The ledger knows this query by another checkpoint directory (query id {state.query_id}, "
            f"{state.next_batch_id} batches), and this run's has the query id {batch.query_id}: its batches "
            "count from 0 again.",
            "Start with the old checkpoint directory, or give another query another name; if the old one is "
            "lost, empty the target tables before you continue.",
        )
    if number > state.next_batch_id:
        if batch.previous_id == state.next_batch_id - 1:
            return None  # a function of the user's gave the sink nothing for those between
        return (
            f"Batch {number} was started, and the ledger expects {state.next_batch_id}: what Spark's "
            "checkpoint records as done is not in this database, as after restoring a backup of it.",
            "Restore the checkpoint directory of the same time, or empty the target tables and start with "
            f"a new checkpoint directory. {_SKIPPED}",
        )
    if number == state.next_batch_id:
        return None
    is_last = number == state.next_batch_id - 1
    if state.is_batch_known and state.fingerprint is not None and batch.fingerprint is not None:
        if state.fingerprint == batch.fingerprint:
            return None
    elif state.is_batch_known and is_last:
        # Nothing to compare. If its checkpoint was not changed, Spark repeats only its last batch.
        return None
    return (
        f"Batch {number} has other events than it was committed with; the ledger expects batch "
        f"{state.next_batch_id} next. Spark's checkpoint directory is older than the database, as after "
        "restoring a backup of it, or two copies of it are in use.",
        "Use the checkpoint directory that belongs to this database, or restore the database of the same "
        "time.",
    )


class BatchLedger:
    """The ledger of one query. Cheap to create; not thread-safe."""

    def __init__(
        self,
        database: Database,
        query_name: str,
        *,
        adoption: str | None = None,
        batches_kept: int = BATCHES_KEPT,
    ) -> None:
        """adoption: the token of a refusal that the user overrides, see ``decide_batch``.

        batches_kept: ledger rows to keep, at least 1.
        """
        if not query_name or len(query_name) > NAME_CHARACTERS_MAX:
            raise InvalidArgumentError(
                f"A ledger's query needs a name of 1 to {NAME_CHARACTERS_MAX} characters."
            )
        if batches_kept < 1:
            raise InvalidArgumentError(f"batches_kept must be at least 1, got {batches_kept}.")
        self.database = database
        self.query_name = query_name
        self._adoption = adoption
        self._batches_kept = batches_kept

    def claim(self, batch: MicroBatch) -> int:
        """Take over the query for the run whose first batch is ``batch``; returns the epoch for ``enter``.

        Afterwards, runs that were started earlier cannot commit. The same run may claim again.
        Raises LedgerMismatchError, DatabaseError, DatabaseUnavailableError.
        """
        with UnitOfWork(self.database, self._stand_in) as unit:
            with unit.translating(f"claiming the query {self.query_name} in the ledger"):
                state, run_id, epoch = self._lock(unit.connection, batch)
            decision = decide_batch(state, batch, self._adoption)
            if run_id == batch.run_id and decision is not Decision.ADOPT:
                unit.rollback()
                return epoch
            changes: dict[str, object] = {"epoch": epoch + 1, "run_id": batch.run_id}
            with unit.translating(f"claiming the query {self.query_name} in the ledger"):
                if state is None or decision is Decision.ADOPT:
                    self._forget_from(unit.connection, batch)
                    changes |= {"query_id": batch.query_id, "next_batch_id": batch.batch_id}
                self._update(unit, changes)
            unit.set_witness(lambda connection: self._claim_outcome(connection, unit.token))
        return epoch + 1

    def is_committed(self, batch: MicroBatch) -> bool:
        """Whether ``batch`` is already committed; read without waiting, before it is computed.

        Raises LedgerMismatchError.
        """
        with self.database.read() as connection:
            state = self._state(connection, batch)[0]
        return decide_batch(state, batch, self._adoption) is Decision.SKIP

    def enter(self, unit: UnitOfWork, batch: MicroBatch, epoch: int) -> bool:
        """Lock the query and enter ``batch``, to be committed with ``unit``'s other writes.

        Call it first in the transaction, and ``record`` last. Returns False if the batch is already
        committed: then write nothing. Raises FencedError if a later run has claimed the query, and
        LedgerMismatchError as ``decide_batch`` does.
        """
        with unit.translating(f"entering batch {batch.batch_id} of {self.query_name} into the ledger"):
            state, _, stored_epoch = self._lock(unit.connection, batch)
        if stored_epoch != epoch:
            raise self._fenced(unit.connection)
        return decide_batch(state, batch) is Decision.WRITE

    def record(self, unit: UnitOfWork, batch: MicroBatch, *, rows: int, dead_letters: int) -> None:
        """Write the ledger's row of an entered batch, and delete old ones."""
        row = batch_ledger.c
        with unit.translating(f"entering batch {batch.batch_id} of {self.query_name} into the ledger"):
            unit.connection.execute(
                batch_ledger.insert().values(
                    query_name=self.query_name,
                    query_id=batch.query_id,
                    batch_id=batch.batch_id,
                    fingerprint=batch.fingerprint,
                    row_count=rows,
                    dead_letter_count=dead_letters,
                    transaction_token=unit.token,
                    committed_at=self.database.clock.now_utc(),
                )
            )
            unit.connection.execute(
                delete(batch_ledger).where(
                    row.query_name == self.query_name,
                    row.query_id == batch.query_id,
                    row.batch_id <= batch.batch_id - self._batches_kept,
                )
            )
            self._update(unit, {"next_batch_id": batch.batch_id + 1})
        unit.set_witness(lambda connection: self._batch_outcome(connection, unit.token, batch))

    @property
    def _stand_in(self) -> ConsumerKey:
        # A unit of work is a consumer's; a query without dead letters has none.
        return ConsumerKey("ledger", self.query_name)

    def _lock(self, connection: Connection, batch: MicroBatch) -> tuple[LedgerState | None, str, int]:
        """The state, the run that last claimed the query, and its epoch; creates a missing row."""
        lock = locking(select(ledger_query.c.epoch).where(self._is_mine), ledger_query)
        if connection.execute(lock).one_or_none() is None:
            row = {
                "query_name": self.query_name,
                "query_id": "",
                "next_batch_id": 0,
                "epoch": 0,
                "run_id": "",
                "owner": "",
                "transaction_token": "",
                "updated_at": self.database.clock.now_utc(),
            }
            # Waits for a competitor that is creating the same row, and then sees it.
            connection.execute(self.database.dialect.insert_or_lock(ledger_query, row))
            connection.execute(lock).all()
        return self._state(connection, batch)

    def _state(self, connection: Connection, batch: MicroBatch) -> tuple[LedgerState | None, str, int]:
        row = ledger_query.c
        found = connection.execute(
            select(row.query_id, row.next_batch_id, row.run_id, row.epoch).where(self._is_mine)
        ).one_or_none()
        if found is None:
            return None, "", 0
        query_id, next_batch_id, run_id, epoch = found
        if not query_id:
            return None, run_id, epoch
        entry = connection.execute(
            select(batch_ledger.c.fingerprint).where(self._is_batch(batch))
        ).one_or_none()
        state = LedgerState(query_id, next_batch_id, entry is not None, None if entry is None else entry[0])
        return state, run_id, epoch

    def _update(self, unit: UnitOfWork, changes: dict[str, object]) -> None:
        unit.connection.execute(
            update(ledger_query)
            .where(self._is_mine)
            .values(
                owner=storable_text(default_owner()),
                transaction_token=unit.token,
                updated_at=self.database.clock.now_utc(),
                **changes,
            )
        )

    def _forget_from(self, connection: Connection, batch: MicroBatch) -> None:
        """Delete the ledger's rows of batches that are about to be written again."""
        row = batch_ledger.c
        connection.execute(
            delete(batch_ledger).where(
                row.query_name == self.query_name,
                or_(row.query_id != batch.query_id, row.batch_id >= batch.batch_id),
            )
        )

    def _fenced(self, connection: Connection) -> FencedError:
        row = ledger_query.c
        owner, updated_at = connection.execute(select(row.owner, row.updated_at).where(self._is_mine)).one()
        return FencedError(
            f"Another driver took over the query {self.query_name}: {owner}, at "
            f"{updated_at:%Y-%m-%d %H:%M:%S} UTC.",
            next_step="Nothing of the batch was written here. Run one driver per query.",
        )

    def _claim_outcome(self, connection: Connection, token: str) -> CommitOutcome:
        statement = locking(select(ledger_query.c.transaction_token).where(self._is_mine), ledger_query)
        found = connection.execute(statement).scalar_one_or_none()
        return CommitOutcome.COMMITTED if found == token else CommitOutcome.ROLLED_BACK

    def _batch_outcome(self, connection: Connection, token: str, batch: MicroBatch) -> CommitOutcome:
        connection.execute(locking(select(ledger_query.c.epoch).where(self._is_mine), ledger_query)).all()
        found = connection.execute(
            select(batch_ledger.c.transaction_token).where(self._is_batch(batch))
        ).scalar_one_or_none()
        if found is None:
            return CommitOutcome.ROLLED_BACK
        return CommitOutcome.COMMITTED if found == token else CommitOutcome.SUPERSEDED

    @property
    def _is_mine(self) -> ColumnElement[bool]:
        return ledger_query.c.query_name == self.query_name

    def _is_batch(self, batch: MicroBatch) -> ColumnElement[bool]:
        row = batch_ledger.c
        return and_(
            row.query_name == self.query_name, row.query_id == batch.query_id, row.batch_id == batch.batch_id
        )


def next_batch_id(database: Database, query_name: str) -> int | None:
    """The number of the micro-batch that the ledger expects next; earlier ones are committed.

    query_name: as given to ``LedgerSink``. Returns None if no driver of this query has begun a micro-batch
    yet. Raises DatabaseUnavailableError.
    """
    with database.read() as connection:
        return connection.execute(
            select(ledger_query.c.next_batch_id).where(ledger_query.c.query_name == query_name)
        ).scalar_one_or_none()


def forget_query(connection: Connection, query_name: str) -> None:
    """Delete the ledger's record of a query, so that one of this name can begin at micro-batch 0.

    For a query that restarts with a new checkpoint directory. Stop its driver first, and empty its target
    tables in the same transaction, which the caller commits.
    """
    for table in (batch_ledger, ledger_query):
        connection.execute(delete(table).where(table.c.query_name == query_name))
