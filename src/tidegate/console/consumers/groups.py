"""Consumer groups: leases and checkpoints joined with the ends of the log; and moves of checkpoints.

Theory of operation. A query reads both tables of each database and counts open dead letters in threads, then
reads the ends of the logs on the event loop (in this order, so that no checkpoint seems to be beyond the
growing log's end), and joins them in a thread. Pages that need the same within a second share one query.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.broker import EventHub
from tidegate.console.consumers.kept import kept_views
from tidegate.console.consumers.moves import KeptPlan, MoveRequest, carry_out, plan_moves
from tidegate.console.consumers.progress import (
    LEASE_DURATION_S,
    GroupProgress,
    GroupSummary,
    HubLog,
    Place,
    UnreadKey,
    of_this_hub,
    progress_of,
    unbegun_summary,
    unread_of,
)
from tidegate.console.frame.databases import Databases, ask_each, chosen, require_each
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.frame.rights import Rights
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.console.frame.shares import oldest_of_most
from tidegate.console.jobs.jobs import Job, JobKind, Jobs
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.times import time_of
from tidegate.processor.group_view import GroupView
from tidegate.processor.lease import LeaseSnapshot
from tidegate.processor.moves import MovePlan
from tidegate.sql import ConsumerKey
from tidegate.transport.threads import Threads

if TYPE_CHECKING:
    from tidegate.sql import Database

_LOOK_S: Final = 1.0
"""Seconds for which one query serves all pages."""
_UNREAD_LOOKUPS_MAX: Final = 64
"""Reads of the log per query, to find how long events have waited; later queries read the rest."""
_UNREAD_KEPT_MAX: Final = 20_000
_NEW_LETTERS: Final = timedelta(hours=1)
_PLANS_MAX: Final = 64
"""Dry runs kept, of all hubs."""
_PARTITIONS_PER_TURN: Final = 64
"""Partitions processed before yielding to other tasks."""

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_NOTHING: Final = GroupView(LeaseSnapshot({}, datetime.max.replace(tzinfo=UTC)), {})

_Extent = tuple[str | None, datetime | None]
"""What an answer holds: one hub (in lower case) since it was created, or (None, None) all."""


class _Stored(NamedTuple):
    """What a database has of the groups; and their open dead letters: all, and those of the last hour."""

    groups: Mapping[ConsumerKey, GroupView]
    open: Mapping[ConsumerKey, int]
    new: Mapping[ConsumerKey, int]

    def letters(self, consumer: ConsumerKey) -> tuple[int, int]:
        """Both numbers of a group."""
        return self.open.get(consumer, 0), self.new.get(consumer, 0)


_Letters = Callable[[ConsumerKey], tuple[int, int]]
"""A group's open dead letters in all databases: all, and those of the last hour."""


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """The groups at one moment."""

    groups: Sequence[GroupProgress]
    """Those with a lease or a checkpoint, by hub and name."""
    others: Sequence[tuple[str, str]]
    """Hub and name of the hubs' groups that are not among them."""
    problems: Mapping[str, TidegateError]
    """By name of the databases that could not be read: ``others`` may be kept there."""
    letters: _Letters = lambda _: (0, 0)
    read_at: datetime = _NEVER
    """When reading began."""


class CountedLetters(NamedTuple):
    """The dead letters of each consumer group that this service's hubs have, if there are any."""

    counts: Mapping[ConsumerKey, tuple[int, int]]
    """All, which grow until rows are deleted, and the open ones."""
    read_at: datetime
    """When counting began."""


class Consumers:
    """Reads leases, checkpoints and the log's ends; moves checkpoints.

    Methods that query databases raise DatabaseError and DatabaseUnavailableError, except ``groups``.
    SQLAlchemy is imported in them: a service without a database does not load it.
    """

    def __init__(self, parts: ConsoleParts, databases: Databases, jobs: Jobs) -> None:
        """databases: empty: there are only the groups that official processors keep in the service."""
        self.databases = databases
        self._broker = parts.broker
        self._clock = parts.clock
        self._jobs = jobs
        self._joining = Threads(1, name="tidegate-console-groups")
        self._groups: SharedAnswers[_Extent, FoundGroups] = SharedAnswers(
            parts.clock, kept_s=_LOOK_S, is_whole=lambda found: not found.problems
        )
        self._letters: SharedAnswers[str, CountedLetters] = SharedAnswers(parts.clock, kept_s=_LOOK_S)
        self._each: SharedAnswers[tuple[ConsumerKey, str, _Extent], GroupProgress] = SharedAnswers(
            parts.clock, kept_s=_LOOK_S
        )
        self._unread: OrderedDict[UnreadKey, datetime] = OrderedDict()
        """Enqueued times of events after checkpoints."""
        self._plans: dict[str, KeptPlan] = {}
        """In order of their making."""

    async def groups(self, rights: Rights | None, *, at_most_s: float | None) -> FoundGroups | None:
        """All consumer groups that may be seen.

        rights: of the user; None: the service itself asks. None if reading takes longer than ``at_most_s``
        seconds (None: no limit); it continues, call again.
        """
        extent = _extent_of(rights)

        async def look() -> FoundGroups:
            read_at = self._clock.now_utc()
            found, problems, letters = await self._look(None, "", extent)
            others = await self._others({place.consumer for place in found}, extent[0])
            groups = sorted(found.values(), key=lambda each: _name_of(each).lower())
            return FoundGroups(groups, others, problems, letters, read_at)

        return await self._groups.ask(extent, look, at_most_s=at_most_s)

    async def dead_letters(self, *, at_most_s: float) -> CountedLetters | None:
        """The dead letters of groups with or without checkpoints.

        None if counting takes longer than ``at_most_s`` seconds; it continues, call again.
        """

        async def look() -> CountedLetters:
            read_at = self._clock.now_utc()
            names = await self._others((), None)

            def count(opened: Database) -> Mapping[ConsumerKey, tuple[int, int]]:
                from tidegate.sql.dead_letters.pages import DeadLetterPages

                pages = DeadLetterPages(opened)
                still_open = pages.open_counts()
                # In the thread: groups that are gone may have left many.
                present = {ConsumerKey(*each) for each in names}
                every = pages.all_counts().items()
                return {each: (number, still_open.get(each, 0)) for each, number in every if each in present}

            found, problems = await ask_each(self.databases, lambda database: database.measure(count))
            require_each(problems)
            every, still_open = Counter[ConsumerKey](), Counter[ConsumerKey]()
            for counts in found.values():
                every.update({each: numbers[0] for each, numbers in counts.items()})
                still_open.update({each: numbers[1] for each, numbers in counts.items()})
            return CountedLetters(
                {each: (number, still_open[each]) for each, number in every.items()}, read_at
            )

        return await self._letters.ask("all", look, at_most_s=at_most_s)

    async def group(
        self, event_hub: str, consumer_group: str, rights: Rights, *, database: str = ""
    ) -> GroupProgress:
        """One consumer group, with its partitions in order. Raises NotFoundError.

        rights: of the user, who may see the hub. database: the name of the one that keeps it; empty: any.
        """
        consumer, extent = ConsumerKey(event_hub, consumer_group), _extent_of(rights)
        chosen(self.databases, database)

        async def look() -> GroupProgress:
            found, problems, letters = await self._look(consumer, database, extent)
            for progress in found.values():
                return progress
            require_each(problems)
            return await self._unbegun(event_hub, consumer_group, letters)

        found = await self._each.ask((consumer, database, extent), look, at_most_s=None)
        assert found is not None
        return found

    async def _unbegun(self, event_hub: str, consumer_group: str, letters: _Letters) -> GroupProgress:
        """A consumer group of a hub without any lease or checkpoint. Raises NotFoundError."""
        consumer = ConsumerKey(event_hub, consumer_group)
        log = await self._log_of(event_hub)
        if log is None or consumer.consumer_group not in log.consumer_groups:
            raise NotFoundError(
                f"The event hub {event_hub[:80]!r} has no consumer group {consumer_group[:80]!r}, and "
                f"{_words_of_databases(self.databases)} no lease and no checkpoint of it.",
                next_step="It appears with its first lease or checkpoint.",
            )
        found = progress_of(consumer, _NOTHING, log, {}, self._clock.now_utc())
        names = [(event_hub, found.summary.consumer_group)]
        (summary,) = await self.unbegun_groups(names, letters) or [found.summary]
        return replace(found, summary=summary)

    async def unbegun_groups(self, names: Sequence[tuple[str, str]], letters: _Letters) -> list[GroupSummary]:
        """Groups without any lease or checkpoint, by hub and name; those that are gone are left out."""
        found: list[GroupSummary] = []
        reads: dict[str, tuple[int | None, Counter[str]]] = {}
        for name, group in names:
            with suppress(NotFoundError):
                hub = self._broker.event_hub(name)
                if hub.name not in reads:
                    reads[hub.name] = _unread_events(hub), _readers(hub)
                    await asyncio.sleep(0)
                events, readers = reads[hub.name]
                summary = unbegun_summary(
                    hub.name, group, len(hub.partitions), events, readers[group.lower()]
                )
                still_open, new = letters(ConsumerKey(name, group))
                found.append(replace(summary, open_dead_letters=still_open, new_dead_letters=new))
        return found

    async def plan_move(self, request: MoveRequest, rights: Rights) -> KeptPlan:
        """A dry run. rights: of the user: owners are shown as in ``group``.

        Raises NotFoundError, PositionOutOfRangeError, InvalidArgumentError.
        """
        hub = self._broker.event_hub(request.event_hub)
        moves = await plan_moves(hub, request)
        stored, problems = await self._stored(request.consumer, request.database, None)
        require_each(problems)
        name, group = next(
            ((name, its) for name, found in stored.items() for its in found.groups.values()),
            (request.database or next(iter(self.databases), ""), _NOTHING),
        )
        if not group.partition_ids and request.consumer in await kept_views(
            self._broker, request.consumer.event_hub, request.consumer.consumer_group
        ):
            raise InvalidArgumentError(
                f"{request.consumer} keeps its checkpoints in the service, not in a database.",
                next_step="Stop its processors, and use: tidegate checkpoint set --blob-container.",
            )
        if not self.databases:
            raise NotFoundError("This service has no database.", next_step="Start it with --database URL.")
        if not group.partition_ids:
            _require_group(hub, request.consumer_group)

        def owner(partition_id: str) -> str | None:
            lease = group.lease(partition_id)
            is_seen = lease is not None and rights.is_theirs(lease.renewed_at)
            return group.owner(partition_id, lease_duration_s=LEASE_DURATION_S) if is_seen else None

        compared = (
            replace(
                move,
                before=group.checkpoints.get(move.partition_id),
                owner=owner(move.partition_id),
            )
            for move in moves
        )
        request = replace(request, database=name)
        plan = KeptPlan(secrets.token_urlsafe(12), request, MovePlan(tuple(compared)))
        if len(self._plans) >= _PLANS_MAX:
            hubs = {plan_id: kept.request.event_hub for plan_id, kept in self._plans.items()}
            del self._plans[oldest_of_most(hubs, newcomer=request.event_hub)]
        self._plans[plan.plan_id] = plan
        return plan

    def plan(self, plan_id: str) -> KeptPlan:
        """An earlier dry run. Raises NotFoundError, also if its hub was deleted, or created again, since."""
        found = self._plans.get(plan_id)
        if found is None or not self._is_of_hub_now(found):
            raise NotFoundError(
                "This dry run has expired: it was carried out, newer ones replaced it, or its hub is gone.",
                next_step="Run a new one.",
            )
        return found

    def _is_of_hub_now(self, kept: KeptPlan) -> bool:
        try:
            created_at_ms = self._broker.event_hub(kept.request.event_hub).description.created_at_ms
        except NotFoundError:
            return False
        return all(each.after.event_hub_created_at_ms == created_at_ms for each in kept.plan.moves)

    def start_move(self, plan_id: str, *, actor: str, is_rewind_allowed: bool, is_forced: bool) -> Job:
        """Move the checkpoints as planned; one that has moved since is skipped unless ``is_forced``.

        is_rewind_allowed: also move backwards. is_forced: also if a host owns the partition.
        Raises NotFoundError (no such plan), InvalidArgumentError (not allowed), QuotaExceededError.
        """
        kept = self.plan(plan_id)
        request, plan = kept.request, kept.plan
        if plan.rewinds and not is_rewind_allowed:
            raise InvalidArgumentError(
                f"{len(plan.rewinds)} checkpoints would move backwards; nothing was moved.",
                next_step="Confirm that events may be processed again.",
            )

        database = self.databases[request.database]

        async def work(job: Job) -> None:
            update = job.updater_for_threads()

            def check() -> None:
                job.require_wanted()
                if not self._is_of_hub_now(kept):
                    raise NotFoundError(
                        f"The event hub {request.event_hub!r} was deleted; its checkpoints stay as they are."
                    )

            await database.change(
                lambda opened: carry_out(
                    opened,
                    request.consumer,
                    plan,
                    job,
                    update,
                    check=check,
                    is_rewind_allowed=is_rewind_allowed,
                    is_forced=is_forced,
                )
            )
            self._groups.forget()
            self._each.forget()

        job = self._jobs.start(
            JobKind.MOVE,
            f"Checkpoints of {request.event_hub} / {request.consumer_group} to {_words(request)}",
            work,
            event_hub=request.event_hub,
            actor=actor,
        )
        # A plan is executed once, because the state that it compares with has then changed.
        del self._plans[plan_id]
        return job

    async def close(self) -> None:
        """Cancel running queries."""
        await self._groups.close()
        await self._letters.close()
        await self._each.close()

    async def _look(
        self, consumer: ConsumerKey | None, database: str, extent: _Extent
    ) -> tuple[Mapping[Place, GroupProgress], Mapping[str, TidegateError], _Letters]:
        """The given group, or (None) all groups, if they have a lease or a checkpoint; errors of databases;
        and dead letters. database: the only one that is asked; empty: all are, and the service."""
        hub, since = extent
        stored, problems = await self._stored(consumer, database, since)
        groups = {
            Place(each, name): view
            for name, found in stored.items()
            for each, view in found.groups.items()
            if hub in (None, each.event_hub)
        }
        names = (hub, None) if consumer is None else (consumer.event_hub, consumer.consumer_group)
        kept = {} if database else await kept_views(self._broker, *names)
        # Hosts and official processors in one group each process everything: that of a database is shown.
        known = {place.consumer for place in groups}
        groups |= {Place(each, ""): view for each, view in kept.items() if each not in known}
        hubs = {place.consumer.event_hub for place in groups}
        logs = {name: log for name in hubs if (log := await self._log_of(name)) is not None}
        if hub is not None:
            groups = await _of_hubs(groups, logs)
        now = self._clock.now_utc()
        await self._find_unread(groups, logs, now)
        unread = dict(self._unread)

        letters = _sums_of_letters([*stored.values()])

        def join(place: Place) -> GroupProgress:
            each, name = place
            still_open, new = stored[name].letters(each) if name else letters(each)
            return progress_of(
                each,
                groups[place],
                logs.get(each.event_hub),
                unread,
                now,
                open_dead_letters=still_open,
                new_dead_letters=new,
                is_kept=not name,
                database=name,
            )

        found = await self._joining.run(lambda: {place: join(place) for place in groups})
        return found, problems, letters

    async def _stored(
        self, consumer: ConsumerKey | None, database: str, since: datetime | None
    ) -> tuple[Mapping[str, _Stored], Mapping[str, TidegateError]]:
        """The given group, or (None) all groups, by the name of the database (empty: of each), and errors.
        since: only dead letters of events enqueued then or later."""
        hour_ago = self._clock.now_utc() - _NEW_LETTERS

        def read(opened: Database) -> _Stored:
            from tidegate.sql.dead_letters.pages import DeadLetterPages
            from tidegate.sql.stores.group_views import read_group_view, read_group_views

            pages = DeadLetterPages(opened)
            still_open = pages.open_counts(consumer, enqueued_from=since)
            new = pages.open_counts(consumer, enqueued_from=since, failed_from=hour_ago)
            if consumer is None:
                return _Stored(read_group_views(opened), still_open, new)
            view = read_group_view(opened, consumer)
            return _Stored({consumer: view} if view.partition_ids else {}, still_open, new)

        # What metrics show, too, does not wait for what the policies of a hub ask.
        is_whole = consumer is None and since is None
        return await ask_each(
            chosen(self.databases, database), lambda each: (each.measure if is_whole else each.ask)(read)
        )

    async def _others(self, known: Container[ConsumerKey], hub: str | None) -> Sequence[tuple[str, str]]:
        """The consumer groups of the hub (None: of all hubs) that are not known, by hub."""
        found: list[tuple[str, str]] = []
        # Not their groups, of which there may be twenty times as many: sorting is one step.
        for each in sorted(self._broker.list_event_hubs(), key=lambda hub: hub.name.lower()):
            if hub in (None, each.name.lower()):
                names = each.description.consumer_groups
                found += [(each.name, name) for name in names if ConsumerKey(each.name, name) not in known]
                await asyncio.sleep(0)
        return found

    async def _log_of(self, name: str) -> HubLog | None:
        """The ends of a hub's partitions; None if this service has no such hub."""
        try:
            hub = self._broker.event_hub(name)
        except NotFoundError:
            return None
        ends: dict[str, PartitionEnds | None] = {}
        for index, partition in enumerate(hub.partitions):
            if index % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
            ends[partition.partition_id] = None if partition.open_error else await partition.ends()
        described = hub.description
        names = frozenset(ConsumerKey(name, each).consumer_group for each in described.consumer_groups)
        return HubLog(hub.name, described.created_at_ms, names, ends)

    async def _find_unread(
        self, groups: Mapping[Place, GroupView], logs: Mapping[str, HubLog], now: datetime
    ) -> None:
        """Find since when events have waited, for a few partitions per query, of each hub in turn: one whose
        checkpoints move all the time leaves lookups to others."""
        missing: dict[str, list[UnreadKey]] = {}
        for place, group in groups.items():
            await asyncio.sleep(0)  # a thousand partitions take 5 ms
            own = missing.setdefault(place.consumer.event_hub, [])
            if len(own) >= _UNREAD_LOOKUPS_MAX:
                continue
            for key in unread_of({place: group}, logs, now):
                if key in self._unread:
                    self._unread.move_to_end(key)
                else:
                    own.append(key)
        in_turn = [key for keys in zip_longest(*missing.values()) for key in keys if key is not None]
        for key in in_turn[:_UNREAD_LOOKUPS_MAX]:
            await asyncio.sleep(0)  # reading a batch of very many events takes 2 ms
            try:
                name, _, partition_id, number = key
                partition = self._broker.event_hub(name).partition(partition_id)
                batches = await partition.read(number, bytes_max=1)
            except TidegateError:
                continue  # deleted, or damaged: its readers get the error
            if batches:
                self._unread[key] = time_of(batches[0].enqueued_time_ms)
        while len(self._unread) > _UNREAD_KEPT_MAX:
            self._unread.popitem(last=False)


def _require_group(hub: EventHub, name: str) -> None:
    """Raise NotFoundError unless the hub has the consumer group: no other name gets checkpoints."""
    try:
        hub.find_consumer_group(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"The event hub {hub.name!r} has no consumer group {name[:80]!r}, and nothing of that name has a "
            "checkpoint or a lease.",
            next_step="Create the consumer group. A Spark pipeline that has not begun starts at its own "
            "starting position.",
        ) from error


def _sums_of_letters(found: Sequence[_Stored]) -> _Letters:
    def sums(consumer: ConsumerKey) -> tuple[int, int]:
        counts = [each.letters(consumer) for each in found]
        return sum(number for number, _ in counts), sum(number for _, number in counts)

    return sums


def _unread_events(hub: EventHub) -> int | None:
    """All events of a hub; None: a partition cannot be read."""
    count = 0
    for partition in hub.partitions:
        if (bounds := partition.known_bounds) is None:
            return None
        count += bounds.next_sequence_number - bounds.begin_sequence_number
    return count


def _readers(hub: EventHub) -> Counter[str]:
    """Open receivers by consumer group, in lower case."""
    receivers = (each for partition in hub.partitions for each in partition.receivers())
    return Counter(each.consumer_group.lower() for each in receivers)


async def _of_hubs(groups: Mapping[Place, GroupView], logs: Mapping[str, HubLog]) -> dict[Place, GroupView]:
    """The groups as the present hubs' own users see them."""
    own = {}
    for place, view in groups.items():
        log = logs.get(place.consumer.event_hub)
        if log is not None and (its := of_this_hub(place.consumer, view, log)):
            own[place] = its
        await asyncio.sleep(0)
    return own


def _name_of(group: GroupProgress) -> str:
    return f"{group.summary.event_hub} {group.summary.consumer_group}"


def _words_of_databases(databases: Databases) -> str:
    return {0: "this service has", 1: "this database has"}.get(len(databases), "these databases have")


def _extent_of(rights: Rights | None) -> _Extent:
    if rights is None or rights.hub is None:
        return None, None
    return rights.hub.lower(), rights.since


def _words(request: MoveRequest) -> str:
    value = request.position.value
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return request.position.kind.value if value is None else f"event {value:,}"
