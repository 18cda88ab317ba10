"""``PartitionReceiver``: receives one partition's events in order from a position, with reconnection.

Theory of operation
-------------------
A task keeps the link attached and fills a bounded buffer; ``receive…`` empties it. After a break the link is
attached again after the last buffered event, so no event is skipped or repeated. Events that arrive twice are
dropped. A gap in the numbers is checked: if retention overtook the reader it is an error, because events
would be lost silently; if the log has holes (compacted hubs on Azure) the reader continues.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tidegate.amqp.events import Delivery
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.performatives import Attach, Source
from tidegate.client.arrow import load_batches
from tidegate.client.connection import LinkHandler, LiveConnection
from tidegate.client.connector import AuthorizedConnection, Connector
from tidegate.client.iteration import EVENTS_PER_CALL, EventIteration
from tidegate.client.management import read_partition
from tidegate.client.receive_buffer import PrefetchWindow, ReceiveBuffer
from tidegate.columns.names import EVENT_COLUMNS, checked_columns
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    InvalidArgumentError,
    PositionOutOfRangeError,
    ProtocolError,
    QuotaExceededError,
    ReceiverStolenError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.history import History, find_divergence, history_of
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.position import EventPosition, PositionKind
from tidegate.wire.encoded_events import EncodedEvents, events_of_batch, events_of_deliveries
from tidegate.wire.event_codec import received_events
from tidegate.wire.management import histories_from_list
from tidegate.wire.names import (
    BATCH_DELIVERY_CAPABILITY,
    EPOCH,
    HISTORIES,
    HISTORY_CAPABILITY,
    HISTORY_ID,
    PEEK_CAPABILITY,
    RECEIVER_NAME,
)
from tidegate.wire.selector import selector_filter

if TYPE_CHECKING:
    import pyarrow as pa

PREFETCH_EVENTS: Final = 3000
PREFETCH_BYTES: Final = 16 * 1024 * 1024
"""Our choice: tens of milliseconds of a fast reader."""
_BATCH_BYTES: Final = 512 * 1024
"""A record batch takes no more of the buffer once it has this size (our choice: deliveries of usual size are
not joined, which would copy them)."""
_FIRST_CREDIT: Final = 300
"""Events requested before any size is known; the prefetch of azure-eventhub 5.15.1."""


class PartitionReceiver(LinkHandler, EventIteration):
    """Reads one partition. Open it with ``EventHubConsumer.open_receiver``; ``async with`` or ``close`` it.

    Not for concurrent readers: each event is returned by one ``receive`` call.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        event_hub: str,
        partition_id: str,
        address: str,
        audience: str,
        hub_audience: str,
        position: EventPosition,
        owner_level: int | None,
        receiver_name: str | None,
        prefetch_events: int,
        prefetch_bytes: int,
        is_batch_delivery_wanted: bool,
        must_start_at_position: bool,
        until_sequence_number: int | None,
        is_peeking: bool,
    ) -> None:
        """For ``EventHubConsumer``, which then calls ``start``."""
        if prefetch_events <= 0 or prefetch_bytes <= 0:
            raise InvalidArgumentError("prefetch_events and prefetch_bytes must be at least 1.")
        super().__init__()
        self.event_hub = event_hub
        self.partition_id = partition_id
        self._connector = connector
        self._address = address
        self._audience = audience
        self._hub_audience = hub_audience
        self.position = position
        """Where it was opened, as a place that does not move: ``latest`` is the end at that moment."""
        self._owner_level = owner_level
        self._receiver_name = receiver_name
        self._prefetch_events = prefetch_events
        self._prefetch_bytes = prefetch_bytes
        self._is_batch_delivery_wanted = is_batch_delivery_wanted
        self._is_peeking = is_peeking
        self.is_batched = False
        """Whether the service delivers parts of batches (Tidegate) instead of single events."""
        self._until = until_sequence_number
        self._histories: tuple[History, ...] = ()
        """Of the events that the link delivers, and of those before; empty: the service reports none."""
        self._buffer = ReceiveBuffer()
        self._window = self._new_window()
        self._next: int | None = None
        """The next expected number; None while only the service knows it."""
        if must_start_at_position and position.kind is PositionKind.SEQUENCE_NUMBER:
            assert isinstance(position.value, int)
            self._next = position.value if position.is_inclusive else position.value + 1
        self._unwanted = 0
        """Number of events before ``_next`` that will still arrive, to be dropped."""
        self._jump: int | None = None
        """The number that arrived instead of ``_next``."""
        self._connection: LiveConnection | None = None
        self._link: ReceiverLink | None = None
        self._is_attached = False
        self._break: TidegateError | None = None
        """Why the link was lost; None while it is attached."""
        self._failure: TidegateError | None = None
        """Why the receiver has ended; None while it has not."""
        self._has_progressed = False
        self._may_token_be_over = False
        """Whether the token was accepted for the link: if the service ends it now, a new one may help."""
        self._distrust_token: Callable[[], None] = lambda: None
        self.changed = asyncio.Event()
        """Wakes ``receive`` when events arrive or the receiver ends; several receivers may share one."""
        self._link_changed = asyncio.Event()
        """Wakes the task that keeps the link when it is attached or lost."""

    # --- receiving ----------------------------------------------------------------------------------------

    async def receive(
        self,
        max_events: int = EVENTS_PER_CALL,
        max_wait_s: float | None = None,
        *,
        bytes_max: float = math.inf,
    ) -> list[ReceivedEvent]:
        """Up to ``max_events`` events as soon as there is one; [] if none arrives within ``max_wait_s``.

        max_wait_s: seconds; None waits forever. bytes_max: no more of what has arrived together after so many
        bytes. Contents are decoded when first accessed.
        Raises ReceiverStolenError immediately; after the buffered events, PositionOutOfRangeError (retention
        overtook this reader), LogDivergedError (a backup was restored, which does not have what this reader
        has read, and has grown since) and the final error of a reconnection.
        Cancellation: no event is lost; the next call returns it.
        """
        return self._left_over(max_events) or await self._take(max_events, max_wait_s, bytes_max)

    async def _take(
        self, max_events: int, max_wait_s: float | None, bytes_max: float = math.inf
    ) -> list[ReceivedEvent]:
        events: list[ReceivedEvent] = []
        for encoded in await self._receive(max_events, max_wait_s, bytes_max):
            events += received_events(
                self.partition_id,
                encoded.sequence_numbers,
                encoded.offsets,
                encoded.enqueued_times_ms,
                encoded.messages,
            )
        return events

    async def receive_encoded(
        self, max_events: int = 10_000, max_wait_s: float | None = None
    ) -> EncodedEvents:
        """As ``receive``, without an object per event; length 0 if none arrives in time."""
        return EncodedEvents.joined(await self.receive_parts(max_events, max_wait_s))

    async def receive_parts(
        self, max_events: int = 10_000, max_wait_s: float | None = None
    ) -> list[EncodedEvents]:
        """As ``receive_encoded``, in the chunks as they arrived, without copying."""
        return await self._receive(max_events, max_wait_s)

    async def receive_arrow(
        self,
        columns: Sequence[str] = EVENT_COLUMNS,
        *,
        max_events: int = 100_000,
        max_wait_s: float | None = None,
    ) -> pa.RecordBatch:
        """As ``receive``, as a record batch: about a megabyte of what has arrived, without row if nothing has
        in time.

        columns: which, and their order: those of Spark's format ``eventhubs``, or ``properties.NAME`` for one
        property. Others are not decoded. Needs pyarrow and numpy (the extra ``arrow``).
        Raises NotFoundError if they are not installed, InvalidArgumentError for an unknown column, and as
        ``receive``. An event that cannot be decoded has the reason in its ``systemProperties``.
        """
        names, batches = checked_columns(columns, "receive_arrow"), load_batches()
        parts = await self._receive(max_events, max_wait_s, _BATCH_BYTES)
        batch: pa.RecordBatch = batches.event_batch(self.partition_id, EncodedEvents.joined(parts), names)
        return batch

    async def _receive(
        self, max_events: int, max_wait_s: float | None, bytes_max: float = math.inf
    ) -> list[EncodedEvents]:
        if max_events <= 0:
            raise InvalidArgumentError(f"max_events must be at least 1, got {max_events}.")
        if not self._buffer.event_count:
            await self._wait_events(max_wait_s)
        if isinstance(self._failure, (ReceiverStolenError, ClosedError)):
            raise self._failure  # buffered events belong to the new owner
        if not self._buffer.event_count and self._failure is not None:
            raise self._failure
        taken = self._buffer.take_parts(max_events, bytes_max)
        self._renew_credit()
        return taken

    def check_history(self, resume_point: int, history_id: str | None) -> None:
        """Raise LogDivergedError if the log, as this receiver attached to it, is not the one that has the
        events before ``resume_point`` in this history. None: it is not known.
        """
        where = f"Partition {self.partition_id}"
        if error := find_divergence(resume_point, history_id, self._histories, where=where):
            raise error

    def history_of(self, sequence_number: int) -> str | None:
        """The id of the history in which an event up to the last received one was stored.

        With it, ``EventPosition.from_sequence_number`` proves to be of the same log. None: the service
        (Azure) has none, or no longer knows it.
        """
        return history_of(sequence_number, self._histories)

    def go_on(
        self, until_sequence_number: int | None, prefetch_bytes: int, *, from_sequence_number: int = 0
    ) -> None:
        """Change the end of the range, and raise the prefetch limit; both as when opened.

        from_sequence_number: drop buffered events before it, and also those still to arrive if
        ``next_sequence_number`` is known.
        """
        self._buffer.drop_before(from_sequence_number)
        if self._next is not None and self._next < from_sequence_number:
            self._unwanted += from_sequence_number - self._next
            self._next = from_sequence_number
        self._until = until_sequence_number
        self._prefetch_bytes = max(self._prefetch_bytes, prefetch_bytes)
        self._window.widen(prefetch_bytes)
        self._renew_credit()

    @property
    def next_sequence_number(self) -> int | None:
        """The next event to arrive; None before the first one, if only the service knows its number."""
        return self._next

    def estimate_skip_bytes(self, sequence_number: int) -> float:
        """Bytes that ``go_on`` from that event would fetch and drop; infinite if unknown, or not attached."""
        if self._next is None or self.is_over or not self._is_attached:
            return math.inf
        return self._window.estimate_bytes(max(0, sequence_number - self._next) + self._unwanted)

    @property
    def buffered_event_count(self) -> int:
        """Number of events that ``receive`` would return without waiting."""
        return self._buffer.event_count

    @property
    def is_over(self) -> bool:
        """Whether it has ended: closed, stolen or failed."""
        return self._failure is not None

    async def close(self) -> None:
        """Detach and drop buffered events; a later receiver should start after the last handled event."""
        self.close_nowait()

    def close_nowait(self) -> None:
        """As ``close``, for callers that cannot await."""
        self._fail(ClosedError("The receiver is closed."))
        self._buffer.clear()
        self._taken.clear()
        self._detach()

    def __repr__(self) -> str:
        state = "over" if self._failure else "attached" if self._is_attached else "detached"
        buffered = self._buffer.event_count
        return f"<PartitionReceiver {self._address} {state} next={self._next} buffered={buffered}>"

    # --- keeping the link ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Attach, with retries, and stay attached. Called once, by the consumer."""
        try:
            await self._connector.run(f"the attach of {self._address}", self._attach)
        except BaseException as error:
            self._fail(error if isinstance(error, TidegateError) else ClosedError("Opening was cancelled."))
            self._detach()
            raise
        self._connector.tasks.start(self._keep_attached(), name=f"receiver of {self._address}")

    async def _keep_attached(self) -> None:
        """The receiver's task: attach again after each break, until retries are exhausted."""
        try:
            await self._attach_until_failed()
        finally:  # cancelled with its client: ``receive`` must not wait forever
            self._fail(ClosedError("The client was closed."))

    async def _attach_until_failed(self) -> None:
        retries_done = breaks_in_vain = 0
        clock, quiet_s = self._connector.clock, self._connector.namespace.retry.delay_s_max
        attached_at = clock.monotonic()
        while self._failure is None:
            self._link_changed.clear()
            if self._break is None and self._jump is None:
                await self._link_changed.wait()
                continue
            if self._has_progressed or clock.monotonic() - attached_at > quiet_s:
                retries_done = breaks_in_vain = 0
            attached_at = math.inf  # time spent trying to attach does not count
            self._has_progressed = False
            try:
                if self._break is not None and not self._may_retry(self._break, 0):
                    raise self._break
                if isinstance(self._break, UnauthorizedError):
                    # Only once: errors of the next tries are judged separately.
                    self._break = BrokenError("The link's token expired.")
                if self._break is not None and breaks_in_vain:
                    # If the service accepts links and ends them immediately, wait between attempts.
                    await self._connector.wait_before_retry(breaks_in_vain, self._break)
                if self._jump is not None:
                    await self._look_into_jump()
                await self._connector.run_once(f"the attach of {self._address}", self._attach)
                attached_at = clock.monotonic()
                breaks_in_vain += 1
            except TidegateError as error:
                if not self._may_retry(error, retries_done):
                    self._fail(error)
                    return
                retries_done += 1
                await self._connector.wait_before_retry(retries_done, error)

    def _may_retry(self, error: TidegateError, retries_done: int) -> bool:
        retry = self._connector.namespace.retry
        if isinstance(error, UnauthorizedError) and self._may_token_be_over and retry.retries_max:
            # A suspended or busy machine may not have renewed the token in time. The next try has a new one.
            self._may_token_be_over = False
            self._distrust_token()
            return True
        if isinstance(error, QuotaExceededError):
            # The service may still count our link on the broken connection for a while.
            return retries_done < retry.retries_max
        return retry.decide_retry(error, retries_done=retries_done)

    async def _attach(self, authorized: AuthorizedConnection) -> None:
        if await authorized.authorize(self._audience):
            self._may_token_be_over = False
        self._distrust_token = partial(authorized.distrust_token, self._audience)
        if self._failure is not None:
            raise self._failure  # closed meanwhile
        position = self._resume_position()
        properties: dict[str, object] = {}
        if position.history_id is not None:
            properties[HISTORY_ID] = position.history_id
        if self._owner_level is not None:
            properties[EPOCH] = self._owner_level
        if self._receiver_name is not None:
            properties[RECEIVER_NAME] = self._receiver_name
        self._detach()
        self._break = None
        self._is_attached = False
        self._unwanted = 0  # the new link starts at ``_next``
        self._connection = authorized.connection
        self._link = authorized.connection.attach_receiver(
            Source(address=self._address, filter=selector_filter(position)),
            self,
            properties=properties,
            desired_capabilities=(
                *((BATCH_DELIVERY_CAPABILITY,) if self._is_batch_delivery_wanted else ()),
                HISTORY_CAPABILITY,
                *((PEEK_CAPABILITY,) if self._is_peeking else ()),
            ),
        )
        try:
            while not self._is_attached:
                self._link_changed.clear()
                await self._link_changed.wait()
                if self._failure is not None:
                    raise self._failure
                if self._break is not None:
                    raise self._break
        except BaseException:
            self._detach()
            if self._break is None:
                self._break = BrokenError(f"The attach of {self._address} was abandoned.")
            raise

    def _resume_position(self) -> EventPosition:
        if self._next is None:
            return self.position
        # Before the first event, the position is the one wanted, and so is its history.
        history_id = self.history_of(self._next - 1) if self._histories else self.position.history_id
        return EventPosition.from_sequence_number(self._next, history_id=history_id)

    async def _look_into_jump(self) -> None:
        """Continue after a hole in the log. Raises PositionOutOfRangeError if retention caused the gap."""
        assert self._next is not None
        assert self._jump is not None
        properties = await read_partition(
            self._connector, self._hub_audience, self.event_hub, self.partition_id
        )
        if properties.begin_sequence_number > self._next:
            raise PositionOutOfRangeError(
                f"Partition {self.partition_id} of {self.event_hub!r} no longer holds sequence number"
                f" {self._next}: the first available is {properties.begin_sequence_number}.",
                next_step="Retention removed it before it was read. Start from the first available, "
                "and increase retention or read faster.",
            )
        self._next = max(self._next, self._jump)  # ``go_on`` may have skipped more meanwhile
        self._jump = None
        if self._until is not None:
            # If the hole extends beyond the end of the range, the event after it ends the range.
            self._until = max(self._until, self._next + 1)

    def _detach(self) -> None:
        link, self._link = self._link, None
        if link is not None and self._connection is not None:
            self._connection.detach(link)

    def _fail(self, error: TidegateError) -> None:
        if self._failure is None:
            self._failure = error
        self.changed.set()
        self._link_changed.set()

    # --- what the link says -------------------------------------------------------------------------------

    def on_attached(self, attach: Attach) -> None:
        """Note how the service delivers, and request events."""
        self._is_attached = self._may_token_be_over = True
        self.is_batched = BATCH_DELIVERY_CAPABILITY in attach.offered_capabilities
        if HISTORY_CAPABILITY in attach.offered_capabilities and HISTORIES in attach.properties:
            self._histories = histories_from_list(attach.properties[HISTORIES])
        self._window = self._new_window()
        self._renew_credit()
        self._link_changed.set()

    def on_detached(self, error: TidegateError) -> None:
        """Attach again, or end with the error."""
        self._link = None
        self._is_attached = False
        self._break = error
        if isinstance(error, ReceiverStolenError) or self._connector.is_closed:
            self._fail(error)
        self._link_changed.set()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Put events into the buffer as long as they are contiguous."""
        if self._jump is not None or self._failure is not None:
            return
        link = self._link
        if link is not None and not deliveries[0].is_settled:
            link.settle(deliveries[0].delivery_id, deliveries[-1].delivery_id)
        payloads = [delivery.payload for delivery in deliveries]
        event_count = 0
        try:
            if self.is_batched:
                for payload in payloads:
                    chunk = events_of_batch(payload)
                    event_count += len(chunk)
                    self._add(chunk)
            else:
                event_count = len(payloads)
                self._add(events_of_deliveries(payloads))
        except ProtocolError as error:
            self._fail(error)
            self._detach()
            return
        self._window.observe(len(payloads), event_count, sum(map(len, payloads)))
        self._has_progressed = True
        self._renew_credit()
        self.changed.set()

    def _add(self, chunk: EncodedEvents) -> None:
        if self._jump is not None:
            return
        if self._next is not None:
            seen = bisect_left(chunk.sequence_numbers, self._next)
            chunk = chunk[seen:] if seen else chunk
            self._unwanted = max(0, self._unwanted - seen)
        numbers = chunk.sequence_numbers
        if not numbers:
            return
        if self._next is not None and numbers[0] > self._next:
            self._jump = numbers[0]
            self._link_changed.set()
            return
        # Deliveries of single events arrive in groups; the gap may be inside a group.
        count = _contiguous_count(numbers)
        if count < len(numbers):
            self._add(chunk[:count])
            self._add(chunk[count:])
            return
        self._buffer.add(chunk)
        self._next = numbers[-1] + 1
        self._unwanted = 0  # with holes in the log fewer arrived

    def _renew_credit(self) -> None:
        link = self._link
        if link is None or not self._is_attached or self._jump is not None:
            return
        credit = self._window.decide_credit(
            outstanding=link.outstanding_credit,
            buffered_events=self._buffer.event_count,
            buffered_bytes=self._buffer.size_bytes,
            events_left=self._events_left(),
        )
        if credit:
            assert self._connection is not None
            link.grant_credit(credit)
            self._connection.flush()

    def _events_left(self) -> int | None:
        """How many wanted events have not arrived yet; None if the range has no known end."""
        if self._until is None or self._next is None:
            return None
        left = self._until - self._next
        return left + self._unwanted if left > 0 else 0

    def _new_window(self) -> PrefetchWindow:
        if self.is_batched:
            return PrefetchWindow(
                bytes_max=self._prefetch_bytes, events_max=None, delivery_bytes=EVENT_BYTES_MAX
            )
        return PrefetchWindow(
            bytes_max=self._prefetch_bytes,
            events_max=self._prefetch_events,
            delivery_bytes=self._prefetch_bytes // _FIRST_CREDIT,
        )

    async def _wait_events(self, max_wait_s: float | None) -> None:
        """Return when there are events, the receiver has ended, or after ``max_wait_s``."""
        try:
            async with asyncio.timeout(max_wait_s):
                while not self._buffer.event_count and self._failure is None:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            pass


def _contiguous_count(numbers: Sequence[int]) -> int:
    """How many of the ascending numbers (not empty), from the first, are contiguous."""
    first = numbers[0]
    if numbers[-1] - first == len(numbers) - 1:
        return len(numbers)
    return next(index for index, number in enumerate(numbers) if number != first + index)
