"""Runs events through a handler inside an open transaction, isolating those that fail.

Theory of operation. A call runs behind a savepoint. ``run_whole`` makes one call, or several (``Calls``);
after any failure it raises EventsFailedError, and the caller rolls the transaction back (and may wait before
a retry). ``run_carefully`` halves what fails: the savepoint undoes it, and both halves run in order, until
each failing event is isolated and its effects undone. A handler that catches a refused statement and reports
its event keeps its reason. An event that must wait for its key (``KeyOrder``) is held: left out of every
call. An error of the database itself is not an event's fault and ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlalchemy import NestedTransaction
from sqlalchemy import exc as sqlalchemy_errors

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, PartitionPausedError, traceback_of
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import PartitionContext
from tidegate.sql.core.dialects.base import ErrorKind
from tidegate.sql.core.failures import is_environment, is_of, reason_of, translate
from tidegate.sql.core.halving import failures_of
from tidegate.sql.core.memory import is_of_event
from tidegate.sql.core.parked_keys import KeyOrder
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
from tidegate.sql.core.values import NewDeadLetter
from tidegate.sql.handlers.context import DeadLettered, TransactionCall, TransactionGuard, misused
from tidegate.sql.handlers.handling import Calls
from tidegate.sql.handlers.outages import OutageError, OutageWatch
from tidegate.sql.outbox.writer import Outbox, OutboxWriter

_Outcome = TypeVar("_Outcome")

RunEvents = Callable[[UnitOfWork, TransactionCall, Sequence[ReceivedEvent]], None]
"""A handler in its common form: writes the effects of events, dead-letters some, or raises for all."""


class EventsFailedError(Exception):
    """A call failed for some of its events; the transaction must be rolled back. Users never see it."""

    def __init__(self, reported: DeadLettered | None = None) -> None:
        super().__init__()
        self.reported = reported
        """What the handler reported for the call's one event before it returned, although the database, as
        PostgreSQL does, had refused everything after a refused statement."""

    @property
    def is_at_commit(self) -> bool:
        """Whether a deferred constraint refused the whole transaction at its commit."""
        return isinstance(self.__cause__, RowsRefusedError) and self.__cause__.is_at_commit


TransactionFailure = EventsFailedError | RowsRefusedError
"""Why a transaction must be repeated carefully."""


def repeat_carefully(
    attempt: Callable[[TransactionFailure], _Outcome], failed: TransactionFailure
) -> _Outcome:
    """Repeat a failed transaction carefully, and once more if that is refused at its commit.

    Immediate failures may hide what only a commit refuses, and searching for that is costly, so it is done
    only when known to be needed. attempt: called with the previous failure. Raises what it raises.
    """
    try:
        return attempt(failed)
    except (EventsFailedError, RowsRefusedError) as again:
        if failed.is_at_commit or not again.is_at_commit:
            raise
        at_commit = again
    return attempt(at_commit)


@dataclass(slots=True)
class RunOutcome:
    """The results for one transaction's events."""

    processed: int = 0
    """Events that ran and did not become dead letters."""
    rows: int = 0
    dead_lettered: list[DeadLettered] = field(default_factory=list)
    """Events that failed, or that the handler dead-lettered."""
    failures: int = 0
    """Those that failed."""
    held: list[tuple[ReceivedEvent, int]] = field(default_factory=list)
    """Events that were not run, each with the number of the event for which it waits."""
    stopped_by: DeadLettered | None = None
    """The failed event before which the run ended (``failures_max``)."""
    until: int | None = None
    """The event before which the run ended: ``stopped_by``, or by the handler's ``checkpoint`` or its time;
    None: it ran all."""


class EventRun:
    """One transaction's calls of a handler."""

    def __init__(
        self,
        unit: UnitOfWork,
        handler: RunEvents,
        context: PartitionContext,
        outbox: Outbox,
        *,
        order: KeyOrder | None = None,
        is_payload_copied: bool = False,
        failures_max: int | None = None,
        outages: OutageWatch | None = None,
        may_end_early: bool = False,
        calls: Calls | None = None,
    ) -> None:
        """outbox: for events that are published. order: keeps the order of each key; None: events are
        independent.

        failures_max: stop before the next event that fails, instead of dead-lettering it. outages: gets
        each failure, and may end the run with OutageError. may_end_early: whether the handler's
        ``checkpoint`` may leave events to a later transaction; False: they get calls of their own. calls:
        None: one call for all events.
        """
        self._unit = unit
        self._handler = handler
        self._context = context
        self._order = order
        self._is_payload_copied = is_payload_copied
        self._failures_left = failures_max
        self._outages = outages
        self._may_end_early = may_end_early
        self._calls = calls
        self._guard = TransactionGuard(unit.connection)
        self.published = OutboxWriter(outbox, unit, context.partition_id)
        self._outcome = RunOutcome()

    def run_whole(self, events: Sequence[ReceivedEvent], *, is_failure_accepted: bool) -> RunOutcome:
        """Make the calls. Raises EventsFailedError if one fails or needs smaller calls.

        is_failure_accepted: False: failures that the handler reported per event also fail the call.
        """
        for low, until in self._ranges(events, len(events)):
            runnable = self._runnable(events[low:until])
            if not runnable:
                continue
            call = self._call(runnable, is_checked=False)
            if not is_failure_accepted and any(each.is_failure for each in call.dead_lettered.values()):
                raise EventsFailedError
            self._take(call, runnable)
        return self._outcome

    def run_carefully(
        self, events: Sequence[ReceivedEvent], *, is_commit_refused: bool = False
    ) -> RunOutcome:
        """Make as many calls as are needed to isolate each failing event.

        is_commit_refused: these events' last transaction was refused at its commit.
        """
        self._unit.make_constraints_immediate(is_commit_refused=is_commit_refused)

        def attempt(low: int, until: int) -> None:
            runnable = self._runnable(events[low:until])
            if not runnable or self._outcome.until is not None:
                return
            try:
                self._take(self._call(runnable, is_checked=True), runnable)
            except EventsFailedError as failed:
                if len(runnable) > 1:
                    self._forget_held(events[low:until])  # they are found again in the halves
                    raise
                if failed.reported is not None:
                    self._dead_letter(runnable[0], failed.reported)
                else:
                    self._fail(runnable[0], failed.__cause__ or failed)

        for low, until in self._ranges(events, (len(events) + 1) // 2):  # the whole has failed already
            assert not list(failures_of(attempt, low, until, EventsFailedError))
        return self._outcome

    def _ranges(self, events: Sequence[ReceivedEvent], size: int) -> Iterator[tuple[int, int]]:
        """The calls until the run ends; notes where it does if its time is up. size: of a call, at most."""
        count, until = len(events), 0
        all_at_once = [(low, min(low + size, count)) for low in range(0, count, size or 1)]
        for low, until in all_at_once if self._calls is None else self._calls.ranges(count, size):
            yield low, until
            if self._outcome.until is not None:
                return
        if until < count:
            self._outcome.until = events[until].sequence_number

    def _runnable(self, events: Sequence[ReceivedEvent]) -> list[ReceivedEvent]:
        if self._order is None:
            return list(events)
        runnable: list[ReceivedEvent] = []
        for event in events:
            behind = self._order.waits_behind(event)
            if behind is None:
                runnable.append(event)
            else:
                self._outcome.held.append((event, behind))
        return runnable

    def _forget_held(self, events: Sequence[ReceivedEvent]) -> None:
        numbers = {event.sequence_number for event in events}
        held = self._outcome.held
        self._outcome.held = [each for each in held if each[0].sequence_number not in numbers]

    def _call(self, events: Sequence[ReceivedEvent], *, is_checked: bool) -> TransactionCall:
        """Call the handler behind a savepoint. Raises EventsFailedError after undoing a failed call."""
        unit = self._unit
        with unit.translating("setting a savepoint"):
            savepoint = unit.connection.begin_nested()
        call = TransactionCall(
            self._context,
            unit,
            events,
            self.published,
            is_payload_copied=self._is_payload_copied,
            on_failure=None if self._outages is None else self._outages.failed_together,
        )
        has_returned = False
        try:
            with self._guard.lending():
                self._handler(unit, call, events)
            has_returned = True
            call.settle()
            if call.until is not None and not self._may_end_early:
                raise EventsFailedError
            if is_checked:
                # Reveals an error that the handler swallowed, while the savepoint can still undo it.
                unit.connection.exec_driver_sql("SELECT 1")
                unit.check_deferred_constraints()
            self._check_call(call, _covered(call, events))
            self.published.store()  # whatever a database does to release a savepoint
            savepoint.commit()
        except RowsRefusedError as error:
            self._undo(savepoint)
            raise EventsFailedError from error
        except (DatabaseError, OutageError, PartitionPausedError):
            raise
        except EventsFailedError:
            self._undo(savepoint)
            raise
        except BaseException as error:  # whatever a user's handler raises
            if not is_of_event(error):
                raise
            self._raise_if_environment(error)
            if self._outages is not None:
                self._outages.failed(error, len(events))
            self._undo(savepoint)
            is_reported = has_returned and len(events) == 1
            reported = call.dead_lettered.get(events[0].sequence_number) if is_reported else None
            raise EventsFailedError(reported) from error
        finally:
            call.close()
        return call

    def _check_call(self, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        """Raises EventsFailedError if the call's dead letters require smaller calls, OutageError if they are
        due to an outage.
        """
        failures = [each for each in call.dead_lettered.values() if each.is_failure]
        if self._outages is not None:
            self._watch(self._outages, call, events)
        if len(events) == 1 or not call.dead_lettered:
            return
        if self._failures_left is not None and len(failures) > self._failures_left:
            raise EventsFailedError
        if self._order is not None and self._order.is_overtaken(call.dead_lettered, events):
            raise EventsFailedError

    @staticmethod
    def _watch(outages: OutageWatch, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        """Note what became of the events, in their order. Raises OutageError."""
        for event in events if call.dead_lettered else events[:1]:  # one success counts as much as many
            found = call.dead_lettered.get(event.sequence_number)
            if found is not None and found.is_failure:
                outages.failed(found.error)
            else:
                outages.succeeded()

    def _undo(self, savepoint: NestedTransaction) -> None:
        connection = self._unit.connection
        with self._unit.translating("rolling back to a savepoint"):
            # A handler that raised may have left its own savepoints open.
            while (inner := connection.get_nested_transaction()) is not None and inner is not savepoint:
                inner.close()
            savepoint.close()

    def _take(self, call: TransactionCall, events: Sequence[ReceivedEvent]) -> None:
        outcome = self._outcome
        covered = _covered(call, events)
        outcome.rows += call.rows
        outcome.processed += len(covered) - len(call.dead_lettered)
        if call.until is not None:
            outcome.until = call.until
            outcome.held = [each for each in outcome.held if each[0].sequence_number < call.until]
        for event in covered:
            dead_lettered = call.dead_lettered.get(event.sequence_number)
            if dead_lettered is not None:
                self._dead_letter(event, dead_lettered)

    def _fail(self, event: ReceivedEvent, error: BaseException) -> None:
        reason = error.reason if isinstance(error, RowsRefusedError) else reason_of(error)
        letter = NewDeadLetter.from_exception(event, reason, is_payload_copied=self._is_payload_copied)
        if not isinstance(error, RowsRefusedError):
            # The handler's own statement failed: show where it was run.
            letter = replace(letter, traceback=traceback_of(error))
        self._dead_letter(event, DeadLettered(letter, reason, is_failure=True))

    def _dead_letter(self, event: ReceivedEvent, dead_lettered: DeadLettered) -> None:
        if dead_lettered.is_failure:
            if self._failures_left == 0:
                self._outcome.stopped_by, self._outcome.until = dead_lettered, event.sequence_number
                return
            if self._failures_left is not None:
                self._failures_left -= 1
            self._outcome.failures += 1
        self._outcome.dead_lettered.append(dead_lettered)
        if self._order is not None:
            self._order.failed(event)

    def _raise_if_environment(self, error: BaseException) -> None:
        """Raises a DatabaseError if the database itself caused ``error``, and what pauses the partition."""
        if self.published.paused is not None:
            raise self.published.paused from None  # which may be its own cause
        causes = _causes(error)
        for cause in causes:
            if isinstance(cause, sqlalchemy_errors.SQLAlchemyError) and is_environment(cause):
                raise translate(cause, doing="running the handler", where=self._unit.database.url) from error
        # After the others: what ends a transaction, also ends its savepoints.
        if any(is_of(cause, ErrorKind.NO_SAVEPOINT) for cause in causes):
            raise misused("The handler ended its transaction, bypassing SQLAlchemy.") from error
        if self._unit.connection.invalidated:
            raise DatabaseUnavailableError(
                f"The connection to the database {self._unit.database.url} was lost while the handler ran.",
                next_step="The transaction is rolled back; try again when the database answers.",
            ) from error


def _causes(error: BaseException) -> list[BaseException]:
    """An error, what caused it, and so on."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and all(each is not cause for each in causes):
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


def _covered(call: TransactionCall, events: Sequence[ReceivedEvent]) -> Sequence[ReceivedEvent]:
    """The events of a call that its last ``checkpoint`` covers, all if it made none."""
    until = call.until
    return events if until is None else [event for event in events if event.sequence_number < until]
