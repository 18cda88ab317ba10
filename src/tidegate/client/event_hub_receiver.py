"""``EventHubReceiver``: receives the events of all partitions of an event hub, in one sequence.

Each partition has a ``PartitionReceiver``, which reconnects and keeps the partition's order; they take turns.
All wake one event when something arrives, so that no task or queue stands between them and the reader: what
is not asked for stays in their bounded buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from tidegate.client.iteration import EVENTS_PER_CALL, EventIteration
from tidegate.client.receiver import PREFETCH_EVENTS, PartitionReceiver
from tidegate.model.errors import ClosedError, InvalidArgumentError, TidegateError
from tidegate.model.events import ReceivedEvent
from tidegate.model.hub_properties import no_partition
from tidegate.model.position import EventPosition
from tidegate.transport.tasks import TaskOwner

_PARTITIONS_READ_S: Final = 10.0
"""Time between looks for added partitions (our choice)."""


class OpenReceiver(Protocol):
    """``EventHubConsumer.open_receiver``."""

    async def __call__(
        self,
        partition_id: str,
        position: EventPosition,
        *,
        prefetch_events: int,
        prefetch_bytes: int,
        is_peeking: bool,
    ) -> PartitionReceiver: ...


class EventHubReceiver(EventIteration):
    """Reads all partitions of an event hub. ``EventHubConsumer.receive`` makes it; ``async with`` it.

    Events of one partition are in order; there is no order between partitions. A lost connection is replaced
    as the retry policy says: the events continue where they paused. An error that ends one partition, as in
    ``PartitionReceiver.receive``, ends all: each further call raises it, and ``positions`` are the places to
    continue from. Not for concurrent readers.
    """

    def __init__(
        self,
        open_receiver: OpenReceiver,
        read_partition_ids: Callable[[], Awaitable[Sequence[str]]],
        tasks: TaskOwner,
        *,
        event_hub: str,
        position: EventPosition | Mapping[str, EventPosition],
        partition_ids: Iterable[str] | None,
        prefetch_bytes: int,
        is_peeking: bool,
    ) -> None:
        """For ``EventHubConsumer``."""
        if isinstance(partition_ids, str):
            raise InvalidArgumentError(
                "partition_ids is a list of ids.", next_step=f'Write partition_ids=["{partition_ids}"].'
            )
        super().__init__()
        self.event_hub = event_hub
        self._open_receiver = open_receiver
        self._read_partition_ids = read_partition_ids
        self._tasks = tasks
        self._position = position
        self._wanted = None if partition_ids is None else tuple(partition_ids)
        self._prefetch_bytes = prefetch_bytes
        self._is_peeking = is_peeking
        self._receivers: dict[str, PartitionReceiver] = {}
        self._returned: dict[str, int] = {}
        """By partition: the last event that was returned."""
        self._turn = 0
        """Which receiver is asked first."""
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._is_closed = False

    async def receive(
        self, max_events: int = EVENTS_PER_CALL, max_wait_s: float | None = None
    ) -> list[ReceivedEvent]:
        """Up to ``max_events`` events as soon as there is one; [] if none arrives within ``max_wait_s``.

        max_wait_s: seconds; None waits forever. The first call connects, which is not part of it.
        Raises NotFoundError, UnauthorizedError, BrokenError, and as ``EventHubConsumer.open_receiver`` and
        ``PartitionReceiver.receive``.
        Cancellation: no event is lost; the next call returns it.
        """
        events = self._left_over(max_events) or await self._take(max_events, max_wait_s)
        for event in events:
            self._returned[event.partition_id] = event.sequence_number
        return events

    async def __anext__(self) -> ReceivedEvent:
        event = await super().__anext__()
        self._returned[event.partition_id] = event.sequence_number
        return event

    @property
    def positions(self) -> dict[str, EventPosition]:
        """By partition: the place after the last event that was returned, to continue from, as an argument of
        ``EventHubConsumer.receive``. Empty before the first call."""
        return {key: self._position_of(receiver) for key, receiver in self._receivers.items()}

    async def close(self) -> None:
        """Detach from all partitions, and drop buffered events. Idempotent."""
        self._is_closed = True
        if self._follower is not None:
            self._follower.cancel()
        self._taken.clear()
        for receiver in self._receivers.values():
            receiver.close_nowait()
        self._changed.set()

    def __repr__(self) -> str:
        return f"<EventHubReceiver {self.event_hub} partitions={len(self._receivers)}>"

    async def _take(self, max_events: int, max_wait_s: float | None) -> list[ReceivedEvent]:
        if max_events <= 0:
            raise InvalidArgumentError(f"max_events must be at least 1, got {max_events}.")
        if not self._receivers and not self._is_closed:
            await self._start()
        events: list[ReceivedEvent] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait_s):
                while not (events := await self._take_buffered(max_events)):
                    await self._changed.wait()
        return events

    async def _take_buffered(self, max_events: int) -> list[ReceivedEvent]:
        """What has arrived, without waiting; partitions take turns. Raises what a partition ended with."""
        if self._is_closed:
            raise ClosedError("The receiver is closed.")
        self._changed.clear()
        receivers, events = [*self._receivers.values()], list[ReceivedEvent]()
        for _ in receivers:
            receiver = receivers[self._turn % len(receivers)]
            if len(events) == max_events or (events and receiver.is_over):
                break  # its error is raised by the next call, which asks it first
            if receiver.buffered_event_count or receiver.is_over:
                events += await receiver.receive(max_events - len(events))
            self._turn += 1
        return events

    def _position_of(self, receiver: PartitionReceiver) -> EventPosition:
        last = self._returned.get(receiver.partition_id)
        if last is None:
            return receiver.position
        return EventPosition.from_sequence_number(
            last, is_inclusive=False, history_id=receiver.history_of(last)
        )

    async def _start(self) -> None:
        try:
            known = await self._read_partition_ids()
            wanted, position = known if self._wanted is None else self._wanted, self._position
            if not wanted:
                raise InvalidArgumentError("partition_ids is empty: there is no partition to read.")
            chosen = position if isinstance(position, Mapping) else dict.fromkeys(wanted, position)
            for partition_id in (*wanted, *chosen):
                if partition_id not in known:
                    raise no_partition(self.event_hub, partition_id, known)
            # A partition that a mapping lacks was added after its positions were taken.
            await self._open({key: chosen.get(key, EventPosition.earliest()) for key in wanted})
        except BaseException:
            for receiver in self._receivers.values():
                receiver.close_nowait()
            self._receivers.clear()
            raise
        if self._wanted is None:
            self._follower = self._tasks.start(self._follow_hub(), name="partitions of the hub")

    async def _open(self, starts: Mapping[str, EventPosition]) -> None:
        """Open receivers. Raises the first error; those that are open by then remain."""
        count = len(self._receivers) + len(starts)

        async def open_one(partition_id: str, position: EventPosition) -> None:
            receiver = await self._open_receiver(
                partition_id,
                position,
                prefetch_events=max(1, PREFETCH_EVENTS // count),
                prefetch_bytes=max(1, self._prefetch_bytes // count),
                is_peeking=self._is_peeking,
            )
            if self._is_closed:
                receiver.close_nowait()
                return
            receiver.changed = self._changed
            self._receivers[partition_id] = receiver
            self._changed.set()  # what arrived before is to be seen

        try:
            async with asyncio.TaskGroup() as opening:
                for key, position in starts.items():
                    opening.create_task(open_one(key, position))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _follow_hub(self) -> None:
        """Read partitions that are added to the hub, from their beginning."""
        while True:
            await asyncio.sleep(_PARTITIONS_READ_S)
            with contextlib.suppress(TidegateError):  # the receivers report it
                added = [each for each in await self._read_partition_ids() if each not in self._receivers]
                await self._open(dict.fromkeys(added, EventPosition.earliest()))
