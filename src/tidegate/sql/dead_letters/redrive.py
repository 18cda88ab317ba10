"""Redrive: runs dead letters through a (corrected) handler again.

Theory of operation. The events of a page of one partition's open dead letters are read back from the log. One
transaction then locks the partition's checkpoint (so that pump and redrive take turns), locks the dead
letters that are still open, runs the handler, closes them and writes the audit trail. So a redrive may be
stopped, repeated, or run twice at once, and nothing is written twice. What fails again stays open with one
more attempt; ``attempts_max`` ends the loop. A dry run is the same transaction, rolled back.

Parked events stay in order: one runs only when no earlier one of its partition key is open. The others are
``waiting``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import func, select, update

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import GroupKey, Lease
from tidegate.sql.core.database import Database
from tidegate.sql.core.dead_letter_rows import (
    IN_LIST_MAX,
    close_letters,
    conditions_of,
    dead_letter_of,
    lock_open,
    write_audit,
)
from tidegate.sql.core.dead_letter_statements import texts_of
from tidegate.sql.core.parked_keys import PARKED, KeyOrder, is_open
from tidegate.sql.core.schema import dead_letter, of_consumer
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
from tidegate.sql.core.values import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterStatus,
    EventReader,
    NewDeadLetter,
    RedriveReport,
)
from tidegate.sql.dead_letters.read_back import read_back
from tidegate.sql.dead_letters.redrive_report import RedriveTally
from tidegate.sql.handlers.event_runs import (
    EventRun,
    EventsFailedError,
    RunOutcome,
    TransactionFailure,
    repeat_carefully,
)
from tidegate.sql.handlers.forms import HandlerForm, form_of
from tidegate.sql.handlers.pipeline import AnyPipeline
from tidegate.sql.outbox.writer import Outbox


@dataclass(slots=True)
class Redrive:
    """One run over the open dead letters of one pipeline; see ``DeadLetters.redrive``."""

    database: Database
    pipeline: AnyPipeline
    reader: EventReader
    filter: DeadLetterFilter
    maximum: int | None
    is_dry_run: bool
    attempts_max: int
    batch_size: int
    progress: Callable[[RedriveReport], None] | None
    actor: str
    _form: HandlerForm = field(init=False)
    _tally: RedriveTally = field(init=False, default_factory=RedriveTally)
    _place: _Place = field(init=False)
    _outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        self._form = form_of(self.pipeline)
        self._place = _Place("")
        self._outbox = Outbox(self.database)

    def run(self) -> RedriveReport:
        """Run the redrive. After an error, earlier pages are committed; run it again to continue."""
        if not 1 <= self.batch_size <= IN_LIST_MAX:
            raise InvalidArgumentError(f"batch_size must be 1 to {IN_LIST_MAX}, got {self.batch_size}.")
        if self.maximum is not None and self.maximum < 0:
            raise InvalidArgumentError(f"maximum must not be negative, got {self.maximum}.")
        report = RedriveReport(exhausted=self._count_exhausted(), is_dry_run=self.is_dry_run)
        if self.progress is not None:
            self.progress(report)
        for page in self._pages():
            report = self._run_page(page, report)
            if self.progress is not None:
                self.progress(report)
        return report

    def _conditions(self) -> DeadLetterFilter:
        consumer = self.pipeline.consumer
        return replace(
            self.filter,
            event_hub=consumer.event_hub,
            consumer_group=consumer.consumer_group,
            pipeline=self.pipeline.name,
            status=DeadLetterStatus.OPEN,
        )

    def _count_exhausted(self) -> int:
        statement = (
            select(func.count())
            .select_from(dead_letter)
            .where(*conditions_of(self._conditions()), dead_letter.c.attempts >= self.attempts_max)
        )
        with self.database.read() as connection:
            return connection.execute(statement).scalar_one()

    def _pages(self) -> Iterator[list[DeadLetter]]:
        row = dead_letter.c
        meant = [*conditions_of(self._conditions()), row.attempts < self.attempts_max]
        with self.database.read() as connection:
            partition_ids = (
                connection.execute(select(row.partition_id).where(*meant).distinct()).scalars().all()
            )
        left = self.maximum
        for partition_id in sorted(partition_ids, key=lambda text: (len(text), text)):
            after = -1
            while left is None or left > 0:
                size = self.batch_size if left is None else min(left, self.batch_size)
                statement = (
                    select(dead_letter)
                    .where(*meant, row.partition_id == partition_id, row.sequence_number > after)
                    .order_by(row.sequence_number)
                    .limit(size)
                )
                with self.database.read() as connection:
                    page = [dead_letter_of(dict(found)) for found in connection.execute(statement).mappings()]
                if not page:
                    break
                after = page[-1].sequence_number
                left = None if left is None else left - len(page)
                yield page

    def _run_page(self, page: Sequence[DeadLetter], report: RedriveReport) -> RedriveReport:
        partition_id = page[0].partition_id
        if partition_id != self._place.partition_id:
            self._place = _Place(partition_id)
        events = read_back(self.reader, self.pipeline.event_hub, page)
        numbers = [letter.sequence_number for letter in page]
        lost = [(partition_id, number) for number in numbers if number not in events]
        outcome = self._commit_events(page, events) if events else _PageOutcome()
        self._tally.add(page, outcome.redriven, outcome.failed, outcome.waiting)
        return replace(
            report,
            considered=report.considered + len(page),
            redriven=report.redriven + len(outcome.redriven),
            rows=report.rows + outcome.rows,
            failed=report.failed + len(outcome.failed),
            waiting=report.waiting + len(outcome.waiting),
            lost=(*report.lost, *lost),
            taken_by_others=report.taken_by_others + outcome.taken_by_others,
            by_reason=self._tally.by_reason(),
            failures=self._tally.failures(),
        )

    def _commit_events(self, page: Sequence[DeadLetter], events: Mapping[int, ReceivedEvent]) -> _PageOutcome:
        try:
            return self._commit_page(page, events)
        except (EventsFailedError, RowsRefusedError) as error:
            failed: TransactionFailure = error
        return repeat_carefully(lambda why: self._commit_page(page, events, failed=why), failed)

    def _commit_page(
        self,
        page: Sequence[DeadLetter],
        events: Mapping[int, ReceivedEvent],
        *,
        failed: TransactionFailure | None = None,
    ) -> _PageOutcome:
        """Run one transaction. Raises a TransactionFailure if it has to be run again, carefully."""
        partition_id = self._place.partition_id
        unit = UnitOfWork(self.database, self.pipeline.consumer, pipeline_name=self._form.name)
        with unit, unit.translating("redriving dead letters"):
            unit.lock_checkpoint(partition_id)
            letters = {letter.sequence_number: letter for letter in page}
            times_ms = {number: letters[number].enqueued_time_ms for number in events}
            still_open = lock_open(unit, partition_id, times_ms)
            order = self._order(unit, {number: letters[number] for number in still_open})
            run = EventRun(unit, self._form.run, self._context(), self._outbox, order=order)
            todo = [events[number] for number in still_open]
            if failed is None:
                done = run.run_whole(todo, is_failure_accepted=True)
                if self.is_dry_run:
                    _check_as_commit_would(unit)
            else:
                done = run.run_carefully(todo, is_commit_refused=failed.is_at_commit)
            outcome = _outcome_of(done, still_open, len(events) - len(still_open))
            if self.is_dry_run:
                unit.rollback()
                self._place.would_close.update(outcome.redriven)
            else:
                self._record_failures(unit, partition_id, outcome.failed)
                if outcome.redriven:
                    status = DeadLetterStatus.REDRIVEN
                    close_letters(unit, partition_id, outcome.redriven, status, actor=self.actor)
                if outcome.redriven or outcome.failed:
                    unit.commit()
                else:
                    unit.rollback()
        return outcome

    def _order(self, unit: UnitOfWork, letters: Mapping[int, DeadLetter]) -> KeyOrder:
        """Decides which of these open dead letters must wait."""
        parked = [letter for letter in letters.values() if _is_parked(letter)]
        unknown = {letter.partition_key for letter in parked} - self._place.blocked.keys()
        if unknown:
            row = dead_letter.c
            statement = (
                select(row.partition_key, row.sequence_number)
                .where(of_consumer(dead_letter, unit.consumer, self._place.partition_id), is_open())
                .where(*conditions_of(DeadLetterFilter(status=None, enqueued_from=self.filter.enqueued_from)))
                .where(row.partition_key.in_(unknown))
                .where(row.sequence_number < max(letter.sequence_number for letter in parked))
                .order_by(row.sequence_number)
            )
            for key, number in unit.connection.execute(statement):
                if number not in letters and number not in self._place.would_close:
                    self._place.blocked.setdefault(key, number)
        return KeyOrder(
            self._place.blocked,
            key_of=lambda event: letters[event.sequence_number].partition_key,
            is_held=lambda event: _is_parked(letters[event.sequence_number]),
        )

    def _context(self) -> PartitionContext:
        """For the handler's calls; a redrive has no lease, so its epoch is 0."""
        now = self.database.clock.now_utc()
        lease = Lease(self._place.partition_id, self.actor, 0, None, now, "")
        event_hub, consumer_group = self.pipeline.event_hub, self.pipeline.consumer_group
        group = GroupKey("redrive", event_hub, consumer_group)  # the real namespace is not stored
        return PartitionContext(group, event_hub, consumer_group, lease)

    def _record_failures(self, unit: UnitOfWork, partition_id: str, failed: Sequence[NewDeadLetter]) -> None:
        now = self.database.clock.now_utc()
        for letter in failed:
            unit.connection.execute(
                update(dead_letter)
                .where(
                    of_consumer(dead_letter, unit.consumer, partition_id),
                    dead_letter.c.sequence_number == letter.sequence_number,
                )
                .values(
                    **texts_of(letter.error_type, letter.reason, letter.traceback),
                    attempts=dead_letter.c.attempts + 1,
                    last_failed_at=now,
                )
            )
        write_audit(
            unit,
            partition_id,
            "redrive_failed",
            self.actor,
            [(letter.sequence_number, f"{letter.error_type}: {letter.reason}") for letter in failed],
        )


@dataclass(slots=True)
class _Place:
    """The run's current partition, and what is known of its keys."""

    partition_id: str
    blocked: dict[str, int] = field(default_factory=dict)
    """Keys with a dead letter that this run leaves open, and its sequence number."""
    would_close: set[int] = field(default_factory=set)
    """What a dry run would have closed so far."""


@dataclass(frozen=True, slots=True)
class _PageOutcome:
    redriven: Sequence[int] = ()
    failed: Sequence[NewDeadLetter] = ()
    waiting: Sequence[int] = ()
    rows: int = 0
    taken_by_others: int = 0


def _outcome_of(done: RunOutcome, still_open: Sequence[int], taken_by_others: int) -> _PageOutcome:
    failed = [each.letter for each in done.dead_lettered]
    waiting = [event.sequence_number for event, _ in done.held]
    left = {*(letter.sequence_number for letter in failed), *waiting}
    redriven = [number for number in still_open if number not in left]
    return _PageOutcome(redriven, failed, waiting, done.rows, taken_by_others)


def _is_parked(letter: DeadLetter) -> bool:
    return letter.error_type == PARKED and letter.partition_key is not None


def _check_as_commit_would(unit: UnitOfWork) -> None:
    """Make a dry run find what a commit would refuse (PostgreSQL). Raises EventsFailedError."""
    try:
        unit.make_constraints_immediate()
    except DatabaseUnavailableError:
        raise
    except DatabaseError as error:
        raise EventsFailedError from error
