"""Sends events through the broker's partitions, as for those published over HTTP.

Limits on throughput, size and disk apply as to any producer. A set is sent by its own task, in steps of a
tenth of a second with one batch per partition.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.amqp.message import Message
from tidegate.broker import Broker, EventHub, Partition
from tidegate.console.explorer.codec import EventEncoder
from tidegate.console.explorer.values import (
    SEND_BYTES_MAX,
    SEND_EVENTS_MAX,
    SEND_LINES_MAX,
    SEND_RATE_MAX,
    SEND_RUNS_MAX,
    RunState,
    SendPlan,
    SingleEvent,
    Target,
)
from tidegate.console.frame.shares import SharedPlaces, oldest_of_most, share_left
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    NotFoundError,
    QuotaExceededError,
    ServerBusyError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.model.limits import PARTITION_KEY_CHARACTERS_MAX
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.batch import wrap_event

_ENCODED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a set's encoded lines with keys and properties. Our choice: four times that of the bodies."""
_ALL_ENCODED_BYTES_MAX: Final = 128 * 1024 * 1024
"""The same of all sets that are being sent. Our choice: two of the largest, or many small ones."""
_ENCODING_MAX: Final = 2
"""Forms that are read and encoded at once; others wait. Our choice: only their text is counted, and 2 MB of
it may become properties of 30 MB."""
_KEYED_BYTES_MAX: Final = 64 * 1024
"""Limit of a body in whose JSON the key is. Our choice: parsing it, during which nothing else runs, takes
milliseconds."""
_STEPS_PER_S: Final = 10
_BUSY_WAIT_S: Final = 1.0
"""Maximum wait before sending again if the service is busy, so that a raised limit is soon noticed."""
_ENDED_RUNS_MAX: Final = 32
"""Number of ended runs that are kept."""

_log = logging.getLogger(__name__)

_RIGHT_ENDED: Final = "The user who started it may no longer send here."


class EventSender:
    """Sends single events and sets."""

    def __init__(self, broker: Broker, *, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._tasks = TaskOwner("console sending")
        self._runs: OrderedDict[str, SendRun] = OrderedDict()
        self._encoding = SharedPlaces(_ENCODING_MAX)
        self._starting: list[str] = []
        """The event hub of each set that is being encoded, or waits for it."""

    async def close(self) -> None:
        """Stop all runs; stored events stay."""
        await self._tasks.close()

    async def send(
        self, hub: str, read: Callable[[], SingleEvent], *, may_go_on: Callable[[], bool]
    ) -> tuple[str, int]:
        """Send one event; returns its partition and its sequence number once it is durable.

        read: runs in a thread when it is the hub's turn. may_go_on: called directly before it is stored.

        Raises UnauthorizedError (may_go_on returned False), NotFoundError, InvalidArgumentError,
        EventTooLargeError, ServerBusyError, LogFullError; and what ``read`` raises.
        """
        event_hub = self._broker.event_hub(hub)
        async with self._encoding.of(event_hub.name):
            partition_id, key, section = await asyncio.to_thread(_encoded_event, read)
        partition = _partition(event_hub, partition_id, key)
        await self._broker.wait_uncongested()
        if not may_go_on():
            raise UnauthorizedError(_RIGHT_ENDED)
        result = await partition.append(section, array("I", (len(section),)))
        return partition.partition_id, result.start_sequence_number

    async def start_run(
        self, hub: str, read: Callable[[], SendPlan], *, may_go_on: Callable[[], bool]
    ) -> SendRun:
        """Start sending a set. read: runs in a thread when it is the hub's turn. may_go_on: called directly
        before each batch is stored; False stops it.

        Raises NotFoundError, InvalidArgumentError (a number out of range, a line without its key, too large
        in total), EventTooLargeError (a line), QuotaExceededError (too many runs of all or of the hub, or too
        large together); and what ``read`` raises.
        """
        event_hub = self._broker.event_hub(hub)
        self._check_room(event_hub.name, 0)
        self._starting.append(event_hub.name)
        try:
            async with self._encoding.of(event_hub.name):
                plan = await asyncio.to_thread(read)
                _check(plan)
                if plan.target.partition_id is not None:
                    event_hub.partition(plan.target.partition_id)
                room = self._room_for(event_hub.name)
                sections, size = await asyncio.to_thread(_encoded, plan, event_hub.event_bytes_max, room)
        finally:
            self._starting.remove(event_hub.name)
        self._check_room(event_hub.name, size)  # again, now that its size is known
        # The run keeps the encoded lines instead of bodies and properties.
        run = SendRun(
            event_hub,
            replace(plan, bodies=(), message=Message()),
            sections,
            len(sections) * plan.repeats,
            uuid.uuid4().hex[:12],
            self._clock,
            self._clock.monotonic(),
            size,
        )
        ended = {
            each.run_id: each.event_hub.name
            for each in self._runs.values()
            if each.state is not RunState.SENDING
        }
        while len(ended) >= _ENDED_RUNS_MAX:
            old = oldest_of_most(ended, newcomer=event_hub.name)
            del ended[old], self._runs[old]
        self._runs[run.run_id] = run
        self._tasks.start(self._send_set(run, may_go_on), name=f"set {run.run_id}")
        return run

    def run(self, hub: str, run_id: str) -> SendRun:
        """A run. Raises NotFoundError, also for old runs, which are forgotten."""
        run = self._runs.get(run_id)
        if run is None or not self._is_of(run, hub):
            raise NotFoundError(f"No set {run_id[:40]!r} was sent to {hub[:80]!r} recently.")
        return run

    def runs(self, hub: str) -> Sequence[SendRun]:
        """The known runs of a hub, newest first."""
        return [run for run in reversed(self._runs.values()) if self._is_of(run, hub)]

    def stop_run(self, hub: str, run_id: str) -> None:
        """Stop a run, if it has not ended; events already sent stay. Raises NotFoundError."""
        self.run(hub, run_id).stop_requested.set()

    def _is_of(self, run: SendRun, hub: str) -> bool:
        """Whether the run is of that hub: not of an earlier one of its name, which may have been another
        tenant's."""
        if not hub.isascii() or run.event_hub.name.lower() != hub.lower():
            return False
        try:
            return self._broker.event_hub(hub) is run.event_hub
        except NotFoundError:
            return True

    @property
    def _running(self) -> list[SendRun]:
        return [run for run in self._runs.values() if run.state is RunState.SENDING]

    def _room_for(self, hub: str) -> int:
        """Bytes of the encoded lines that the hub may still have."""
        holders = ((run.event_hub.name, run.encoded_bytes) for run in self._running)
        return share_left(hub, holders, _ALL_ENCODED_BYTES_MAX)

    def _check_room(self, hub: str, size: int) -> None:
        """size: bytes of the encoded lines of one more."""
        if size > self._room_for(hub):
            raise _no_room()
        hubs = [*self._starting, *(run.event_hub.name for run in self._running)]
        if share_left(hub, ((each, 1) for each in hubs), SEND_RUNS_MAX) <= 0:
            raise QuotaExceededError(
                f"Too many sets are being sent: {SEND_RUNS_MAX} are the maximum, and an event hub has no "
                "more than it leaves to others.",
                next_step="Stop one, or wait until one ends.",
            )

    async def _send_set(self, run: SendRun, may_go_on: Callable[[], bool]) -> None:
        try:
            await self._send_steps(run, may_go_on)
            run.end(RunState.DONE if run.sent == run.total else RunState.STOPPED)
        except TidegateError as error:
            # An error with a separate message for remote peers is logged in full.
            _log.info("sending a set to %s ended: %s", run.event_hub.name, error)
            run.error = error.remote_text or error.message
            run.next_step = "" if error.remote_text else error.next_step
            run.end(RunState.FAILED)
        except BaseException:
            run.end(RunState.FAILED)
            raise

    async def _send_steps(self, run: SendRun, may_go_on: Callable[[], bool]) -> None:
        event_hub = run.event_hub
        rate = run.plan.events_per_s
        step_events = max(1, rate // _STEPS_PER_S)
        due_s = self._clock.monotonic()
        while run.sent < run.total and not run.stop_requested.is_set():
            if self._broker.event_hub(event_hub.name) is not event_hub:
                raise NotFoundError(f"The event hub {event_hub.name!r} was deleted and created again.")
            numbers = range(run.sent, min(run.total, run.sent + step_events))
            await self._broker.wait_uncongested()
            for batch in _batches(event_hub, run, numbers):
                if not await self._append(run, batch, may_go_on):
                    return
            # Lost time is not made up for, to avoid a burst.
            now_s = self._clock.monotonic()
            due_s = max(now_s, due_s + len(numbers) / rate)
            if run.sent < run.total:
                await _wait_set(run.stop_requested, due_s - now_s)

    async def _append(self, run: SendRun, batch: _Batch, may_go_on: Callable[[], bool]) -> bool:
        """Store a batch, with retries while the service is busy. Returns False if the run must end."""
        while not run.stop_requested.is_set():
            if not may_go_on():
                run.error = _RIGHT_ENDED
                return False
            try:
                await batch.partition.append(b"".join(batch.sections), array("I", map(len, batch.sections)))
            except ServerBusyError as error:
                run.waits += 1
                wait_s = _BUSY_WAIT_S if error.retry_after_s is None else error.retry_after_s
                await _wait_set(run.stop_requested, min(wait_s, _BUSY_WAIT_S))
                continue
            run.sent += len(batch.sections)
            run.sent_bytes += batch.size_bytes
            return True
        return False


@dataclass(slots=True)
class _Batch:
    """Events for one partition."""

    partition: Partition
    sections: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class SendRun:
    """The changing state of a set that is being sent or was sent."""

    event_hub: EventHub
    plan: SendPlan
    """Without bodies and properties."""
    sections: Sequence[tuple[bytes, str | None]]
    """Each line's encoded form and partition key; empty once the run has ended."""
    total: int
    """Events of all repeats."""
    run_id: str
    clock: Clock
    started_s: float
    encoded_bytes: int
    """Of ``sections``, when it began."""
    state: RunState = RunState.SENDING
    sent: int = 0
    """Number of stored events."""
    sent_bytes: int = 0
    waits: int = 0
    """How often the service was busy."""
    error: str = ""
    next_step: str = ""
    ended_s: float | None = None
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def elapsed_s(self) -> float:
        """Seconds from its start to its end, or until now."""
        return (self.clock.monotonic() if self.ended_s is None else self.ended_s) - self.started_s

    def end(self, state: RunState) -> None:
        """End the run, keeping only its figures."""
        self.state, self.ended_s = state, self.clock.monotonic()
        self.sections = ()


def _check(plan: SendPlan) -> None:
    size = sum(map(len, plan.bodies))
    for is_right, words in (
        (1 <= len(plan.bodies) <= SEND_LINES_MAX, f"1 to {SEND_LINES_MAX:,} lines, not {len(plan.bodies):,}"),
        (size <= SEND_BYTES_MAX, f"at most {SEND_BYTES_MAX:,} bytes, not {size:,}"),
        (plan.repeats >= 1, f"at least 1 repeat, not {plan.repeats}"),
        (
            len(plan.bodies) * plan.repeats <= SEND_EVENTS_MAX,
            f"at most {SEND_EVENTS_MAX:,} events, not {len(plan.bodies):,} lines × {plan.repeats:,} repeats",
        ),
        (
            1 <= plan.events_per_s <= SEND_RATE_MAX,
            f"1 to {SEND_RATE_MAX:,} events per second, not {plan.events_per_s:,}",
        ),
    ):
        if not is_right:
            raise InvalidArgumentError(f"A set has {words}.")


def _encoded_event(read: Callable[[], SingleEvent]) -> tuple[str | None, str | None, bytes]:
    """The partition's id and the key of an event, if it has them, and its encoded form. Its properties, which
    take much more, are gone with the thread's turn."""
    event = read()
    key = _key_of(event.target, event.body)
    return event.target.partition_id, key, wrap_event(EventEncoder(event.message).encode(event.body, key))


def _no_room() -> QuotaExceededError:
    return QuotaExceededError(
        "The sets that are being sent would have too many bytes, with keys and properties of each line: "
        f"{_ALL_ENCODED_BYTES_MAX:,} are the maximum, and an event hub has no more than it leaves to others.",
        next_step="Stop one, or wait until one ends.",
    )


def _encoded(plan: SendPlan, event_bytes_max: int, room: int) -> tuple[list[tuple[bytes, str | None]], int]:
    """Each line's encoded form and key, and their bytes. room: bytes that other sets leave.

    Raises QuotaExceededError if that is too little; InvalidArgumentError naming the line without a key, with
    a key that is too long, or at which the total is too large; EventTooLargeError naming the line.
    """
    found: list[tuple[bytes, str | None]] = []
    encoder = EventEncoder(plan.message)
    size = 0
    for number, body in enumerate(plan.bodies, 1):
        try:
            key = _key_of(plan.target, body)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"Line {number}: {error.message}", next_step="Nothing was sent."
            ) from error
        encoded = encoder.encode(body, key)
        if len(encoded) > event_bytes_max:
            raise EventTooLargeError(
                f"Line {number}: The event has {len(encoded):,} bytes with its properties; "
                f"{event_bytes_max:,} are allowed.",
                next_step="Nothing was sent. Make it smaller.",
            )
        size += len(encoded)
        if size > _ENCODED_BYTES_MAX:
            raise InvalidArgumentError(
                f"A set has at most {_ENCODED_BYTES_MAX:,} bytes, the key and the properties of each line "
                f"included; line {number:,} of {len(plan.bodies):,} is beyond.",
                next_step="Nothing was sent. Send fewer lines, and repeat them, or smaller properties.",
            )
        if size > room:
            raise _no_room()
        found.append((wrap_event(encoded), key))
    return found, size


def _key_of(target: Target, body: bytes) -> str | None:
    """The event's partition key, if any. Raises InvalidArgumentError if it is missing or too long, or if the
    body is too large to look for it."""
    if target.key_path is not None and len(body) > _KEYED_BYTES_MAX:
        raise InvalidArgumentError(
            f"It has {len(body):,} bytes; keys are looked for in {_KEYED_BYTES_MAX:,} at most."
        )
    key = target.partition_key if target.key_path is None else target.key_path.text_in(body)
    # Checked first, for any partition.
    if key is not None and len(key) > PARTITION_KEY_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"The partition key has {len(key):,} characters; {PARTITION_KEY_CHARACTERS_MAX} are allowed."
        )
    return key


def _batches(event_hub: EventHub, run: SendRun, numbers: Iterable[int]) -> list[_Batch]:
    """The events with these numbers in batches by partition, each within the hub's limit."""
    bytes_max = event_hub.event_bytes_max
    ready: list[_Batch] = []
    open_batches: dict[str, _Batch] = {}
    for number in numbers:
        section, key = run.sections[number % len(run.sections)]
        partition = _partition(event_hub, run.plan.target.partition_id, key)
        batch = open_batches.get(partition.partition_id)
        if batch is None or batch.size_bytes + len(section) > bytes_max:
            batch = open_batches[partition.partition_id] = _Batch(partition)
            ready.append(batch)
        batch.sections.append(section)
        batch.size_bytes += len(section)
    return ready


def _partition(event_hub: EventHub, partition_id: str | None, key: str | None) -> Partition:
    return event_hub.partition_for(key) if partition_id is None else event_hub.partition(partition_id)


async def _wait_set(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
