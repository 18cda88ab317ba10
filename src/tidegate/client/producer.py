"""``EventHubProducer``: sends events in acknowledged batches.

All events become batches of one partition, sent in order by that partition's ``PartitionSender``. A partition
key is hashed here with the service's hash function, so that events with different keys share a batch; each
event keeps its key. Batches of events with neither key nor partition alternate over the partitions. A named
publisher has one lane, because its name is each event's key.

``send`` and ``send_batch`` wait for the acknowledgement. ``enqueue…`` only put events into a bounded buffer;
``flush`` and ``on_error`` report failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Final, Self, Unpack

from tidegate.client.batching import (
    BatchAccumulator,
    EventDataBatch,
    check_destination,
    check_size,
    encode_batch,
    largest_batch_bytes,
)
from tidegate.client.closing import AsyncClosing
from tidegate.client.connector import Connector
from tidegate.client.entities import FailedEvents, SendFailedError
from tidegate.client.management import read_event_hub
from tidegate.client.namespace import ConnectionOptions, Namespace, event_hub_of
from tidegate.client.partition_sender import OutgoingBatch, PartitionSender
from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ClosedError, InvalidArgumentError, TidegateError, WouldBlockError
from tidegate.model.events import EventData
from tidegate.model.hub_properties import EventHubProperties, no_partition
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.tracing import Tracing, find_tracing
from tidegate.wire.addresses import NodeAddress, entity_audience
from tidegate.wire.event_codec import encode_event

logger = logging.getLogger(__name__)

_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Our choice: a second of a fast producer, and small compared to a machine's memory."""
_LINGER_MS: Final = 5.0
"""Our choice: too short for people to notice, and long enough to fill batches from a steady stream."""
_UNACKNOWLEDGED_MAX: Final = 32
"""Batches without an acknowledgement from which on an event waits for its partition's, not for ``linger_ms``
alone. Our choice: more than a few partitions have at full speed, fewer than make a busy service busier."""
_PARTITIONS_READ_S: Final = 30.0
"""Time between looks for added partitions while events are sent. Our choice: as hosts, at their default."""
_KEYS_REMEMBERED: Final = 65_536
_EVENTS_PER_TURN: Final = 512
"""Events that ``enqueue_many`` buffers before it yields to the event loop: about a millisecond of work."""


class _Lane:
    """One partition's batch being filled, and its sender."""

    __slots__ = ("accumulator", "linger", "sender")

    def __init__(self, sender: PartitionSender, bytes_max: int) -> None:
        self.sender = sender
        self.accumulator = BatchAccumulator(bytes_max)
        self.linger: asyncio.Handle | None = None


class EventHubProducer(AsyncClosing):
    """Sends events to one event hub. Use ``async with``, or ``close`` it: closing flushes.

    Events for one partition are stored in the order of the calls, whichever method sent them. Tidegate stores
    each event once, however often the connection breaks; elsewhere, and for named publishers, a batch whose
    acknowledgement was lost may be stored twice.
    Not thread-safe: use it on one event loop.
    """

    def __init__(
        self,
        namespace: Namespace,
        event_hub: str,
        *,
        publisher: str | None = None,
        linger_ms: float = _LINGER_MS,
        batch_bytes_max: int = EVENT_BYTES_MAX,
        buffer_bytes_max: int = _BUFFER_BYTES_MAX,
        is_idempotent: bool = True,
        on_error: Callable[[FailedEvents], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Connects when first used.

        publisher: send as this named publisher; the credential may then be valid for it alone.
        linger_ms: how long a buffered event may wait for its batch to fill, while earlier events of its
        partition (without a key: any events) are not acknowledged; otherwise it leaves at once. While many
        batches are not acknowledged, it waits for its partition's instead, so that a busy service gets fewer.
        batch_bytes_max: maximum encoded bytes per batch. buffer_bytes_max: maximum encoded bytes of
        unacknowledged buffered events.
        is_idempotent: number batches if the service supports it. on_error: called on the event loop with each
        failed batch of buffered events; without it ``flush`` raises them.
        """
        if linger_ms < 0 or batch_bytes_max <= 0 or buffer_bytes_max <= 0:
            raise InvalidArgumentError("linger_ms, batch_bytes_max and buffer_bytes_max cannot be negative.")
        self.event_hub = event_hub
        self.publisher = publisher
        """The name of the publisher, if any."""
        self._connector = Connector(namespace, clock=clock)
        entity = event_hub if publisher is None else f"{event_hub}/publishers/{publisher}"
        self._audience = entity_audience(namespace.host, entity)
        self._linger_s = linger_ms / 1000.0
        self._batch_bytes_max = min(largest_batch_bytes(None), batch_bytes_max)
        self._buffer_bytes_max = buffer_bytes_max
        self._is_idempotent = is_idempotent
        self._on_error = on_error
        self._lanes: list[_Lane] = []
        self._lanes_by_id: dict[str, _Lane] = {}
        self._lanes_by_key: dict[str | None, _Lane] = {}
        """Cache of checked and hashed keys for the hot path; None is never a key."""
        self._start_lock = asyncio.Lock()
        self._tracing: Tracing | None = None
        """What gives events the context of the current span; None: this process has no tracer provider."""
        self._turn = 0
        self._buffered_bytes = 0
        self._unacknowledged = 0  # batches
        self._changed = asyncio.Event()
        """Set whenever a batch is done, to wake callers that wait for room or for a flush."""
        self._room_turn = asyncio.Lock()
        """Held by the caller that waits for room; the others wait behind it, and are not woken with it."""
        self._failed: list[FailedEvents] = []
        self._is_closed = False

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        event_hub: str | None = None,
        *,
        publisher: str | None = None,
        linger_ms: float = _LINGER_MS,
        batch_bytes_max: int = EVENT_BYTES_MAX,
        buffer_bytes_max: int = _BUFFER_BYTES_MAX,
        is_idempotent: bool = True,
        on_error: Callable[[FailedEvents], None] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> Self:
        """A producer for ``event_hub`` (None: the connection string's EntityPath).

        The other arguments are those of the constructor.
        """
        return cls(
            Namespace.from_connection_string(connection_string, **options),
            event_hub_of(connection_string, event_hub),
            publisher=publisher,
            linger_ms=linger_ms,
            batch_bytes_max=batch_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
            is_idempotent=is_idempotent,
            on_error=on_error,
        )

    # --- one batch, acknowledged --------------------------------------------------------------------------

    async def send(
        self,
        events: EventData | Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> None:
        """Send events as one batch, all or none, and return once the service has stored them.

        Raises EventTooLargeError before anything is sent, NotFoundError (hub, partition), UnauthorizedError,
        and after the retries BrokenError, OperationTimeoutError or ServerBusyError.
        Cancellation: the batch may still be stored; the producer stays usable.
        """
        await self.start()
        events = [events] if isinstance(events, EventData) else events
        batch = encode_batch(
            events if self._tracing is None else self._tracing.sent_together(events),
            partition_key=partition_key,
            partition_id=partition_id,
            bytes_max=self._batch_bytes_max,
        )
        await self.send_batch(batch)

    async def create_batch(
        self,
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
        bytes_max: int | None = None,
    ) -> EventDataBatch:
        """An empty batch to fill with ``try_add`` and send with ``send_batch``.

        bytes_max: None means the service's maximum. Raises InvalidArgumentError for more, and as ``start``.
        """
        await self.start()
        if bytes_max is not None and not 0 < bytes_max <= self._batch_bytes_max:
            raise InvalidArgumentError(
                f"bytes_max must be from 1 to {self._batch_bytes_max}, got {bytes_max}."
            )
        return EventDataBatch(
            bytes_max=bytes_max or self._batch_bytes_max,
            partition_key=partition_key,
            partition_id=partition_id,
            tracing=self._tracing,
        )

    async def send_batch(self, batch: EventDataBatch) -> None:
        """Send a batch and return once the service has stored it; see ``send``. An empty one does nothing."""
        if not len(batch):
            return
        await self.start()
        if batch.partition_id is not None and batch.partition_id not in self._lanes_by_id:
            await self._add_partitions()
        lane = self._lane_for(batch.partition_key, batch.partition_id)
        self._seal(lane)  # events enqueued before for this partition are sent first
        outgoing = OutgoingBatch(batch.parts, batch.size_bytes)
        outgoing.acknowledged = asyncio.get_running_loop().create_future()
        self._buffered_bytes += outgoing.size_bytes
        self._submit(lane, outgoing)
        try:
            await outgoing.acknowledged
        except asyncio.CancelledError:
            if lane.sender.withdraw(outgoing):
                self._on_done(outgoing)
                if lane.sender.is_idle:
                    self._on_idle(lane)
            raise

    # --- buffered -----------------------------------------------------------------------------------------

    async def enqueue(
        self, event: EventData, *, partition_key: str | None = None, partition_id: str | None = None
    ) -> None:
        """Put an event into the buffer once it has room; it is sent when its batch is full or has lingered.

        Raises EventTooLargeError, NotFoundError (hub, partition), UnauthorizedError; and SendFailedError with
        earlier events that failed, which ``flush`` then does not raise again.
        Cancellation: the event is not in the buffer.
        """
        await self.start()
        self._raise_failed()
        await self._wait_room()
        self.enqueue_nowait(event, partition_key=partition_key, partition_id=partition_id)

    def enqueue_nowait(
        self, event: EventData, *, partition_key: str | None = None, partition_id: str | None = None
    ) -> None:
        """As ``enqueue``, without waiting.

        Raises WouldBlockError if the buffer is full or the producer has not connected yet (``start``).
        """
        if self._buffered_bytes >= self._buffer_bytes_max or not self._lanes:
            self._raise_if_closed()
            raise WouldBlockError(
                "The buffer is full." if self._lanes else "The producer is not connected yet.",
                next_step="Await enqueue, or flush." if self._lanes else "Await start first.",
            )
        self._add(event if self._tracing is None else self._tracing.sent(event), partition_key, partition_id)

    async def enqueue_many(
        self,
        events: Iterable[EventData],
        *,
        partition_keys: Iterable[str | None] | None = None,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> int:
        """Put many events into the buffer and return their number; faster than calling ``enqueue`` for each.

        partition_keys: the key of each event, in order, instead of one ``partition_key`` for all.
        Raises as ``enqueue``; the events before the invalid one are buffered.
        Cancellation: the buffer has some of the events, in order from the first.
        """
        if partition_keys is not None and (partition_key is not None or partition_id is not None):
            raise InvalidArgumentError("Use only one of partition_keys, partition_key and partition_id.")
        await self.start()
        self._raise_failed()
        if self._tracing is not None:
            events = self._tracing.sent_together(events)
        pairs = (
            zip(events, repeat(partition_key), strict=False)
            if partition_keys is None
            else _paired(events, partition_keys)
        )
        count = 0
        until_turn = _EVENTS_PER_TURN
        for event, key in pairs:
            if self._buffered_bytes >= self._buffer_bytes_max:
                await self._wait_room()
            self._add(event, key, partition_id)
            count += 1
            until_turn -= 1
            if not until_turn:
                until_turn = _EVENTS_PER_TURN
                await asyncio.sleep(0)
        return count

    async def flush(self) -> None:
        """Send the buffered events and return once all are acknowledged or have failed.

        Does not wait for events that are enqueued meanwhile.
        Raises SendFailedError with the events that failed since the last flush, unless ``on_error`` gets
        them.
        Cancellation: sending continues.
        """
        for lane in self._lanes:
            self._seal(lane)
        marks = [(lane.sender, lane.sender.submitted_count) for lane in self._lanes]
        while any(sender.finished_count < mark for sender, mark in marks):
            self._changed.clear()
            await self._changed.wait()
        self._raise_failed()

    @property
    def buffered_bytes(self) -> int:
        """Encoded bytes of unacknowledged buffered events."""
        return self._buffered_bytes

    # --- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and read the hub's partitions and maximum batch size. Optional: sending calls it if needed.

        Raises NotFoundError, UnauthorizedError, BrokenError and OperationTimeoutError (after the retries).
        """
        self._raise_if_closed()
        if self._lanes:
            return
        async with self._start_lock:
            if self._lanes:
                return
            if self.publisher is None:
                partition_ids = (await self.get_event_hub_properties()).partition_ids
                senders = [self._sender(partition_id) for partition_id in partition_ids]
            else:
                senders = [self._sender(None)]  # a publisher's credential may not read the hub
            limit = await senders[0].learn_message_bytes_max()
            self._batch_bytes_max = min(self._batch_bytes_max, largest_batch_bytes(limit))
            lanes = [self._lane(sender) for sender in senders]
            self._tracing = find_tracing()
            self._lanes_by_id = {lane.sender.partition_id: lane for lane in lanes}
            self._lanes = lanes
            if self.publisher is None:
                self._connector.tasks.start(self._follow_partitions(), name="partitions of the hub")

    async def get_event_hub_properties(self) -> EventHubProperties:
        """The hub's name, age and partitions."""
        self._raise_if_closed()
        return await read_event_hub(self._connector, self._audience, self.event_hub)

    async def close(self) -> None:
        """Flush and close. Idempotent. Raises as ``flush``, after closing.

        Cancellation: the producer is closed without waiting for unsent events, which fail with ClosedError.
        """
        if self._is_closed:
            return
        # From here on ``_lane_for`` raises ClosedError to everything that would add to the buffer.
        self._is_closed = True
        self._lanes_by_key.clear()
        try:
            await self.flush()
        finally:
            for lane in self._lanes:
                self._seal(lane)
                lane.sender.close(ClosedError("The producer was closed before the service responded."))
            await self._connector.close()
        self._raise_failed()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._lanes)} partitions"
        return f"<EventHubProducer {self.event_hub} {state} buffered={self._buffered_bytes}>"

    # --- inside -------------------------------------------------------------------------------------------

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise ClosedError("The producer is closed.")

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, []
        if failed:
            raise SendFailedError(tuple(failed))

    def _sender(self, partition_id: str | None) -> PartitionSender:
        """The sender for a partition; None: the publisher's."""
        address = NodeAddress.for_sending(self.event_hub, partition_id=partition_id, publisher=self.publisher)
        return PartitionSender(
            self._connector,
            address=address.format(),
            audience=self._audience,
            partition_id=partition_id or "",
            is_idempotent=self._is_idempotent and partition_id is not None,
            on_done=self._on_done,
            on_failed=self._on_failed,
        )

    def _lane(self, sender: PartitionSender) -> _Lane:
        lane = _Lane(sender, self._batch_bytes_max)
        sender.on_idle = partial(self._on_idle, lane)
        return lane

    async def _follow_partitions(self) -> None:
        """Send to partitions that are added to the hub later; idle producers do not ask for them."""
        while True:
            turn = self._turn
            await asyncio.sleep(_PARTITIONS_READ_S)
            if turn != self._turn:
                with contextlib.suppress(TidegateError):  # the next send gets the same error
                    await self._add_partitions()

    async def _add_partitions(self) -> None:
        """Use the partitions that the hub has now; from here on, keys map to all of them."""
        if self.publisher is not None:
            return
        found = (await self.get_event_hub_properties()).partition_ids
        added = [self._lane(self._sender(each)) for each in found if each not in self._lanes_by_id]
        if added:
            self._lanes = [*self._lanes, *added]
            self._lanes_by_id |= {lane.sender.partition_id: lane for lane in added}
            self._lanes_by_key.clear()

    def _lane_for(self, partition_key: str | None, partition_id: str | None) -> _Lane:
        self._raise_if_closed()
        if self.publisher is not None:
            if partition_id is not None or partition_key not in (None, self.publisher):
                raise InvalidArgumentError(
                    f"The publisher {self.publisher!r} cannot send to a partition or with "
                    "another partition key.",
                    next_step="Omit partition_id and partition_key: the publisher's name is the key.",
                )
            return self._lanes[0]
        if partition_key is not None:
            check_destination(partition_key, partition_id)
            if len(self._lanes_by_key) >= _KEYS_REMEMBERED:
                self._lanes_by_key.clear()
            lane = self._lanes[partition_for_key(partition_key, len(self._lanes))]
            self._lanes_by_key[partition_key] = lane
            return lane
        if partition_id is not None:
            named = self._lanes_by_id.get(partition_id)
            if named is None:
                raise no_partition(self.event_hub, partition_id, self._lanes_by_id)
            return named
        # Without a key: one lane until its batch is sealed (full or lingered), then the next.
        return self._lanes[self._turn % len(self._lanes)]

    def _add(self, event: EventData, partition_key: str | None, partition_id: str | None) -> None:
        """The hot path of buffering: encode, find the lane, append."""
        lane = self._lanes_by_key.get(partition_key)
        if lane is None or partition_id is not None:
            lane = self._lane_for(partition_key, partition_id)
        encoded = encode_event(event, partition_key)
        accumulator = lane.accumulator
        added_bytes = accumulator.try_add(encoded)
        if not added_bytes:
            check_size(encoded, accumulator.bytes_max)
            self._seal(lane)
            added_bytes = accumulator.try_add(encoded)
        self._buffered_bytes += added_bytes
        if lane.linger is None:
            loop = asyncio.get_running_loop()
            is_keyed = partition_key is not None or partition_id is not None
            if lane.sender.is_idle if is_keyed else self._is_all_in(lane):
                lane.linger = loop.call_soon(self._seal, lane)  # with what else is buffered in this turn
            else:
                lane.linger = loop.call_later(self._linger_s, self._end_linger, lane)

    def _is_all_in(self, lane: _Lane) -> bool:
        """Whether all that is not acknowledged is still in this lane's batch: no lane has one in flight."""
        return self._buffered_bytes == lane.accumulator.size_bytes

    def _end_linger(self, lane: _Lane) -> None:
        """The batch leaves, or stays open until its partition's acknowledgement while many are missing."""
        if lane.sender.is_idle or self._unacknowledged < _UNACKNOWLEDGED_MAX:
            self._seal(lane)

    def _on_idle(self, lane: _Lane) -> None:
        """What waits for an acknowledgement leaves with it."""
        self._seal(lane)
        shared = self._lanes[self._turn % len(self._lanes)]  # of events without a key
        if self._is_all_in(shared):
            self._seal(shared)

    def _seal(self, lane: _Lane) -> None:
        """Pass the batch being filled to the lane's sender."""
        if lane.linger is not None:
            lane.linger.cancel()
            lane.linger = None
        size_bytes = lane.accumulator.size_bytes
        if size_bytes:
            self._submit(lane, OutgoingBatch(lane.accumulator.take(), size_bytes))

    def _submit(self, lane: _Lane, batch: OutgoingBatch) -> None:
        self._unacknowledged += 1
        self._turn += 1
        lane.sender.submit(batch)

    async def _wait_room(self) -> None:
        if self._buffered_bytes < self._buffer_bytes_max:
            return
        async with self._room_turn:
            while self._buffered_bytes >= self._buffer_bytes_max:
                self._changed.clear()
                await self._changed.wait()
                self._raise_if_closed()
                self._raise_failed()

    def _on_done(self, batch: OutgoingBatch) -> None:
        self._buffered_bytes -= batch.size_bytes
        self._unacknowledged -= 1
        self._changed.set()

    def _on_failed(self, failed: FailedEvents) -> None:
        if self._on_error is None:
            self._failed.append(failed)
            return
        try:
            self._on_error(failed)
        except Exception:
            # If the caller's callback fails, the events are kept for flush.
            logger.exception("on_error failed for %r; flush will raise the events", failed)
            self._failed.append(failed)


def _paired(
    events: Iterable[EventData], keys: Iterable[str | None]
) -> Iterator[tuple[EventData, str | None]]:
    try:
        yield from zip(events, keys, strict=True)
    except ValueError as error:
        if not str(error).startswith("zip()"):
            raise  # from inside the caller's own iterables
        raise InvalidArgumentError(
            "enqueue_many needs as many partition_keys as events.",
            next_step="The events that have a partition key are already in the buffer.",
        ) from error
