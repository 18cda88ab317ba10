"""What a transactional handler is given for one call, and what keeps it from ending the transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

from sqlalchemy import Connection, event

from tidegate.model.errors import DatabaseError, Fault, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import GroupKey, Lease
from tidegate.sql.core.values import NewDeadLetter

REJECTED: Final = "RejectedByHandler"
"""The error type of a dead letter whose handler gave a text instead of an exception."""

_ENDS_TRANSACTION = re.compile(
    r"\s*(commit|end|abort|begin|start\s+transaction|prepare\s+transaction"
    r"|rollback(?!\s+((work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)
"""SQL that begins or ends a transaction; savepoints of the handler's own are none of it."""


class TransactionMisusedError(DatabaseError):
    """A handler committed, rolled back or closed the transaction it was lent; see ``TransactionContext``."""

    fault = Fault.CALLER


@dataclass(frozen=True, slots=True)
class PutAside:
    """An event that a call put aside, without failing the others."""

    letter: NewDeadLetter
    error: BaseException | None
    is_failure: bool
    """True: the handler failed for it, so the policy decides. False: the handler itself decided."""


class TransactionCall:
    """One call's ``TransactionContext``: the partition's own context, the connection, and what is put aside.

    It is good for this call only.
    """

    def __init__(
        self,
        partition: PartitionContext,
        connection: Connection,
        events: Sequence[ReceivedEvent],
        *,
        is_payload_copied: bool,
    ) -> None:
        self._partition = partition
        self._connection: Connection | None = connection
        self._events = events
        self._numbers: frozenset[int] | None = None
        self._is_payload_copied = is_payload_copied
        self.rows = 0
        """Rows that a pipeline's call inserted."""
        self.put_aside: dict[int, PutAside] = {}
        """By sequence number."""

    @property
    def group(self) -> GroupKey:
        """Namespace, event hub and consumer group."""
        return self._partition.group

    @property
    def event_hub(self) -> str:
        """The event hub's name as it was given."""
        return self._partition.event_hub

    @property
    def consumer_group(self) -> str:
        """The consumer group's name as it was given."""
        return self._partition.consumer_group

    @property
    def partition_id(self) -> str:
        """The partition."""
        return self._partition.partition_id

    @property
    def owner(self) -> str:
        """The host's name."""
        return self._partition.owner

    @property
    def lease(self) -> Lease:
        """The lease it is processed under, as last renewed."""
        return self._partition.lease

    async def checkpoint(self, event: ReceivedEvent | None = None) -> None:
        """Raises InvalidArgumentError: the transaction moves the checkpoint."""
        raise InvalidArgumentError(
            "A transactional handler does not checkpoint.",
            next_step="Return: the transaction commits its effects and moves the checkpoint.",
        )

    @property
    def connection(self) -> Connection:
        """The transaction's SQLAlchemy connection. Do not commit, roll back or close it.

        Savepoints (``begin_nested``) are yours to use, and an ORM ``Session(context.connection)`` may be
        committed: it joins the transaction in a savepoint of its own.
        """
        if self._connection is None:
            raise InvalidArgumentError("The context of a handler's call was used after the call.")
        return self._connection

    def dead_letter(self, event: ReceivedEvent, error: BaseException | str) -> None:
        """Put an event of this call aside with its reason, without failing the others.

        What was written for it stays. Told twice of an event, the later reason counts.
        Raises InvalidArgumentError for an event that is not of this call.
        """
        self._put_aside(event, error, is_failure=False)

    def fail(self, event: ReceivedEvent, error: BaseException) -> None:
        """The same for an event that failed by itself and left nothing behind: the policy decides."""
        self._put_aside(event, error, is_failure=True)

    def close(self) -> None:
        """The call is over."""
        self._connection = None

    def _put_aside(self, event: ReceivedEvent, error: BaseException | str, *, is_failure: bool) -> None:
        number = event.sequence_number
        if self._connection is None:
            raise InvalidArgumentError("The context of a handler's call was used after the call.")
        if self._numbers is None:
            self._numbers = frozenset(each.sequence_number for each in self._events)
        if number not in self._numbers:
            raise InvalidArgumentError(
                f"Event {number} is not among those of this call of partition {self.partition_id}.",
                next_step="Put aside only events that this call was given.",
            )
        copied = self._is_payload_copied
        if isinstance(error, str):
            letter = NewDeadLetter.from_text(event, REJECTED, error, is_payload_copied=copied)
            self.put_aside[number] = PutAside(letter, None, is_failure)
        else:
            letter = NewDeadLetter.from_exception(event, error, is_payload_copied=copied)
            self.put_aside[number] = PutAside(letter, error, is_failure)


class TransactionGuard:
    """Refuses what would end the transaction while a handler has its connection; before it takes place.

    What goes past SQLAlchemy (the driver's own ``commit``) cannot be refused; it is noticed afterwards by the
    savepoint that is gone.
    """

    def __init__(self, connection: Connection) -> None:
        self._is_lent = False
        self.violation: TransactionMisusedError | None = None
        """The first one, kept in case the handler swallows it."""
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "rollback", self._refuse_rollback)
        event.listen(connection, "before_cursor_execute", self._check_statement)

    @contextmanager
    def lending(self) -> Iterator[None]:
        """The handler has the connection now. Raises TransactionMisusedError where it misused it."""
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
        if self._is_lent and _ENDS_TRANSACTION.match(statement):
            self._refuse(f"execute {' '.join(statement.split())[:40]!r} in")

    def _refuse(self, doing: str) -> NoReturn:
        error = misused(f"The handler tried to {doing} the transaction it was lent.")
        if self.violation is None:
            self.violation = error
        raise error


def misused(what: str) -> TransactionMisusedError:
    """The one error for a handler that ended the transaction."""
    return TransactionMisusedError(
        what,
        next_step="Nothing of the batch is committed. The checkpoint commits with the handler's writes: "
        "only write with context.connection, and return.",
    )
