"""Lists, counts, shows, redrives and discards dead letters, and reads their audit trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby

from sqlalchemy import func, select

from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.core.database import Database
from tidegate.sql.core.dead_letter_rows import (
    IN_LIST_MAX,
    close_letters,
    dead_letter_of,
    lock_open,
    shown_conditions_of,
)
from tidegate.sql.core.schema import dead_letter, dead_letter_audit, in_partition_order, of_consumer
from tidegate.sql.core.unit_of_work import UnitOfWork, default_owner
from tidegate.sql.core.values import (
    AuditEntry,
    ConsumerKey,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterStatus,
    EventReader,
    NewDeadLetter,
    ReasonCount,
    RedriveReport,
)
from tidegate.sql.dead_letters.read_back import find_event
from tidegate.sql.dead_letters.redrive import Redrive
from tidegate.sql.handlers.pipeline import AnyPipeline

ALL_OPEN = DeadLetterFilter()


class DeadLetters:
    """The dead letters of all of a database's consumers; those of a shadow, if the filter names its group.

    Every method raises DatabaseError and DatabaseUnavailableError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(
        self, filter: DeadLetterFilter = ALL_OPEN, *, limit: int | None = 100, offset: int = 0
    ) -> list[DeadLetter]:
        """The dead letters that match ``filter``, by hub, group, partition and sequence number.

        limit: at most this many; None: all. offset: how many to skip first.
        """
        statement = select(dead_letter).where(*shown_conditions_of(filter))
        statement = statement.order_by(*in_partition_order(dead_letter), dead_letter.c.sequence_number)
        statement = statement.limit(limit).offset(offset)
        with self._database.read() as connection:
            return [dead_letter_of(dict(row)) for row in connection.execute(statement).mappings()]

    def count(self, filter: DeadLetterFilter = ALL_OPEN) -> int:
        """The number of dead letters that match ``filter``."""
        statement = select(func.count()).select_from(dead_letter).where(*shown_conditions_of(filter))
        with self._database.read() as connection:
            return connection.execute(statement).scalar_one()

    def counts_by_reason(
        self, filter: DeadLetterFilter = ALL_OPEN, *, limit: int | None = None
    ) -> Sequence[ReasonCount]:
        """The number of dead letters for each error type and reason, the most frequent first.

        limit: at most this many reasons; None: all.
        """
        row = dead_letter.c
        number = func.count().label("number")
        statement = (
            select(
                row.error_type,
                row.reason,
                number,
                func.min(row.first_failed_at),
                func.max(row.last_failed_at),
            )
            .where(*shown_conditions_of(filter))
            .group_by(row.error_type, row.reason)
            .order_by(number.desc(), row.error_type, row.reason)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [ReasonCount(*found) for found in connection.execute(statement)]

    def show(self, consumer: ConsumerKey, partition_id: str, sequence_number: int) -> DeadLetter:
        """One dead letter, whatever its status. Raises NotFoundError."""
        here = of_consumer(dead_letter, consumer, partition_id)
        statement = select(dead_letter).where(here, dead_letter.c.sequence_number == sequence_number)
        with self._database.read() as connection:
            found = connection.execute(statement).mappings().one_or_none()
        if found is None:
            raise absent_dead_letter(consumer, partition_id, sequence_number)
        return dead_letter_of(dict(found))

    def read_event(self, letter: DeadLetter, reader: EventReader) -> ReceivedEvent:
        """The event of a dead letter: from the log by its pointer, else from the dead letter's copy.

        Raises NotFoundError if the log no longer holds it and there is no copy.
        """
        return find_event(letter, reader)

    def add(
        self,
        consumer: ConsumerKey,
        partition_id: str,
        dead_letters: Sequence[NewDeadLetter],
        *,
        pipeline: str = "",
    ) -> int:
        """Write dead letters outside of a batch's transaction, such as in at-least-once processing.

        pipeline: whose redrive will process them. An existing dead letter is reopened with one more attempt.
        Returns how many.
        """
        unit = UnitOfWork(self._database, consumer, pipeline_name=pipeline)
        with unit:
            unit.lock_checkpoint(partition_id)
            return unit.add_dead_letters(partition_id, dead_letters)

    def audit(
        self,
        consumer: ConsumerKey | None = None,
        partition_id: str | None = None,
        sequence_number: int | None = None,
        *,
        event_hub: str | None = None,
        since: datetime | None = None,
        limit: int | None = 100,
    ) -> Sequence[AuditEntry]:
        """The actions on dead letters, the latest first; None matches any value.

        event_hub: includes all its consumer groups. since: at this time or later (aware).
        """
        row = dead_letter_audit.c
        columns = [column for column in dead_letter_audit.columns if column.name != "id"]
        statement = select(*columns).order_by(row.id.desc()).limit(limit)
        if consumer is not None:
            statement = statement.where(of_consumer(dead_letter_audit, consumer))
        if event_hub is not None:
            # Rows are appended, so SQLite walks back from the latest instead of sorting all of the hub's.
            statement = statement.where(row.event_hub.concat("") == ConsumerKey(event_hub).event_hub)
        if since is not None:
            statement = statement.where(row.at >= since)
        if partition_id is not None:
            statement = statement.where(row.partition_id == partition_id)
        if sequence_number is not None:
            statement = statement.where(row.sequence_number == sequence_number)
        with self._database.read() as connection:
            return [AuditEntry(**found) for found in connection.execute(statement).mappings()]

    def discard(
        self,
        filter: DeadLetterFilter,
        *,
        reason: str,
        actor: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Close open dead letters for good, without running them; returns how many.

        reason: for the audit trail, not empty. actor: who; None: ``host:process``. Dead letters that another
        process closes meanwhile are skipped. Each transaction holds up to 1,000; if one fails, the earlier
        ones stay done. progress: called with the number so far in each transaction, once it has its locks,
        and after it; an exception in it ends the run, and undoes the transaction that it is called in.
        """
        if not reason.strip():
            raise InvalidArgumentError("Discarding needs a reason, for the audit trail.")
        if filter.status not in (None, DeadLetterStatus.OPEN):
            raise InvalidArgumentError(f"Only open dead letters can be discarded, not {filter.status} ones.")
        discarded = 0
        for keys in self._open_keys(filter):
            for (event_hub, consumer_group, partition_id), members in groupby(keys, key=lambda key: key[:3]):
                consumer = ConsumerKey(event_hub, consumer_group)
                times_ms = {key[3]: key[4] for key in members}
                note = partial(progress or _note_nothing, discarded)
                discarded += self._discard_some(consumer, partition_id, times_ms, reason, actor, note)
                if progress is not None:
                    progress(discarded)
        return discarded

    def _open_keys(self, filter: DeadLetterFilter) -> Iterator[Sequence[tuple[str, str, str, int, int]]]:
        """The keys and enqueued times of open dead letters, page by page along the primary key."""
        row = dead_letter.c
        key = (row.event_hub, row.consumer_group, row.partition_id, row.sequence_number)
        statement = (
            select(*key, row.enqueued_time_ms)
            .where(*shown_conditions_of(filter), row.status == DeadLetterStatus.OPEN.value)
            .order_by(*key)
            .limit(IN_LIST_MAX)
        )
        page: Sequence[tuple[str, str, str, int, int]] = []
        while True:
            following = statement
            if page:
                following = statement.where(self._database.dialect.is_beyond(key, page[-1][:4]))
            with self._database.read() as connection:
                page = [
                    (hub, group, partition_id, number, time_ms)
                    for hub, group, partition_id, number, time_ms in connection.execute(following)
                ]
            if not page:
                return
            yield page

    def _discard_some(
        self,
        consumer: ConsumerKey,
        partition_id: str,
        times_ms: Mapping[int, int],
        reason: str,
        actor: str | None,
        note: Callable[[], None],
    ) -> int:
        unit = UnitOfWork(self._database, consumer)
        with unit, unit.translating("discarding dead letters"):
            still_open = lock_open(unit, partition_id, times_ms)
            note()  # waiting for the locks can take long
            status = DeadLetterStatus.DISCARDED
            close_letters(
                unit, partition_id, still_open, status, actor=actor or default_owner(), detail=reason
            )
        return len(still_open)

    def redrive(
        self,
        pipeline: AnyPipeline,
        reader: EventReader,
        *,
        filter: DeadLetterFilter = ALL_OPEN,
        maximum: int | None = None,
        dry_run: bool = False,
        attempts_max: int = 10,
        batch_size: int = 500,
        progress: Callable[[RedriveReport], None] | None = None,
        actor: str | None = None,
    ) -> RedriveReport:
        """Run the pipeline's open dead letters through its handler again.

        Considers open dead letters of the pipeline's consumer that a pipeline of the same name wrote;
        ``filter`` narrows them further. One transaction per batch holds the handler's writes, the new status
        and the audit trail, so a redrive may be stopped, repeated, or run twice at once. It takes turns with
        a host that works on the partition. Parked events run in order, after the one that they wait for is
        closed.

        reader: reads events back from the log. maximum: consider at most this many; None: all. dry_run: do
        the same, but roll it back. attempts_max: skip dead letters that have failed this many times.
        batch_size: dead letters per transaction, 1 to 1,000. progress: called at the start and after each
        batch with the report so far. actor: for the audit trail; None: ``host:process``.
        """
        return Redrive(
            database=self._database,
            pipeline=pipeline,
            reader=reader,
            filter=filter,
            maximum=maximum,
            is_dry_run=dry_run,
            attempts_max=attempts_max,
            batch_size=batch_size,
            progress=progress,
            actor=actor or default_owner(),
        ).run()


def _note_nothing(done: int) -> None:
    """Notes no progress."""


def absent_dead_letter(consumer: ConsumerKey, partition_id: str, sequence_number: int) -> NotFoundError:
    """The error for a dead letter that does not exist, or that a user may not see."""
    return NotFoundError(
        f"There is no dead letter {sequence_number} in partition {partition_id} of {consumer}.",
        next_step="`tidegate dlq list` shows the existing ones.",
    )
