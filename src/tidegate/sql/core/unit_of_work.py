"""One transaction for everything that a batch does: rows, dead letters and the checkpoint.

Theory of operation. ``lock`` locks the checkpoint's row (PostgreSQL) or the whole database (SQLite), so that
competitors for a partition queue. ``advance`` moves the checkpoint only from where this batch started (a
compare-and-set), so that an overtaken owner cannot commit. Each transaction writes a random token where it
moves something. If the connection breaks during COMMIT, the token is read on a new connection, behind the
same row lock, and shows the outcome (``lost_commit``). COMMIT is never sent twice.

Order of locks: the writers' file lock (SQLite), then checkpoint rows in ascending partition id, then dead
letters in ascending sequence number. Lanes of published events come between them in any order: only the
transaction that holds their checkpoint waits for one, and a relay passes by (``outbox.lanes``).
"""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Table, text, update
from sqlalchemy import exc as sqlalchemy_errors

from tidegate.model.errors import DatabaseError, FencedError
from tidegate.sql.core.checkpoint_rows import CheckpointRows, CheckpointStep, LockedCheckpoint
from tidegate.sql.core.database import Database
from tidegate.sql.core.dead_letter_statements import parameters_of, upsert
from tidegate.sql.core.failures import ROW_ERRORS, is_bad_data, is_connection_lost, reason_of, translate
from tidegate.sql.core.lost_commit import CommitOutcome, Witness, resolve_lost_commit
from tidegate.sql.core.row_groups import insert_group
from tidegate.sql.core.schema import checkpoint, of_consumer
from tidegate.sql.core.values import Checkpoint, ConsumerKey, NewDeadLetter, PartitionRows, Row, storable_text

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup


SWAP_TOKEN: Final = "swap:"
"""With the shadow's name, the transaction token of a checkpoint while tables and dead letters are exchanged
(``shadows.swap``)."""


class RowsRefusedError(DatabaseError):
    """The database refused values of rows; the transaction is rolled back, or to its savepoint."""

    def __init__(self, message: str, *, reason: BaseException, is_at_commit: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        """The driver's error, with the database's own message."""
        self.is_at_commit = is_at_commit
        """True: a deferred constraint refused the whole transaction at its commit."""


def default_owner() -> str:
    """``host:process``, recorded with checkpoints for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


class UnitOfWork:
    """One writing transaction for one consumer; a context manager, used once, by one thread.

    A clean exit commits, an exception rolls everything back. Do slow work (decoding, handlers) before
    entering, because others wait for the locks.
    """

    def __init__(
        self,
        database: Database,
        consumer: ConsumerKey,
        *,
        pipeline_name: str = "",
        owner: str | None = None,
        lease_epoch: int | None = None,
    ) -> None:
        """owner: recorded with the checkpoint; None: ``host:process``.

        lease_epoch: of this owner's lease. A checkpoint moved under a higher epoch refuses it. None: no
        lease, so only the compare-and-set decides.
        """
        self.database = database
        self.consumer = consumer
        self.pipeline_name = pipeline_name
        self.owner = owner or default_owner()
        self.lease_epoch = lease_epoch
        self.token = uuid.uuid4().hex
        """Identifies this transaction in what it writes."""
        self._rows = CheckpointRows(consumer, database.clock)
        self._stack: ExitStack | None = None
        self._connection: Connection | None = None
        self._witness: Witness | None = None
        self._guard = threading.Lock()
        """Held while the connection is returned, or while another thread aborts it: never both at once."""
        self._is_aborted = False
        self._violations_before: int | None = None
        """Broken foreign keys before anything was written; None: not counted."""

    @property
    def connection(self) -> Connection:
        """The transaction's connection, for your own statements, which commit with the checkpoint.

        Raises FencedError if the transaction was aborted, DatabaseError if it has ended or never began.
        """
        self._check_not_aborted()
        if self._connection is None:
            raise DatabaseError(
                "This unit of work is not open: it was not entered, or has been committed or rolled back."
            )
        return self._connection

    def _check_not_aborted(self) -> None:
        if self._is_aborted:
            raise FencedError(
                f"This transaction of {self.consumer} was aborted: it did not end when its partition was "
                "closed.",
                next_step="Nothing of this batch was written; leave the partition to its next owner.",
            )

    def __enter__(self) -> UnitOfWork:
        """Acquire the writers' lock (SQLite) and begin. Raises DatabaseUnavailableError."""
        assert self._stack is None, "a unit of work is used once"
        with ExitStack() as stack:
            connection = stack.enter_context(self.database.writing())
            with self.translating("beginning a transaction"):
                connection.begin()
            self._connection = connection
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._connection is None:
            return
        if error is None:
            self.commit()
        else:
            self.rollback()

    def lock(self, partition_id: str) -> int | None:
        """Wait for this partition's checkpoint and lock it until the transaction ends.

        Returns its next sequence number; None if nothing was ever committed (the row is created).
        Raises DatabaseUnavailableError if others hold it for too long.
        """
        return self.lock_checkpoint(partition_id).next_sequence_number

    def lock_checkpoint(self, partition_id: str) -> LockedCheckpoint:
        """Lock as ``lock`` does, and return the whole checkpoint, with the identity of its hub.

        Raises FencedError if it was moved under a higher lease epoch than this unit's.
        """
        return self.lock_checkpoints([partition_id])[partition_id]

    def lock_checkpoints(self, partition_ids: Sequence[str]) -> dict[str, LockedCheckpoint]:
        """Lock several partitions' checkpoints together; nothing may have been locked before.

        partition_ids: ascending, which prevents deadlocks between transactions.
        """
        with self.translating(f"locking {_partitions(partition_ids)} of {self.consumer}"):
            locked = self._rows.lock_existing(self.connection, partition_ids)
            if len(locked) < len(partition_ids):
                if len(partition_ids) > 1:
                    self._begin_again()  # rows after a missing one are already locked, out of order
                locked = {each: self._rows.lock(self.connection, each) for each in partition_ids}
        for partition_id, found in locked.items():
            check_epoch(self.consumer, partition_id, found, self.lease_epoch)
        return locked

    def _begin_again(self) -> None:
        transaction = self.connection.get_transaction()
        assert transaction is not None
        transaction.rollback()
        self.connection.begin()

    def claim(self, partition_id: str, **changes: object) -> None:
        """Record this owner and its lease epoch in a locked checkpoint, without moving it.

        After the commit, no owner with a lower epoch can move it. changes: other columns to set.
        """
        with self.translating(f"claiming partition {partition_id} of {self.consumer}"):
            here = of_consumer(checkpoint, self.consumer, partition_id)
            self.connection.execute(update(checkpoint).where(here).values(self._mark() | changes))

        def outcome(connection: Connection) -> CommitOutcome:
            found = self._rows.lock(connection, partition_id)
            is_mine = found.transaction_token == self.token
            return CommitOutcome.COMMITTED if is_mine else CommitOutcome.ROLLED_BACK

        self.set_witness(outcome)

    def insert_rows(self, table: Table, rows: Sequence[Row]) -> int:
        """Insert rows with any mix of columns, grouped by their columns. Returns how many.

        Raises RowsRefusedError if the database refuses their values, DatabaseError for a column that
        ``table`` lacks.
        """
        groups: dict[tuple[str, ...], list[tuple[object, ...]]] = {}
        for row in rows:
            groups.setdefault(tuple(row), []).append(tuple(row.values()))
        for columns, values in groups.items():
            self._insert(table, PartitionRows(columns, values, range(len(values))))
        return len(rows)

    def insert_values(self, table: Table, rows: RowGroup) -> int:
        """Insert rows given as tuples or columns. Returns how many. Raises as ``insert_rows``."""
        self._insert(table, rows)
        return len(rows)

    def make_constraints_immediate(self, *, is_commit_refused: bool = False) -> None:
        """Check constraints immediately instead of at the commit, so that a refused row can be found.

        SQLite cannot. is_commit_refused: the last attempt was refused at its commit, so
        ``check_deferred_constraints`` may read through all tables with foreign keys each time.
        """
        with self.translating("making constraints immediate"):
            is_done = self.database.dialect.make_constraints_immediate(self.connection)
            if not is_done and is_commit_refused and self.database.is_sqlite:
                self._violations_before = self._count_violations()

    def check_deferred_constraints(self) -> None:
        """Raises RowsRefusedError for a broken foreign key that only the commit would have refused."""
        if self._violations_before is None:
            return
        with self.translating("checking foreign keys"):
            is_broken = self._count_violations() > self._violations_before
        if is_broken:
            reason = sqlite3.IntegrityError("FOREIGN KEY constraint failed")
            raise rows_refused(reason, "rows whose foreign key refers to no row")

    def _count_violations(self) -> int:
        statement = text("SELECT count(*) FROM pragma_foreign_key_check")
        return int(self.connection.execute(statement).scalar_one())

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what fails inside; the transaction stays usable."""
        with self.translating("setting a savepoint"), self.connection.begin_nested():
            yield

    @contextmanager
    def translating(self, doing: str) -> Iterator[None]:
        """Turn SQLAlchemy's errors into DatabaseErrors that say what failed while ``doing``."""
        try:
            yield
        except sqlalchemy_errors.SQLAlchemyError as error:
            self._check_not_aborted()
            raise translate(error, doing=doing, where=self.database.url) from error

    def add_dead_letters(self, partition_id: str, dead_letters: Sequence[NewDeadLetter]) -> int:
        """Write dead letters; existing ones are reopened with one more attempt. Returns how many."""
        if not dead_letters:
            return 0
        parameters = parameters_of(
            self.consumer,
            partition_id,
            dead_letters,
            pipeline_name=self.pipeline_name,
            now=self.database.clock.now_utc(),
        )
        with self.translating("writing dead letters"):
            for statement in upsert(self.database.dialect):
                self.connection.execute(statement, parameters)
        return len(parameters)

    def advance(
        self,
        partition_id: str,
        from_sequence_number: int | None,
        until_sequence_number: int,
        *,
        offset: str | None = None,
        enqueued_time_ms: int | None = None,
        event_hub_created_at_ms: int | None = None,
    ) -> None:
        """Move the checkpoint to ``until_sequence_number``, if it is still where this batch began.

        from_sequence_number: what ``lock`` returned; None: there was no checkpoint. offset, enqueued_time_ms:
        of the batch's last event. event_hub_created_at_ms: which hub; None keeps the stored value.
        Raises FencedError if another owner moved it; then this transaction cannot be committed.
        """
        step = CheckpointStep(
            partition_id,
            from_sequence_number,
            until_sequence_number,
            offset,
            enqueued_time_ms,
            event_hub_created_at_ms,
        )
        self.advance_all([step])

    def advance_all(self, steps: Sequence[CheckpointStep]) -> None:
        """Move several partitions' checkpoints as ``advance`` does; at least one."""
        with self.translating(
            f"moving the checkpoint of {_partitions([each.partition_id for each in steps])}"
        ):
            self._rows.advance(self.connection, steps, self._mark())
        self.set_witness(lambda connection: self._checkpoint_outcome(connection, steps))

    def _mark(self) -> dict[str, object]:
        """The columns set in every checkpoint that this transaction moves."""
        mark: dict[str, object] = {
            "transaction_token": self.token,
            "owner": storable_text(self.owner),
            "updated_at": self.database.clock.now_utc(),
        }
        if self.lease_epoch is not None:
            mark["lease_epoch"] = self.lease_epoch
        return mark

    def set_witness(self, witness: Witness) -> None:
        """Set how a lost COMMIT's outcome is found out. One witness is enough; the last call wins."""
        self._witness = witness

    def commit(self) -> None:
        """Commit everything in this unit of work, or nothing.

        If the connection breaks meanwhile, the outcome is found out. Returns if the transaction was
        committed. Raises DatabaseUnavailableError if it was rolled back or the outcome stays unknown
        (repeating the batch is safe either way: it starts from the checkpoint), FencedError if another owner
        has moved the checkpoint since, and RowsRefusedError for a deferred constraint.
        """
        try:
            # In SQLite, a COMMIT after an abort would find no transaction and report success.
            with self._guard:
                transaction = self.connection.get_transaction()
                assert transaction is not None
                transaction.commit()
        except sqlalchemy_errors.SQLAlchemyError as error:
            self.rollback()
            is_final = self.database.dialect.is_commit_error_final or is_bad_data(error)
            if is_connection_lost(error) or not is_final:
                resolve_lost_commit(self.database, self.consumer, self._witness, error)
            elif is_bad_data(error):
                raise rows_refused(error, "the commit", is_at_commit=True) from error
            else:
                raise translate(error, doing="committing", where=self.database.url) from error
        finally:
            self._close()

    def rollback(self) -> None:
        """Undo everything and release the locks."""
        if self._connection is not None:
            try:
                transaction = self._connection.get_transaction()
                if transaction is not None:
                    transaction.rollback()
            except sqlalchemy_errors.SQLAlchemyError:
                # The server itself rolls back a broken connection's transaction.
                self._connection.invalidate()
            finally:
                self._close()

    def abort(self) -> bool:
        """Undo everything from another thread, because this unit's thread hangs in a user's code.

        The thread's next use of the connection fails, and so does its commit. Returns False if no transaction
        is open. Takes as long as one statement.
        """
        with self._guard:
            if self._connection is None or self._is_aborted:
                return False
            self._is_aborted = True
            self.database.abort(self._connection)
        return True

    def _close(self) -> None:
        with self._guard:
            connection, self._connection = self._connection, None
            stack, self._stack = self._stack, None
            if connection is not None and self._is_aborted:
                connection.invalidate()
            if stack is not None:
                stack.close()

    def _insert(self, table: Table, rows: RowGroup) -> None:
        unknown = [name for name in rows.columns if name not in table.columns]
        if unknown:
            raise DatabaseError(
                f"The table {table.name} has no column {', '.join(map(repr, unknown))}.",
                next_step=f"It has {', '.join(table.columns.keys())}.",
            )
        if not rows.columns:
            raise DatabaseError(
                f"There are rows for the table {table.name} without any of its columns.",
                next_step=f"It has {', '.join(table.columns.keys())}.",
            )
        with self.writing_rows(table):
            insert_group(self.connection, table, rows)

    @contextmanager
    def writing_rows(self, table: Table) -> Iterator[None]:
        """Turn errors of a statement that writes rows into RowsRefusedError or another DatabaseError."""
        try:
            yield
        except ROW_ERRORS as error:
            self._check_not_aborted()
            if is_bad_data(error):
                raise rows_refused(error, f"rows for {table.name}") from error
            raise translate(error, doing=f"inserting into {table.name}", where=self.database.url) from error

    def _checkpoint_outcome(self, connection: Connection, steps: Sequence[CheckpointStep]) -> CommitOutcome:
        """Either all steps were taken or none; other owners may have moved some checkpoints since."""
        found = {each: self._rows.lock(connection, each.partition_id) for each in steps}
        if any(locked.transaction_token == self.token for locked in found.values()):
            return CommitOutcome.COMMITTED
        is_done = all(
            locked.next_sequence_number is not None
            and locked.next_sequence_number >= step.until_sequence_number
            for step, locked in found.items()
        )
        return CommitOutcome.SUPERSEDED if is_done else CommitOutcome.ROLLED_BACK


def check_epoch(
    consumer: ConsumerKey, partition_id: str, found: LockedCheckpoint | Checkpoint, lease_epoch: int | None
) -> None:
    """Raises FencedError if the checkpoint was moved under a higher epoch than ``lease_epoch``, or if a swap
    with a shadow has to be completed first."""
    if found.transaction_token is not None and found.transaction_token.startswith(SWAP_TOKEN):
        name = found.transaction_token.removeprefix(SWAP_TOKEN)
        raise FencedError(
            f"A swap of {consumer} with its shadow {name} was interrupted.",
            next_step=f"Complete it: run `tidegate pipeline swap` with --shadow {name} again.",
        )
    if lease_epoch is not None and (found.lease_epoch or 0) > lease_epoch:
        raise FencedError(
            f"Partition {partition_id} of {consumer} was taken over by {found.owner} under lease epoch "
            f"{found.lease_epoch}; this owner's is {lease_epoch}.",
            next_step="Nothing of this batch was written; leave the partition to that owner.",
        )


def _partitions(partition_ids: Sequence[str]) -> str:
    return f"partition{'s' if len(partition_ids) > 1 else ''} {', '.join(partition_ids)}"


def rows_refused(error: BaseException, what: str, *, is_at_commit: bool = False) -> RowsRefusedError:
    """The error for values that the database refused with ``error``."""
    reason = reason_of(error)
    words = " ".join(str(reason).split())
    return RowsRefusedError(f"The database refused {what}: {words}", reason=reason, is_at_commit=is_at_commit)
