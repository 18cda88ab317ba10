"""The dead letters of the service's database for the HTTP administration: what consumers in any language add,
list, redrive and discard.

The rule: a request costs a bounded time and memory, whatever the database does. Adding and listing have
threads of their own; redrives and discards share others, one per event hub at a time, and end between two
transactions when their time is over. Only events of the hub as it is now are seen, not those of an earlier
hub of its name. What the database says of itself is for the log, not for clients.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final
from weakref import WeakValueDictionary

from tidegate.broker import Broker, EventHub, acting_as, current_actor
from tidegate.broker.audit import Action
from tidegate.console.dead_letters.filter import format_place, parse_place
from tidegate.console.explorer.reading import encoded_event
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.console.frame.shares import share_left
from tidegate.gateway.administration import shapes
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    DatabaseError,
    InvalidArgumentError,
    OperationTimeoutError,
    ServerBusyError,
)
from tidegate.model.times import time_of
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterStatus,
    NewDeadLetter,
)
from tidegate.sql.core.values import OVER_HTTP
from tidegate.sql.dead_letters.pages import DeadLetterLine, DeadLetterPages
from tidegate.sql.dead_letters.republish import add_once, republish_next
from tidegate.wire.batch import wrap_event

REQUESTS_MAX: Final = 32
"""Requests in progress, of all event hubs (our choice). A hub has no more than it leaves to others."""

HUB_WORK_MAX: Final = 2
"""Of those, how many of one hub are worked on at a time (our choice: half of the database's threads, and two
reads of the log in a pass of the event loop)."""

ANSWER_S_MAX: Final = 30.0
"""Seconds after which a request fails (our choice: below the administration's own limit)."""

WORK_S_MAX: Final = 15.0
"""Seconds after which a redrive or discard ends with the current transaction (our choice)."""

COPIES_BYTES_MAX: Final = 1024 * 1024
"""Copies written in one transaction, in bytes, and one more event (our choice: 64 MB for all requests)."""

OPEN_MAX: Final = 100_000
"""Open dead letters of a consumer group, beyond which none are added over HTTP (our choice: a consumer whose
every event fails is to stop, not to fill the database)."""

_EVENTS_PER_APPEND: Final = 100
_RETRY_S: Final = 5.0

_log: Final = logging.getLogger(__name__)


class _OverError(Exception):
    """Ends a redrive or discard whose time is over; its current transaction is undone."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """An event that a consumer has reported, with what the log has of it."""

    pointer: shapes.NewDeadLetter
    enqueued_time_ms: int
    encoded: bytes

    def letter(self) -> NewDeadLetter:
        """Its dead letter, with a copy. The event is not decoded: that can take seconds.

        It has no partition key, so a handler that parks keys never waits for it; the copy has the key.
        """
        pointer = self.pointer
        return NewDeadLetter(
            pointer.sequence_number,
            str(pointer.sequence_number),
            self.enqueued_time_ms,
            pointer.error_type,
            pointer.reason,
            pointer.traceback,
            payload=self.encoded,
        )


class _Run:
    """A redrive or a discard, whose work is in a thread."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.closed = 0
        self.recorded = 0
        """Of the closed ones, those that the audit trail has."""
        self.is_complete = False
        self.stop = threading.Event()
        """Set when the caller has gone."""
        self.until_s: float | None = None
        """By the monotonic clock; None: it has not begun."""
        self._broker = broker
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._actor = current_actor()

    def begin(self) -> None:
        """Its time starts."""
        self.until_s = self._clock.monotonic() + WORK_S_MAX

    def may_go_on(self) -> bool:
        """Whether there is time for another transaction. Raises UnauthorizedError without the right to it."""
        if self.stop.is_set() or (self.until_s is not None and self._clock.monotonic() >= self.until_s):
            return False
        self.on_loop(self._check())
        return True

    async def _check(self) -> None:
        with acting_as(self._actor):
            self._broker.check_actor()

    def on_loop(self, work: Coroutine[object, object, None]) -> None:
        """Run ``work`` on the service's event loop. Raises OperationTimeoutError."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(ANSWER_S_MAX)
        except TimeoutError as error:
            future.cancel()
            raise OperationTimeoutError("The service did not get to it in time.") from error


class DatabaseDeadLetters:
    """A ``DeadLetterKeeper``: the dead letters of one database."""

    def __init__(self, broker: Broker, url: str, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        # Not the console's: neither waits for the other's queries.
        self._database = LazyDatabase(url, may_create=True)
        self._in_progress: Counter[str] = Counter()
        self._work: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._writes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Both by event hub."""
        self._runs: dict[str, _Run] = {}

    async def add(self, hub: EventHub, group: str, wanted: shapes.DeadLetterAddition) -> dict[str, object]:
        """See ``DeadLetterKeeper``. Each partition's are written in transactions of their own; all can be
        repeated."""
        consumer = ConsumerKey(hub.name, group)
        pointers = {(each.partition_id, each.sequence_number): each for each in wanted.dead_letters}
        for partition_id, _ in pointers:
            hub.partition(partition_id)
        added = known = 0
        missing: list[object] = []
        async with self._turn(hub):
            for partition_id, keys in groupby(sorted(pointers), key=lambda key: key[0]):
                batch: list[_Failed] = []
                numbers = [number for _, number in keys]
                for number in numbers:
                    found = await encoded_event(hub.partition(partition_id), number)
                    await asyncio.sleep(0)  # a read from memory does not wait, and a thousand others do
                    if found is None:
                        missing.append({"partition_id": partition_id, "sequence_number": number})
                    else:
                        batch.append(_Failed(pointers[partition_id, number], *found))
                    size = sum(len(each.encoded) for each in batch)
                    if batch and (number == numbers[-1] or size >= COPIES_BYTES_MAX):
                        count = await self._write(hub, consumer, partition_id, batch)
                        added, known, batch = added + count, known + len(batch) - count, []
        return {"added": added, "already_open": known, "missing": missing}

    async def _write(
        self, hub: EventHub, consumer: ConsumerKey, partition_id: str, batch: Sequence[_Failed]
    ) -> int:
        created_at_ms = hub.description.created_at_ms

        def write(database: Database) -> int:
            return add_once(
                database,
                consumer,
                partition_id,
                [each.letter() for each in batch],
                open_max=OPEN_MAX,
                event_hub_created_at_ms=created_at_ms,
            )

        # One after the other, until its thread has ended: a repeat sees what the first request, whose time is
        # over, has written, and a hub whose handlers hold a checkpoint's lock keeps one thread waiting.
        turn = self._writes.setdefault(consumer.event_hub, asyncio.Lock())
        with ExitStack() as stack:
            await turn.acquire()
            stack.callback(turn.release)
            self._broker.check_actor()  # its right may have ended while it waited
            return await self._database.ask(write, when_ended=stack.pop_all().close)

    async def page(self, hub: EventHub, group: str, wanted: shapes.DeadLetterQuery) -> dict[str, object]:
        """See ``DeadLetterKeeper``."""
        is_any = wanted.status is shapes.DeadLetterStatus.ALL
        chosen = replace(
            _filter_of(hub, group, wanted), status=None if is_any else DeadLetterStatus(wanted.status)
        )
        behind = parse_place(wanted.after) if wanted.after else None
        async with self._turn(hub) as places:
            # One more than is shown, to know whether there is another page.
            found = await self._database.ask(
                lambda database: DeadLetterPages(database).page(
                    chosen, behind=behind, limit=wanted.limit + 1
                ),
                when_ended=places.pop_all().close,  # the thread reads on when the client has gone
            )
        shown, is_more = found[: wanted.limit], len(found) > wanted.limit
        return {
            "dead_letters": [_row_of(each) for each in shown],
            "next": format_place(shown[-1].place) if is_more else None,
        }

    async def redrive(self, hub: EventHub, group: str, wanted: shapes.DeadLetterRedrive) -> dict[str, object]:
        """See ``DeadLetterKeeper``."""
        consumer, chosen, actor = ConsumerKey(hub.name, group), _filter_of(hub, group, wanted), _actor()
        run = _Run(self._broker, self._clock)

        async def append(partition_id: str, copies: Sequence[bytes]) -> None:
            await self._broker.wait_uncongested()
            sections = [wrap_event(copy) for copy in copies]
            await hub.partition(partition_id).append(b"".join(sections), array("I", map(len, sections)))

        def publish(partition_id: str, copies: Sequence[bytes]) -> None:
            if not run.may_go_on():  # waiting for the locks can take long
                raise _OverError
            run.on_loop(append(partition_id, copies))

        def work(database: Database) -> None:
            while run.may_go_on():
                room = _EVENTS_PER_APPEND if wanted.maximum is None else wanted.maximum - run.closed
                if room <= 0:
                    return
                try:
                    count = republish_next(
                        database,
                        consumer,
                        chosen,
                        publish,
                        events_max=min(room, _EVENTS_PER_APPEND),
                        bytes_max=hub.event_bytes_max,
                        actor=actor,
                    )
                except _OverError:
                    return
                if count is None:
                    run.is_complete = True
                    return
                run.closed += count

        return await self._run(hub, group, run, work, Action.REDRIVE, {})

    async def discard(self, hub: EventHub, group: str, wanted: shapes.DeadLetterDiscard) -> dict[str, object]:
        """See ``DeadLetterKeeper``."""
        chosen, actor, run = _filter_of(hub, group, wanted), _actor(), _Run(self._broker, self._clock)

        def note(done: int) -> None:
            run.closed = done
            if not run.may_go_on():
                raise _OverError

        def work(database: Database) -> None:
            with suppress(_OverError):
                DeadLetters(database).discard(chosen, reason=wanted.because, actor=actor, progress=note)
                run.is_complete = True

        return await self._run(hub, group, run, work, Action.DISCARD, {"because": wanted.because})

    async def close(self) -> None:
        """End redrives and discards after their current transaction, and close the database."""
        for run in self._runs.values():
            run.stop.set()
        await self._database.close()

    async def _run(
        self,
        hub: EventHub,
        group: str,
        run: _Run,
        work: Callable[[Database], None],
        action: Action,
        details: dict[str, object],
    ) -> dict[str, object]:
        """Do the work in a thread, while the caller waits."""
        key = hub.name.lower()  # an earlier hub of this name may have had other letters
        if key in self._runs:
            raise ServerBusyError(
                f"Another redrive or discard of {hub.name!r} runs.",
                next_step="Wait for its end, and repeat this one.",
                retry_after_s=1.0,
            )
        loop, context = asyncio.get_running_loop(), copy_context()

        def record() -> None:
            count, run.recorded = run.closed - run.recorded, run.closed
            if count:
                new = {"consumer_group": group, "dead_letters": count, **details}
                self._broker.audit.record(action, hub.name, new=new)

        def end() -> None:
            if self._runs.get(key) is run:
                del self._runs[key]
            record()  # also what was committed after the caller had gone

        def whole(database: Database) -> None:
            run.begin()
            try:
                work(database)
            finally:
                with suppress(RuntimeError):  # the loop is closed: the service has stopped
                    loop.call_soon_threadsafe(end, context=context)

        self._runs[key] = run
        try:
            async with self._turn(hub):
                await self._database.count(whole)
        finally:
            run.stop.set()
            if run.until_s is None:
                end()
            record()
        return {"closed": run.closed, "is_complete": run.is_complete}

    @asynccontextmanager
    async def _turn(self, hub: EventHub) -> AsyncIterator[ExitStack]:
        """Counts a request. Raises ServerBusyError if too many are in progress, and OperationTimeoutError.

        Yields what gives its places back; to keep them for longer, take that with ``pop_all``.
        """
        if share_left(hub.name, self._in_progress.items(), REQUESTS_MAX) <= 0:
            raise ServerBusyError(
                "Too many requests about dead letters are in progress.",
                next_step="Repeat this one later.",
                retry_after_s=1.0,
            )
        self._in_progress[hub.name] += 1
        work = self._work.setdefault(hub.name.lower(), asyncio.Semaphore(HUB_WORK_MAX))
        places = ExitStack()
        places.callback(self._leave, hub.name)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await work.acquire()
                places.callback(work.release)
                yield places
        except TimeoutError as error:
            raise OperationTimeoutError(
                f"The database did not answer within {ANSWER_S_MAX:g} s; what was asked may still be done.",
                next_step="Repeat the request: nothing is added or discarded twice.",
            ) from error
        except DatabaseError as error:
            _log.warning("dead letters of %s: %s", hub.name, error)
            if error.is_transient:
                raise ServerBusyError(
                    "The database of dead letters cannot be reached.", retry_after_s=_RETRY_S
                ) from error
            raise DatabaseError("The database of dead letters failed; the service's log says how.") from error
        finally:
            places.close()

    def _leave(self, hub: str) -> None:
        self._in_progress[hub] -= 1
        self._in_progress += Counter()  # without those at zero


def _filter_of(
    hub: EventHub, group: str, wanted: shapes.DeadLetterQuery | shapes.DeadLetterChoice
) -> DeadLetterFilter:
    numbers = wanted.sequence_numbers if isinstance(wanted, shapes.DeadLetterChoice) else None
    if numbers is not None and wanted.partition_id is None:
        raise InvalidArgumentError(
            "sequence_numbers needs a partition_id.", next_step="Send one request for each partition."
        )
    return DeadLetterFilter(
        event_hub=hub.name,
        consumer_group=group,
        partition_id=_storable(wanted.partition_id),
        sequence_numbers=None if numbers is None else tuple(numbers),
        error_type=_storable(wanted.error_type),
        reason_contains=_storable(wanted.reason),
        enqueued_from=time_of(hub.description.created_at_ms),
    )


def _storable(text: str | None) -> str | None:
    """Without NUL, which PostgreSQL does not take, and no stored text has."""
    return None if text is None else text.replace("\0", "")


def _row_of(line: DeadLetterLine) -> dict[str, object]:
    return {
        "partition_id": line.partition_id,
        "sequence_number": line.sequence_number,
        "status": line.status.value,
        "attempts": line.attempts,
        "last_failed_at": line.last_failed_at.isoformat(timespec="milliseconds"),
        "error_type": line.error_type,
        "reason": line.reason,
        "partition_key": line.partition_key,
        "pipeline": "" if line.pipeline == OVER_HTTP else line.pipeline,
    }


def _actor() -> str:
    """Policy and address, for the history in the database."""
    actor = current_actor()
    return f"policy {actor.name} over HTTP from {actor.peer.address or 'an unknown address'}"
