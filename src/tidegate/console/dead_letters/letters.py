"""Dead letters of the console's database, in pages and sums; discards and redrives as jobs.

Sums over a million dead letters take a second, so pages share them and do not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from tidegate.amqp.errors import DecodeError
from tidegate.broker import Broker
from tidegate.console.dead_letters.filter import format_place
from tidegate.console.dead_letters.redrive import RedriveProcess, RedriveRequest
from tidegate.console.explorer.reading import encoded_event
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.console.frame.paging import Page
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.console.jobs.jobs import Job, JobKind, Jobs
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.events import EventContents
from tidegate.sql import (
    AuditEntry,
    ConsumerKey,
    Database,
    DeadLetter,
    DeadLetterFilter,
    DeadLetters,
    ReasonCount,
)
from tidegate.sql.dead_letters.dead_letters import absent_dead_letter
from tidegate.sql.dead_letters.pages import DeadLetterLine, DeadLetterPages, DeadLetterPlace, HourCount
from tidegate.transport.threads import Threads
from tidegate.wire.event_codec import decode_event

T = TypeVar("T")

_REASONS_MAX: Final = 20
"""Reasons that a page shows."""
_PAGES_S: Final = 0.5
_SUMS_S: Final = 5.0
"""Seconds for which pages and sums are shared."""
_HISTORY_MAX: Final = 100
_DECODED_MAX: Final = 2
"""Events that are decoded at once (our choice, as in the explorer: each may take a second, and 100 MB)."""


@dataclass(frozen=True, slots=True)
class LetterSums:
    """Sums over all dead letters that match a filter."""

    total: int
    hours: Sequence[HourCount]
    """Hours with dead letters, in order."""
    reasons: Sequence[ReasonCount]
    """The most frequent first; not all."""
    counted_at: datetime


@dataclass(frozen=True, slots=True)
class LetterEvent:
    """The event of a dead letter."""

    is_copy: bool
    """True: the log no longer has it, and this is the dead letter's copy."""
    contents: EventContents
    """Only bytes if they cannot be decoded."""
    problem: str = ""
    """Why they cannot be decoded."""


class DeadLetterView:
    """Reads dead letters, and starts redrives and discards.

    Methods that query the database raise DatabaseError and DatabaseUnavailableError.
    """

    def __init__(self, parts: ConsoleParts, database: LazyDatabase, jobs: Jobs) -> None:
        self.redrive_pipelines = parts.redrive_pipelines
        """The pipelines in the service's settings."""
        self._parts = parts
        self._database = database
        self._jobs = jobs
        self._pages: SharedAnswers[object, Page[DeadLetterLine]] = SharedAnswers(parts.clock, kept_s=_PAGES_S)
        self._sums: SharedAnswers[DeadLetterFilter, LetterSums] = SharedAnswers(parts.clock, kept_s=_SUMS_S)
        self._decoding = Threads(_DECODED_MAX, name="tidegate-console-letters")

    async def page(
        self, filter: DeadLetterFilter, *, behind: DeadLetterPlace | None, limit: int, at_most_s: float
    ) -> Page[DeadLetterLine] | None:
        """Dead letters, the latest failure first; ``next`` is a cursor for ``parse_place``.

        None if the search takes longer than ``at_most_s`` seconds; it continues, call again.
        """

        async def read() -> Page[DeadLetterLine]:
            # Reads one more than is shown, to know whether there is another page.
            found = await self._database.ask(
                lambda database: DeadLetterPages(database).page(filter, behind=behind, limit=limit + 1)
            )
            is_more = len(found) > limit
            return Page(found[:limit], None, format_place(found[limit - 1].place) if is_more else None)

        return await self._pages.ask((filter, behind, limit), read, at_most_s=at_most_s)

    async def open_count(self, event_hub: str | None) -> int:
        """How many are open, in one hub or all; at most a second old."""
        return await self._database.ask(
            lambda database: DeadLetters(database).count(DeadLetterFilter(event_hub=event_hub))
        )

    async def sums(self, filter: DeadLetterFilter, *, at_most_s: float) -> LetterSums | None:
        """Sums; None if counting takes longer than ``at_most_s`` seconds; it continues, call again."""

        async def count() -> LetterSums:
            hours = await self._database.count(
                lambda database: DeadLetterPages(database).counts_by_hour(filter)
            )
            reasons = await self._database.count(
                lambda database: DeadLetters(database).counts_by_reason(filter, limit=_REASONS_MAX)
            )
            return LetterSums(sum(each.count for each in hours), hours, reasons, self._parts.clock.now_utc())

        return await self._sums.ask(filter, count, at_most_s=at_most_s)

    async def letter(
        self, consumer: ConsumerKey, partition_id: str, sequence_number: int, *, since: datetime | None
    ) -> tuple[DeadLetter, Sequence[AuditEntry]]:
        """One dead letter and its history, latest first. Raises NotFoundError.

        since: ``Rights.since``: only if its event was enqueued then or later, and only its history since.
        """
        one = DeadLetterFilter(
            event_hub=consumer.event_hub,
            consumer_group=consumer.consumer_group,
            partition_id=partition_id,
            sequence_numbers=(sequence_number,),
            status=None,
            enqueued_from=since,
        )

        def read(database: Database) -> tuple[DeadLetter, Sequence[AuditEntry]]:
            letters = DeadLetters(database)
            found = letters.list(one, limit=1)
            if not found:
                raise absent_dead_letter(consumer, partition_id, sequence_number)
            acts = letters.audit(consumer, partition_id, sequence_number, since=since, limit=_HISTORY_MAX)
            return found[0], acts

        return await self._database.ask(read)

    async def event(self, letter: DeadLetter, look: Callable[[LetterEvent], T]) -> T:
        """What ``look``, in a thread, makes of a dead letter's event, from the log or else its copy.

        Raises NotFoundError if neither has it.
        """
        found = await _encoded_in_log(self._parts.broker, letter)
        encoded = letter.payload if found is None else found
        if encoded is None:
            raise NotFoundError(
                "The log no longer holds this event, and its dead letter has no copy.",
                next_step="Discard it. Copied payloads would outlive the log.",
            )
        return await self._decoding.run(lambda: look(_event(encoded, is_copy=found is None)))

    async def history(
        self, event_hub: str | None, *, since: datetime | None, limit: int
    ) -> Sequence[AuditEntry]:
        """The history of dead letters, of one hub or all, latest first."""

        def read(database: Database) -> Sequence[AuditEntry]:
            return DeadLetters(database).audit(event_hub=event_hub, since=since, limit=limit)

        return await self._database.ask(read)

    def start_discard(self, filter: DeadLetterFilter, *, because: str, actor: str) -> Job:
        """Discard open dead letters. Raises InvalidArgumentError, QuotaExceededError (too many jobs)."""
        if not because.strip():
            raise InvalidArgumentError(
                "Discarding needs a reason.", next_step="Enter a reason; the audit trail keeps it."
            )

        async def work(job: Job) -> None:
            update = job.updater_for_threads()

            def note(done: int) -> None:
                update(done=done, counts={"discarded": done})
                job.require_wanted()

            def discard(database: Database) -> int:
                letters = DeadLetters(database)
                update(total=letters.count(filter))
                job.require_wanted()  # counting can take long
                return letters.discard(filter, reason=because, actor=actor, progress=note)

            count = await self._database.change(discard)
            job.update(done=count, counts={"discarded": count})
            self._forget()

        return self._jobs.start(
            JobKind.DISCARD,
            f"Discard {_words(filter)}: {because}",
            work,
            event_hub=filter.event_hub,
            actor=actor,
        )

    def start_redrive(self, request: RedriveRequest) -> Job:
        """Process open dead letters again, in a separate process. Raises as ``start_discard``."""
        if request.pipeline not in self.redrive_pipelines:
            raise InvalidArgumentError(
                f"{request.pipeline[:80]!r} is not one of the console's redrive pipelines.",
                next_step="Add it to the service's setting redrive_pipelines.",
            )
        process = RedriveProcess(self._database.secret_url, self._parts.own_address(), request)

        async def work(job: Job) -> None:
            try:
                await process.run(job)
            finally:
                self._forget()

        return self._jobs.start(
            JobKind.DRY_RUN if request.is_dry_run else JobKind.REDRIVE,
            f"{'Dry run: redrive' if request.is_dry_run else 'Redrive'} {_words(request.filter)} "
            f"through {request.pipeline}",
            work,
            event_hub=request.filter.event_hub,
            actor=request.actor,
        )

    async def close(self) -> None:
        """Cancel running queries."""
        await self._pages.close()
        await self._sums.close()

    def _forget(self) -> None:
        self._pages.forget()
        self._sums.forget()


def _words(filter: DeadLetterFilter) -> str:
    numbers = filter.sequence_numbers or ()
    if len(numbers) == 1 and None not in (filter.event_hub, filter.consumer_group, filter.partition_id):
        return f"event {numbers[0]} of partition {filter.partition_id} of {filter.event_hub}"
    return f"dead letters of {filter.event_hub or 'all event hubs'}"


async def _encoded_in_log(broker: Broker, letter: DeadLetter) -> bytes | None:
    """The event from the log; None if the log no longer has it, or has another one with its number."""
    try:
        partition = broker.event_hub(letter.event_hub).partition(letter.partition_id)
        found = await encoded_event(partition, letter.sequence_number)
    except TidegateError:
        return None
    # A hub that was deleted and created again has other events with the same numbers.
    return None if found is None or found[0] != letter.enqueued_time_ms else found[1]


def _event(encoded: bytes, *, is_copy: bool) -> LetterEvent:
    try:
        return LetterEvent(is_copy, decode_event(encoded))
    except DecodeError as error:
        return LetterEvent(is_copy, EventContents(encoded), str(error))
