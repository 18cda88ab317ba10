"""Dead letters of the console's databases, in pages and sums; discards and redrives as jobs.

Sums over a million dead letters take a second, so pages share them and do not wait for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from typing import Final, TypeVar

from tidegate.amqp.errors import DecodeError
from tidegate.broker import Broker
from tidegate.console.dead_letters.filter import format_place
from tidegate.console.dead_letters.redrive import RedriveProcess, RedriveRequest
from tidegate.console.explorer.reading import encoded_event
from tidegate.console.frame.databases import Databases, ask_each, chosen, require_each
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.console.frame.shares import SharedPlaces
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
_WHOLE_MAX: Final = 2
"""Whole dead letters of a database that are read and shown at once. Our choice, as in the explorer: each may
take a second, and 100 MB."""


@dataclass(frozen=True, slots=True)
class LetterSums:
    """Sums over all dead letters that match a filter, in the databases that could be read."""

    total: int
    hours: Sequence[HourCount]
    """Hours with dead letters, in order."""
    reasons: Sequence[ReasonCount]
    """The most frequent first; not all."""
    counted_at: datetime
    problems: Mapping[str, TidegateError]
    """By name of the databases that could not be read."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """A page of the list."""

    lines: Sequence[tuple[str, DeadLetterLine]]
    """Each with the name of its database."""
    next: str | None
    """The cursor of the next page."""
    problems: Mapping[str, TidegateError]
    """By name of the databases that could not be read."""


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

    Methods that query databases raise DatabaseError and DatabaseUnavailableError, but ``page`` and ``sums``.
    database: the name of the one that is meant; empty: all, or (of one dead letter) the first that has it.
    """

    def __init__(self, parts: ConsoleParts, databases: Databases, jobs: Jobs) -> None:
        self.redrive_pipelines = parts.redrive_pipelines
        """The pipelines in the service's settings."""
        self._parts = parts
        self.databases = databases
        self._jobs = jobs
        self._pages: SharedAnswers[object, LetterPage] = SharedAnswers(
            parts.clock, kept_s=_PAGES_S, is_whole=lambda found: not found.problems
        )
        self._sums: SharedAnswers[object, LetterSums] = SharedAnswers(
            parts.clock, kept_s=_SUMS_S, is_whole=lambda found: not found.problems
        )
        self._whole: defaultdict[tuple[str, ...], SharedPlaces] = defaultdict(
            lambda: SharedPlaces(_WHOLE_MAX)
        )
        """By the names of the databases that are asked together: one, or all."""
        self._decoding = Threads(_WHOLE_MAX, name="tidegate-console-letters")

    async def page(
        self,
        filter: DeadLetterFilter,
        database: str,
        *,
        behind: DeadLetterPlace | None,
        limit: int,
        at_most_s: float,
    ) -> LetterPage | None:
        """Dead letters, the latest failure first; ``next`` is a cursor for ``parse_place``.

        None if the search takes longer than ``at_most_s`` seconds; it continues, call again.
        """
        asked = chosen(self.databases, database)

        async def read() -> LetterPage:
            # Reads one more than is shown, to know whether there is another page.
            found, problems = await ask_each(
                asked,
                lambda each: each.ask(
                    lambda opened: DeadLetterPages(opened).page(filter, behind=behind, limit=limit + 1)
                ),
            )
            each_in_order = ([(name, line) for line in its] for name, its in found.items())
            lines = [*merge(*each_in_order, key=lambda each: each[1].last_failed_at, reverse=True)]
            following = format_place(lines[limit - 1][1].place) if len(lines) > limit else None
            return LetterPage(lines[:limit], following, problems)

        return await self._pages.ask((filter, database, behind, limit), read, at_most_s=at_most_s)

    async def open_count(self) -> tuple[int, Mapping[str, TidegateError]]:
        """How many are open, at most a second old; and why databases, by name, could not be read."""
        counts, problems = await ask_each(
            self.databases,
            lambda each: each.ask(lambda opened: DeadLetters(opened).count(DeadLetterFilter())),
        )
        return sum(counts.values()), problems

    async def sums(self, filter: DeadLetterFilter, database: str, *, at_most_s: float) -> LetterSums | None:
        """Sums; None if counting takes longer than ``at_most_s`` seconds; it continues, call again."""
        asked = chosen(self.databases, database)

        async def count_one(each: LazyDatabase) -> tuple[Sequence[HourCount], Sequence[ReasonCount]]:
            hours = await each.count(lambda opened: DeadLetterPages(opened).counts_by_hour(filter))
            return hours, await each.count(
                lambda opened: DeadLetters(opened).counts_by_reason(filter, limit=_REASONS_MAX)
            )

        async def count() -> LetterSums:
            found, problems = await ask_each(asked, count_one)
            hours = _hours_of([each for its, _ in found.values() for each in its])
            reasons = _reasons_of([each for _, its in found.values() for each in its])
            total = sum(each.count for each in hours)
            return LetterSums(total, hours, reasons, self._parts.clock.now_utc(), problems)

        return await self._sums.ask((filter, database), count, at_most_s=at_most_s)

    def whole(self, database: str) -> SharedPlaces:
        """Hold one of these places while a dead letter and its event are read and shown.

        Each database has its own: one that does not answer keeps its places. Raises NotFoundError.
        """
        return self._whole[tuple(chosen(self.databases, database))]

    async def letter(
        self,
        consumer: ConsumerKey,
        partition_id: str,
        sequence_number: int,
        database: str,
        *,
        since: datetime | None,
    ) -> tuple[str, DeadLetter, Sequence[AuditEntry]]:
        """One dead letter with its database, and its history, latest first. Raises NotFoundError.

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

        def read(opened: Database) -> tuple[DeadLetter, Sequence[AuditEntry]] | None:
            letters = DeadLetters(opened)
            found = letters.list(one, limit=1)
            if not found:
                return None
            acts = letters.audit(consumer, partition_id, sequence_number, since=since, limit=_HISTORY_MAX)
            return found[0], acts

        found, problems = await ask_each(chosen(self.databases, database), lambda each: each.ask(read))
        for name, letter in found.items():
            if letter is not None:
                return name, *letter
        require_each(problems)
        raise absent_dead_letter(consumer, partition_id, sequence_number)

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

        def read(opened: Database) -> Sequence[AuditEntry]:
            return DeadLetters(opened).audit(event_hub=event_hub, since=since, limit=limit)

        found, problems = await ask_each(self.databases, lambda each: each.ask(read))
        require_each(problems)
        acts = sorted((act for its in found.values() for act in its), key=lambda act: act.at, reverse=True)
        return acts[:limit]

    def one_database(self, name: str) -> LazyDatabase:
        """The database of that name; the only one if it is empty.

        Raises NotFoundError, InvalidArgumentError.
        """
        found = chosen(self.databases, name)
        if len(found) > 1:
            raise InvalidArgumentError(
                "Dead letters of several databases are not discarded or redriven at once.",
                next_step=f"Choose a database: {', '.join(found)}.",
            )
        return next(iter(found.values()))

    def start_discard(self, filter: DeadLetterFilter, database: str, *, because: str, actor: str) -> Job:
        """Discard open dead letters. Raises InvalidArgumentError, QuotaExceededError (too many jobs)."""
        its = self.one_database(database)
        if not because.strip():
            raise InvalidArgumentError(
                "Discarding needs a reason.", next_step="Enter a reason; the audit trail keeps it."
            )

        async def work(job: Job) -> None:
            update = job.updater_for_threads()

            def note(done: int) -> None:
                update(done=done, counts={"discarded": done})
                job.require_wanted()

            def discard(opened: Database) -> int:
                letters = DeadLetters(opened)
                update(total=letters.count(filter))
                job.require_wanted()  # counting can take long
                return letters.discard(filter, reason=because, actor=actor, progress=note)

            count = await its.change(discard)
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
        url = self.one_database(request.database).secret_url
        process = RedriveProcess(url, self._parts.own_address(), request)

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


def _hours_of(found: Sequence[HourCount]) -> Sequence[HourCount]:
    """The sums of several databases' hours, in order."""
    counts = Counter[datetime]()
    for each in found:
        counts[each.start] += each.count
    return [HourCount(start, counts[start]) for start in sorted(counts)]


def _reasons_of(found: Sequence[ReasonCount]) -> Sequence[ReasonCount]:
    """The sums of several databases' reasons, the most frequent first."""
    sums: dict[tuple[str, str], ReasonCount] = {}
    for each in found:
        key = each.error_type, each.reason
        known = sums.get(key, each)
        sums[key] = (
            each
            if known is each
            else ReasonCount(
                *key,
                known.count + each.count,
                min(known.first_failed_at, each.first_failed_at),
                max(known.last_failed_at, each.last_failed_at),
            )
        )
    return sorted(sums.values(), key=lambda each: -each.count)[:_REASONS_MAX]


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
