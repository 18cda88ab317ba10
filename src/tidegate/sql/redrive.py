"""Redrive: dead letters run through a (corrected) handler again.

Theory of operation. Pages of open dead letters of one partition are read back from the log by their sequence
numbers, and handled before anything is locked. One transaction then locks those that are still open, inserts
their rows, closes them and writes the audit trail: so it may be stopped, repeated and run twice at once, and
no row is written twice. Whatever fails again stays open with one attempt more; ``attempts_max`` ends the
loop.

An event counts as found only if it has the dead letter's enqueued time: a hub that was deleted and made anew
has the same sequence numbers with other events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select, update

from tidegate.model.errors import InvalidArgumentError, PositionOutOfRangeError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.batch import insert_carefully
from tidegate.sql.database import Database
from tidegate.sql.dead_letter_rows import (
    IN_LIST_MAX,
    conditions_of,
    consumer_is,
    dead_letter_of,
    lock_open,
    write_audit,
)
from tidegate.sql.handling import HandledEvents, handle_events
from tidegate.sql.pipeline import Pipeline
from tidegate.sql.schema import dead_letter
from tidegate.sql.unit_of_work import RowsRefusedError, UnitOfWork, dead_letter_texts
from tidegate.sql.values import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterStatus,
    EventReader,
    NewDeadLetter,
    PartitionRows,
    RedriveReport,
    decode_copy,
    place_of,
)


@dataclass(slots=True)
class Redrive:
    """One run over the open dead letters of one pipeline; see ``DeadLetters.redrive``."""

    database: Database
    pipeline: Pipeline
    reader: EventReader
    filter: DeadLetterFilter
    maximum: int | None
    is_dry_run: bool
    attempts_max: int
    batch_size: int
    progress: Callable[[RedriveReport], None] | None
    actor: str

    def run(self) -> RedriveReport:
        """Do it. What is raised leaves every page before it committed; run it again to go on."""
        if not 1 <= self.batch_size <= IN_LIST_MAX:
            raise InvalidArgumentError(
                f"A redrive's batch_size is 1 to {IN_LIST_MAX}, not {self.batch_size}."
            )
        if self.maximum is not None and self.maximum < 0:
            raise InvalidArgumentError(f"A redrive's maximum is not negative; {self.maximum} was given.")
        report = RedriveReport(exhausted=self._count_exhausted(), is_dry_run=self.is_dry_run)
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
        events = _found_events(self.reader, self.pipeline.event_hub, page)
        lost = [
            (partition_id, letter.sequence_number) for letter in page if letter.sequence_number not in events
        ]
        handled = handle_events(self.pipeline.handler, self.pipeline.table, events.values())
        if self.is_dry_run:
            outcome = _PageOutcome(
                redriven=len(events) - len(handled.dead_letters),
                rows=sum(len(group.values) for group in handled.groups),
                failed=len(handled.dead_letters),
                taken_by_others=0,
            )
        elif events:
            try:
                outcome = self._commit_page(partition_id, events, handled, is_careful=False)
            except RowsRefusedError:
                outcome = self._commit_page(partition_id, events, handled, is_careful=True)
        else:
            outcome = _PageOutcome(0, 0, 0, 0)
        return replace(
            report,
            considered=report.considered + len(page),
            redriven=report.redriven + outcome.redriven,
            rows=report.rows + outcome.rows,
            failed=report.failed + outcome.failed,
            lost=(*report.lost, *lost),
            taken_by_others=report.taken_by_others + outcome.taken_by_others,
        )

    def _commit_page(
        self, partition_id: str, events: dict[int, ReceivedEvent], handled: HandledEvents, *, is_careful: bool
    ) -> _PageOutcome:
        unit = UnitOfWork(self.database, self.pipeline.consumer, pipeline_name=self.pipeline.name)
        with unit, unit.translating("redriving dead letters"):
            still_open = set(lock_open(unit, partition_id, list(events)))
            groups = [_rows_of_events(group, still_open) for group in handled.groups]
            failed = [letter for letter in handled.dead_letters if letter.sequence_number in still_open]
            if is_careful:
                rows, refused = insert_carefully(
                    unit, self.pipeline.table, groups, lambda number: place_of(events[number])
                )
                failed += refused
            else:
                rows = sum(unit.insert_values(self.pipeline.table, group) for group in groups)
            self._record_failures(unit, partition_id, failed)
            redriven = sorted(still_open - {letter.sequence_number for letter in failed})
            self._close(unit, partition_id, redriven)
            unit.commit()
        return _PageOutcome(len(redriven), rows, len(failed), len(events) - len(still_open))

    def _close(self, unit: UnitOfWork, partition_id: str, sequence_numbers: Sequence[int]) -> None:
        if not sequence_numbers:
            return
        unit.connection.execute(
            update(dead_letter)
            .where(
                consumer_is(unit.consumer, partition_id), dead_letter.c.sequence_number.in_(sequence_numbers)
            )
            .values(status=DeadLetterStatus.REDRIVEN.value)
        )
        write_audit(unit, partition_id, "redriven", self.actor, [(number, "") for number in sequence_numbers])

    def _record_failures(self, unit: UnitOfWork, partition_id: str, failed: Sequence[NewDeadLetter]) -> None:
        now = self.database.clock.now_utc()
        for letter in failed:
            unit.connection.execute(
                update(dead_letter)
                .where(
                    consumer_is(unit.consumer, partition_id),
                    dead_letter.c.sequence_number == letter.sequence_number,
                )
                .values(
                    **dead_letter_texts(letter.error_type, letter.reason, letter.traceback),
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


@dataclass(frozen=True, slots=True)
class _PageOutcome:
    redriven: int
    rows: int
    failed: int
    taken_by_others: int


def _rows_of_events(rows: PartitionRows, wanted: set[int]) -> PartitionRows:
    kept = [i for i, number in enumerate(rows.sequence_numbers) if number in wanted]
    if len(kept) == len(rows.sequence_numbers):
        return rows
    return PartitionRows(
        rows.columns, [rows.values[i] for i in kept], [rows.sequence_numbers[i] for i in kept]
    )


def _found_events(
    reader: EventReader, event_hub: str, page: Sequence[DeadLetter]
) -> dict[int, ReceivedEvent]:
    """The events of ``page`` by sequence number, ascending: from the log, else from the dead letter's
    copy."""
    by_number = {letter.sequence_number: letter for letter in page}
    in_log = {
        event.sequence_number: event
        for event in _read_available(reader, event_hub, page[0].partition_id, list(by_number))
        if event.sequence_number in by_number
        and event.enqueued_time_ms == by_number[event.sequence_number].enqueued_time_ms
    }
    found: dict[int, ReceivedEvent] = {}
    for number, letter in by_number.items():
        event = in_log.get(number)
        if event is None and letter.payload is not None:
            event = ReceivedEvent(
                partition_id=letter.partition_id,
                sequence_number=number,
                offset=letter.offset,
                enqueued_time_ms=letter.enqueued_time_ms,
                encoded=letter.payload,
                decode=decode_copy,
            )
        if event is not None:
            found[number] = event
    return found


def _read_available(
    reader: EventReader, event_hub: str, partition_id: str, numbers: Sequence[int]
) -> list[ReceivedEvent]:
    """The events that the log still holds. Retention takes the oldest, so the rest is found by halving."""
    try:
        return list(reader.read_events(event_hub, partition_id, numbers))
    except PositionOutOfRangeError:
        pass
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        try:
            list(reader.read_events(event_hub, partition_id, [numbers[middle]]))
            high = middle
        except PositionOutOfRangeError:
            low = middle + 1
    if low == len(numbers):
        return []
    try:
        return list(reader.read_events(event_hub, partition_id, numbers[low:]))
    except PositionOutOfRangeError:
        # Beyond the log's end (a hub made anew), or retention moved on meanwhile: what can be had one by one.
        return _read_one_by_one(reader, event_hub, partition_id, numbers[low:])


def _read_one_by_one(
    reader: EventReader, event_hub: str, partition_id: str, numbers: Sequence[int]
) -> list[ReceivedEvent]:
    found: list[ReceivedEvent] = []
    for number in numbers:
        try:
            found += reader.read_events(event_hub, partition_id, [number])
        except PositionOutOfRangeError:
            continue
    return found
