"""Consumer groups: leases and checkpoints joined with the ends of the log; and moves of checkpoints.

Theory of operation. A query reads both tables and counts open dead letters in a thread, then reads the ends
of the logs on the event loop (in this order, so that no checkpoint seems to be beyond the growing log's end),
and joins them in a thread. Pages that need the same within a second share one query.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.broker import EventHub
from tidegate.console.consumers.kept import kept_views
from tidegate.console.consumers.moves import KeptPlan, MoveRequest, carry_out, plan_moves
from tidegate.console.consumers.progress import (
    LEASE_DURATION_S,
    GroupProgress,
    GroupSummary,
    HubLog,
    UnreadKey,
    of_this_hub,
    progress_of,
    unread_of,
)
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.frame.rights import Rights
from tidegate.console.frame.shared_answers import SharedAnswers
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
    from tidegate.console.frame.lazy_database import LazyDatabase
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

_NOTHING: Final = GroupView(LeaseSnapshot({}, datetime.max.replace(tzinfo=UTC)), {})

_Extent = tuple[str | None, datetime | None]
"""What an answer holds: one hub (in lower case) since it was created, or (None, None) all."""


class _OpenLetters(NamedTuple):
    """Open dead letters by consumer: all, and those that failed within the last hour."""

    open: Mapping[ConsumerKey, int]
    new: Mapping[ConsumerKey, int]


class Consumers:
    """Reads leases, checkpoints and the log's ends; moves checkpoints.

    Methods that query the database raise DatabaseError and DatabaseUnavailableError. SQLAlchemy is imported
    in them: a service without a database does not load it.
    """

    def __init__(self, parts: ConsoleParts, database: LazyDatabase | None, jobs: Jobs) -> None:
        """database: None: there are only the groups that official processors keep in the service."""
        self._broker = parts.broker
        self._clock = parts.clock
        self._database = database
        self._jobs = jobs
        self._joining = Threads(1, name="tidegate-console-groups")
        self._groups: SharedAnswers[_Extent, Sequence[GroupProgress]] = SharedAnswers(
            parts.clock, kept_s=_LOOK_S
        )
        self._letters: SharedAnswers[str, Mapping[ConsumerKey, tuple[int, int]]] = SharedAnswers(
            parts.clock, kept_s=_LOOK_S
        )
        self._each: SharedAnswers[tuple[ConsumerKey, _Extent], GroupProgress] = SharedAnswers(
            parts.clock, kept_s=_LOOK_S
        )
        self._unread: OrderedDict[UnreadKey, datetime] = OrderedDict()
        """Enqueued times of events after checkpoints."""
        self._plans: dict[str, KeptPlan] = {}
        """In order of their making."""

    @property
    def has_database(self) -> bool:
        """Whether hosts and pipelines are among the groups."""
        return self._database is not None

    async def groups(
        self, rights: Rights | None, *, at_most_s: float | None
    ) -> Sequence[GroupSummary] | None:
        """All consumer groups with a lease or a checkpoint that may be seen, by hub and name.

        rights: of the user; None: the service itself asks. None if reading takes longer than ``at_most_s``
        seconds (None: no limit); it continues, call again.
        """
        found = await self.all_progress(rights, at_most_s=at_most_s)
        return None if found is None else [each.summary for each in found]

    async def all_progress(
        self, rights: Rights | None, *, at_most_s: float | None
    ) -> Sequence[GroupProgress] | None:
        """As ``groups``, with their partitions."""
        extent = _extent_of(rights)

        async def look() -> Sequence[GroupProgress]:
            found = (await self._look(None, extent)).values()
            return sorted(found, key=lambda e: (e.summary.event_hub.lower(), e.summary.consumer_group))

        return await self._groups.ask(extent, look, at_most_s=at_most_s)

    async def dead_letters(self, *, at_most_s: float) -> Mapping[ConsumerKey, tuple[int, int]] | None:
        """By consumer, with or without checkpoints: all dead letters, which grow until rows are deleted, and
        the open ones.

        None if counting takes longer than ``at_most_s`` seconds; it continues, call again.
        """
        database = self._database
        assert database is not None

        def count(opened: Database) -> Mapping[ConsumerKey, tuple[int, int]]:
            from tidegate.sql.dead_letters.pages import DeadLetterPages

            pages = DeadLetterPages(opened)
            still_open = pages.open_counts()
            return {each: (number, still_open.get(each, 0)) for each, number in pages.all_counts().items()}

        async def look() -> Mapping[ConsumerKey, tuple[int, int]]:
            return await database.count(count)

        return await self._letters.ask("all", look, at_most_s=at_most_s)

    async def group(self, event_hub: str, consumer_group: str, rights: Rights) -> GroupProgress:
        """One consumer group, with its partitions in order. Raises NotFoundError.

        rights: of the user, who may see the hub.
        """
        consumer, extent = ConsumerKey(event_hub, consumer_group), _extent_of(rights)

        async def look() -> GroupProgress:
            found = await self._look(consumer, extent)
            if consumer not in found:
                raise NotFoundError(
                    f"The consumer group {consumer_group[:80]!r} of {event_hub[:80]!r} has no lease and no "
                    f"checkpoint in this {'database' if self.has_database else 'service'}.",
                    next_step="It appears with its first lease or checkpoint.",
                )
            return found[consumer]

        found = await self._each.ask((consumer, extent), look, at_most_s=None)
        assert found is not None
        return found

    async def plan_move(self, request: MoveRequest, rights: Rights) -> KeptPlan:
        """A dry run. rights: of the user: owners are shown as in ``group``.

        Raises NotFoundError, PositionOutOfRangeError, InvalidArgumentError.
        """
        hub = self._broker.event_hub(request.event_hub)
        moves = await plan_moves(hub, request)
        group = (await self._stored(request.consumer, None, None))[0].get(request.consumer, _NOTHING)
        if not group.partition_ids and request.consumer in await kept_views(
            self._broker, request.consumer.event_hub, request.consumer.consumer_group
        ):
            raise InvalidArgumentError(
                f"{request.consumer} keeps its checkpoints in the service, not in the database.",
                next_step="Stop its processors, and use: tidegate checkpoint set --blob-container.",
            )
        if self._database is None:
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
        plan = KeptPlan(secrets.token_urlsafe(12), request, MovePlan(tuple(compared)))
        self._plans[plan.plan_id] = plan
        if len(self._plans) > _PLANS_MAX:
            self._forget_plan()
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

    def _forget_plan(self) -> None:
        """Forget the oldest plan of the hub that has most: one hub's managers leave others theirs."""
        hubs = {plan_id: kept.request.consumer.event_hub for plan_id, kept in self._plans.items()}
        (most, _), *_ = Counter(hubs.values()).most_common(1)
        del self._plans[next(plan_id for plan_id, hub in hubs.items() if hub == most)]

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

        database = self._database
        assert database is not None  # there is a plan

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
        self, consumer: ConsumerKey | None, extent: _Extent
    ) -> Mapping[ConsumerKey, GroupProgress]:
        """The given group, or (None) all groups, if they have a lease or a checkpoint."""
        hub, since = extent
        stored, letters = await self._stored(consumer, hub, since)
        kept = await kept_views(
            self._broker,
            hub if consumer is None else consumer.event_hub,
            None if consumer is None else consumer.consumer_group,
        )
        # Hosts and official processors in one group each process everything: that of the database is shown.
        kept = {each: kept[each] for each in kept if each not in stored}
        groups = {**stored, **kept}
        names = {each.event_hub for each in groups}
        logs = {name: log for name in names if (log := await self._log_of(name)) is not None}
        if hub is not None:
            own = {}
            for each, view in groups.items():
                if each.event_hub in logs and (its := of_this_hub(each, view, logs[each.event_hub])):
                    own[each] = its
                await asyncio.sleep(0)
            groups = own
        now = self._clock.now_utc()
        await self._find_unread(groups, logs, now)
        unread = dict(self._unread)

        def join(each: ConsumerKey) -> GroupProgress:
            return progress_of(
                each,
                groups[each],
                logs.get(each.event_hub),
                unread,
                now,
                open_dead_letters=letters.open.get(each, 0),
                new_dead_letters=letters.new.get(each, 0),
                is_kept=each in kept,
            )

        return await self._joining.run(lambda: {each: join(each) for each in groups})

    async def _stored(
        self, consumer: ConsumerKey | None, hub: str | None, since: datetime | None
    ) -> tuple[Mapping[ConsumerKey, GroupView], _OpenLetters]:
        """The given group, or (None) all groups of a hub, or (None) of all hubs, in the database; and dead
        letters. since: only those enqueued then or later."""
        if self._database is None:
            return {}, _OpenLetters({}, {})
        hour_ago = self._clock.now_utc() - _NEW_LETTERS

        def read(database: Database) -> tuple[dict[ConsumerKey, GroupView], _OpenLetters]:
            from tidegate.sql.dead_letters.pages import DeadLetterPages
            from tidegate.sql.stores.group_views import read_group_view, read_group_views

            pages = DeadLetterPages(database)
            counts = _OpenLetters(
                pages.open_counts(consumer, enqueued_from=since),
                pages.open_counts(consumer, enqueued_from=since, failed_from=hour_ago),
            )
            if consumer is None:
                found = read_group_views(database)
                return {each: found[each] for each in found if hub in (None, each.event_hub)}, counts
            view = read_group_view(database, consumer)
            return ({consumer: view} if view.partition_ids else {}), counts

        return await self._database.ask(read)

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
        self, groups: Mapping[ConsumerKey, GroupView], logs: Mapping[str, HubLog], now: datetime
    ) -> None:
        """Find since when events have waited, for a few partitions per query."""
        missing: list[UnreadKey] = []
        for each, group in groups.items():
            await asyncio.sleep(0)  # a thousand partitions take 5 ms
            for key in unread_of({each: group}, logs, now):
                if key in self._unread:
                    self._unread.move_to_end(key)
                else:
                    missing.append(key)
            if len(missing) >= _UNREAD_LOOKUPS_MAX:
                break
        for key in missing[:_UNREAD_LOOKUPS_MAX]:
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


def _extent_of(rights: Rights | None) -> _Extent:
    if rights is None or rights.hub is None:
        return None, None
    return rights.hub.lower(), rights.since


def _words(request: MoveRequest) -> str:
    value = request.position.value
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return request.position.kind.value if value is None else f"event {value:,}"
