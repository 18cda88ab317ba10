"""The context of a transactional handler's call, and the guard that keeps it from ending the transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from sqlalchemy import Connection, Table, event

from tidegate.model.errors import DatabaseError, Fault, InvalidArgumentError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor.dead_letters import REJECTED
from tidegate.processor.handlers import PartitionContext, TransactionContext
from tidegate.sql.core.dialects import dialect_of
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import NewDeadLetter
from tidegate.sql.handlers.handling import groups_of
from tidegate.sql.outbox.writer import OutboxWriter

_ENDS_TRANSACTION = re.compile(
    r"\s*(commit|end|abort|begin|start\s+transaction|prepare\s+transaction"
    r"|rollback(?!\s+((work|transaction)\s+)?to\b|\s+tran(saction)?\s+(?!and\b)\w))\b",
    re.IGNORECASE,
)
"""SQL that begins or ends a transaction; savepoints are allowed, SQL Server's without TO."""


_COMMITS = re.compile(
    r"\s*(create(?!\s+(or\s+replace\s+)?temporary\b)|drop(?!\s+temporary\b)|alter|truncate|rename|grant|revoke"
    r"|lock\s+tables?|unlock\s+tables?|analyze|optimize|repair|flush|set\s+autocommit)\b",
    re.IGNORECASE,
)
"""SQL that commits by itself where a transaction cannot change tables (MariaDB documentation, "SQL statements
That Cause an Implicit Commit")."""


class TransactionMisusedError(DatabaseError):
    """A handler committed, rolled back or closed its transaction; see ``TransactionContext``."""

    fault = Fault.CALLER


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """An event that a call dead-lettered without failing the others."""

    letter: NewDeadLetter
    error: BaseException | None
    is_failure: bool
    """True: the handler failed for it, so the policy decides. False: the handler decided."""


class TransactionCall(TransactionContext):
    """One call's ``TransactionContext``: the partition's own context, the connection, and dead letters."""

    def __init__(
        self,
        partition: PartitionContext,
        unit: UnitOfWork,
        events: Sequence[ReceivedEvent],
        outbox: OutboxWriter,
        *,
        is_payload_copied: bool,
        on_failure: Callable[[BaseException, int], None] | None = None,
    ) -> None:
        """outbox: takes what is published. on_failure: see ``handle_events``."""
        super().__init__(partition.group, partition.event_hub, partition.consumer_group, partition.lease)
        self._unit: UnitOfWork | None = unit
        self._outbox = outbox
        self._events = events
        self._numbers: frozenset[int] | None = None
        self._is_payload_copied = is_payload_copied
        self.on_failure = on_failure
        self.rows = 0
        """Inserted by a pipeline's call, or by ``insert``."""
        self.dead_lettered: dict[int, DeadLettered] = {}
        """By sequence number."""
        self.until: int | None = None
        """One past the last event that the call covers; None: it covers all of its events."""
        self._savepoint = unit.connection.get_nested_transaction()
        """The call's own, later that of its last ``checkpoint``."""

    @property
    def connection(self) -> Connection:
        """See ``TransactionContext``. Raises InvalidArgumentError after the call."""
        return self._open_unit.connection

    @property
    def _open_unit(self) -> UnitOfWork:
        if self._unit is None:
            raise InvalidArgumentError("The context of a handler's call was used after the call.")
        return self._unit

    def insert(self, table: Table, rows: Iterable[object]) -> int:
        """See ``TransactionContext``. Raises DatabaseError if the database itself is at fault."""
        unit = self._open_unit
        groups = groups_of(table, rows)
        with unit.savepoint():
            inserted = sum(unit.insert_values(table, group) for group in groups)
        self.rows += inserted
        return inserted

    def checkpoint(self, event: ReceivedEvent | None = None) -> None:
        """See ``TransactionContext``."""
        number = self._events[-1].sequence_number if event is None else self._number_of(event)
        if self.until is not None and number + 1 < self.until:
            return
        if self.connection.get_nested_transaction() is not self._savepoint:
            raise InvalidArgumentError(
                "checkpoint() was called inside a savepoint of the handler.",
                next_step="Commit or roll back the savepoint, or the Session that opened it, before.",
            )
        if self.until is not None and self._savepoint is not None:
            self._savepoint.commit()
        self.until, self._savepoint = number + 1, self.connection.begin_nested()

    def settle(self) -> None:
        """Keep what the last ``checkpoint`` covers. Raises TransactionMisusedError if a savepoint is open."""
        if self.connection.get_nested_transaction() is not self._savepoint:
            raise misused("The handler left a savepoint open, or ended one that is not its own.")
        if self.until is None or self._savepoint is None:
            return
        if self.until > self._events[-1].sequence_number:
            self._savepoint.commit()
            self.until = None
            return
        self._savepoint.rollback()
        self.dead_lettered = {
            number: each for number, each in self.dead_lettered.items() if number < self.until
        }

    def dead_letter(self, event: ReceivedEvent, error: BaseException | str) -> None:
        """See ``TransactionContext``."""
        self._dead_letter(event, error, is_failure=False)

    def publish(
        self,
        event_hub: str,
        event: EventData,
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> None:
        """See ``TransactionContext``."""
        _ = self.connection
        self._outbox.add(event_hub, event, partition_key=partition_key, partition_id=partition_id)

    def fail(self, event: ReceivedEvent, error: BaseException) -> None:
        """The same for an event that failed without effect: the policy decides."""
        self._dead_letter(event, error, is_failure=True)

    def close(self) -> None:
        """End the call, after which its context must not be used."""
        self._unit = None

    def _dead_letter(self, event: ReceivedEvent, error: BaseException | str, *, is_failure: bool) -> None:
        number = self._number_of(event)
        copied = self._is_payload_copied
        if isinstance(error, str):
            letter = NewDeadLetter.from_text(event, REJECTED, error, is_payload_copied=copied)
            self.dead_lettered[number] = DeadLettered(letter, None, is_failure)
        else:
            letter = NewDeadLetter.from_exception(event, error, is_payload_copied=copied)
            self.dead_lettered[number] = DeadLettered(letter, error, is_failure)

    def _number_of(self, event: ReceivedEvent) -> int:
        """An event's number. Raises InvalidArgumentError if it is not of this call, or after the call."""
        _ = self.connection
        if self._numbers is None:
            self._numbers = frozenset(each.sequence_number for each in self._events)
        if event.sequence_number not in self._numbers:
            raise InvalidArgumentError(
                f"Event {event.sequence_number} is not among those of this call of partition "
                f"{self.partition_id}.",
                next_step="Pass only events that this call was given.",
            )
        return event.sequence_number


class TransactionGuard:
    """Refuses whatever would end the transaction while a handler has its connection.

    What bypasses SQLAlchemy (the driver's own ``commit``) cannot be refused, but is detected afterwards by
    the missing savepoint.
    """

    def __init__(self, connection: Connection) -> None:
        self._is_lent = False
        self._commits = None if dialect_of(connection).has_transactional_ddl else _COMMITS
        self.violation: TransactionMisusedError | None = None
        """The first refusal, kept in case the handler swallows it."""
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "rollback", self._refuse_rollback)
        event.listen(connection, "before_cursor_execute", self._check_statement)

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Guard the connection while the handler has it. Raises TransactionMisusedError if it misused it."""
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False
            if self.violation is not None:
                raise self.violation

    def _refuse_commit(self, connection: Connection) -> None:
        if self._is_lent:
            self._refuse("commit")

    def _refuse_rollback(self, connection: Connection) -> None:
        if self._is_lent and not connection.invalidated:
            self._refuse("roll back or close")

    def _check_statement(
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: object,
        context: object,
        executemany: bool,
    ) -> None:
        if not self._is_lent:
            return
        is_commit = self._commits is not None and self._commits.match(statement)
        if is_commit or _ENDS_TRANSACTION.match(statement):
            self._refuse(f"execute {' '.join(statement.split())[:40]!r} in")

    def _refuse(self, doing: str) -> NoReturn:
        error = misused(f"The handler tried to {doing} the transaction it was lent.")
        if self.violation is None:
            self.violation = error
        raise error


def misused(what: str) -> TransactionMisusedError:
    """The error for a handler that ended the transaction."""
    return TransactionMisusedError(
        what,
        next_step="Nothing of the batch is committed. The checkpoint commits with the handler's writes: "
        "only write with context.connection, and return.",
    )
