"""The consumer for threads without an event loop: scripts, Spark's Python workers, redrive.

Each call waits for a coroutine on the loop of ``background``. A forked child (Spark's worker daemon forks)
opens its own connections. Thread-safe: state changes only on the loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, Unpack

from tidegate.client.arrow import load_batches
from tidegate.client.blocking.background import run_blocking
from tidegate.client.closing import Closing
from tidegate.client.consumer import EventHubConsumer
from tidegate.client.event_hub_receiver import EventHubReceiver
from tidegate.client.namespace import ConnectionOptions, Namespace, event_hub_of
from tidegate.client.receiver import PREFETCH_BYTES, PartitionReceiver
from tidegate.columns.names import EVENT_COLUMNS, checked_columns
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import (
    ClosedError,
    InvalidArgumentError,
    OperationTimeoutError,
    QuotaExceededError,
    TidegateError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds, no_partition
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, EVENT_BYTES_MAX
from tidegate.model.position import EventPosition, PositionKind
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_codec import decode_event, event_body

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_EARLIEST: Final = EventPosition.earliest()
_FIRST_EVENT_WAIT_S: Final = 10.0

_IDLE_S: Final = 2.0
"""How long a receiver is kept for the next range. Short, because a consumer group may have only five
receivers per partition, and each Spark worker may keep one."""
_QUOTA_DELAY_S: Final = 0.25
"""Wait between attempts while five others read the partition; idle ones end after ``_IDLE_S``."""
_QUOTA_WAIT_S: Final = 600.0
"""Minimum wait for a free receiver, because the ranges being read may be long."""
_CROWDED_S: Final = 60.0
"""How long a process keeps no idle receivers after it was refused one."""
_RECEIVER_NAME_MAX: Final = 64
"""Source: ``ReceiverOptions.setIdentifier`` of azure-eventhubs (Java) 3.3."""
_TOGETHER_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of short ranges that are fetched together (our choice)."""
_TOGETHER_EVENTS: Final = 16_384
_TOGETHER_RANGES: Final = 64
"""Maximum of events and of ranges that are read together as record batches (our choice)."""
_CHUNK_BYTES: Final = 512 * 1024
_CHUNK_EVENTS: Final = 4096
"""A chunk that reaches either size is not joined with the next (our choice: large batches stay separate)."""
_SKIP_BYTES_MAX: Final = 256 * 1024
"""Up to this size, events that another process has read are fetched and dropped, which costs no more than
opening a receiver (our choice). Spark workers may alternate on a partition."""
_RANGE_GAP_MAX: Final = 256
"""Sequence numbers at most this far apart are read together, dropping the events between them."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Sequence numbers ``start <= number < until`` of one partition."""

    event_hub: str
    partition_id: str
    start: int
    until: int
    history_id: str | None = None
    """Of the last event; None: unknown."""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.until:
            raise InvalidArgumentError(f"Invalid range of sequence numbers: {self.start} to {self.until}.")


@dataclass(slots=True)
class _BytesLeft:
    """How many bytes may still be fetched."""

    count: int
    each: int
    """Prefetch size of a newly opened receiver."""


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """The result of one range that was fetched together with others."""

    chunks: tuple[EncodedEvents, ...]
    """From the start of the range, in order, without gaps; not always the whole range."""
    error: Exception | None
    """The error that ``read_encoded`` would raise after these chunks, if any."""


@dataclass(slots=True)
class _State:
    """The state of one process: consumers by hub, and idle receivers."""

    process_id: int
    consumers: dict[str, EventHubConsumer] = field(default_factory=dict)
    idle: dict[tuple[str, str], tuple[PartitionReceiver, int, asyncio.TimerHandle]] = field(
        default_factory=dict
    )
    """By hub and partition: the receiver, the sequence number it continues with, and its timer."""
    keeps_none_until: float = 0.0
    """Loop time until which no idle receiver is kept, because one was refused."""


class BlockingConsumer(Closing):
    """Reads a hub's events as they arrive, exact ranges, and single events. ``with`` or ``close`` it."""

    def __init__(
        self,
        connection_string: str | ConnectionString,
        event_hub: str | None = None,
        *,
        consumer_group: str = DEFAULT_CONSUMER_GROUP,
        owner_level: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        receiver_name: str | None = None,
        is_batch_delivery_wanted: bool = True,
        is_peeking: bool = False,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Connects when first used. The arguments are those of ``EventHubConsumer`` and ``open_receiver``.

        event_hub: None means the connection string's EntityPath. receiver_name: prefix of the receivers'
        names in the service's messages; each gets a random suffix.
        """
        self._connection_string = connection_string
        self._event_hub = event_hub
        self._consumer_group = consumer_group
        self._owner_level = owner_level
        self._prefetch_bytes = prefetch_bytes
        self._receiver_name = receiver_name
        self._is_batch_delivery_wanted = is_batch_delivery_wanted
        self._is_peeking = is_peeking
        self._namespace = Namespace.from_connection_string(connection_string, **options)
        self._state = _State(os.getpid())
        self._is_closed = False

    def get_event_hub_properties(self) -> EventHubProperties:
        """The hub's name, age and partitions. Raises as ``EventHubConsumer.get_event_hub_properties``."""
        return self._ask(EventHubConsumer.get_event_hub_properties)

    def get_partition_properties(self, partition_id: str) -> PartitionEnds:
        """A partition's current first and last events."""
        return self._ask(lambda consumer: consumer.get_partition_properties(partition_id))

    def get_all_partition_properties(
        self, event_hub: EventHubProperties | None = None
    ) -> list[PartitionEnds]:
        """The same for all partitions, as ``EventHubConsumer.get_all_partition_properties``."""
        return self._ask(lambda consumer: consumer.get_all_partition_properties(event_hub))

    def receive(
        self,
        position: EventPosition | Mapping[str, EventPosition] = _EARLIEST,
        *,
        max_wait_s: float | None = None,
    ) -> Iterator[ReceivedEvent]:
        """Every event of every partition, as they arrive; ends when none arrives within ``max_wait_s``.

        position: as in ``EventHubConsumer.receive``. max_wait_s: seconds; None waits forever. Raises as
        ``EventHubReceiver.receive``.
        """

        async def open_receiver() -> EventHubReceiver:
            return self._consumer(self._hub()).receive(position, prefetch_bytes=self._prefetch_bytes)

        receiver = run_blocking(open_receiver)
        try:
            while events := run_blocking(lambda: receiver.receive(max_wait_s=max_wait_s)):
                yield from events
        finally:
            run_blocking(receiver.close)

    def __iter__(self) -> Iterator[ReceivedEvent]:
        """``receive()``: waits for new events forever."""
        return self.receive()

    def read_encoded(
        self,
        partition_id: str,
        start_sequence_number: int,
        until_sequence_number: int,
        *,
        history_id: str | None = None,
        timeout_s: float = 60.0,
        is_continued: bool = True,
    ) -> Iterator[EncodedEvents]:
        """The events ``start <= sequence number < until``, in order, in chunks as they arrive.

        The receiver is kept for a short time, for a range that starts at or shortly after the end of this
        one. If five receivers already read the partition, this waits for one of them to end.
        is_continued: False if this process reads no such range; then no receiver is kept.
        history_id: of the log in which the last event is known to be; None: unknown. timeout_s: the longest
        wait for the next chunk.

        Raises LogDivergedError if the log does not have that history, or ended it before: then nothing of
        another history is yielded. Raises PositionOutOfRangeError, which names partition, wanted and first
        available number, if retention removed the start or if it is beyond the end of the log;
        OperationTimeoutError if events do not arrive in time; and as ``open_receiver``. Chunks yielded before
        an error are in order and without gaps.
        """
        wanted = _Range(self._hub(), partition_id, start_sequence_number, until_sequence_number, history_id)
        return self._read(wanted, timeout_s, is_continued=is_continued)

    def read_arrow(
        self,
        columns: Sequence[str] = EVENT_COLUMNS,
        *,
        partition_ids: Iterable[str] | None = None,
        position: EventPosition = _EARLIEST,
        timeout_s: float = 60.0,
    ) -> pa.RecordBatchReader:
        """The events from a position to each partition's present end, as record batches that are read when
        they are asked for.

        pandas, Polars and DuckDB take such a reader. columns: as ``PartitionReceiver.receive_arrow``.
        partition_ids: None reads all partitions. A partition's batches come in order, perhaps with others'
        between them. timeout_s: the longest wait for events.
        Raises as ``receive_arrow`` and ``get_all_partition_properties``; NotFoundError for an unknown
        partition. The reader raises as ``read_encoded``; pyarrow may wrap that in an error of its own.
        """
        names, batches = checked_columns(columns, "read_arrow"), load_batches()
        all_ends = {ends.partition_id: ends for ends in self.get_all_partition_properties()}
        wanted = list(all_ends if partition_ids is None else partition_ids)
        for partition_id in wanted:
            if partition_id not in all_ends:
                raise no_partition(self._hub(), partition_id, all_ends)
        ends = {key: all_ends[key].next_sequence_number for key in wanted}
        ranges = [
            (key, min(self.first_sequence_number(position, all_ends[key]), until), until)
            for key, until in ends.items()
        ]

        def read() -> Iterator[pa.RecordBatch]:
            for group in _grouped(ranges):
                rests = group
                if len(group) > 1:
                    parts, rests = self._read_short(group, timeout_s)
                    yield from batches.event_batches(parts, names)
                for rest in rests:
                    for events in self.read_encoded(*rest, timeout_s=timeout_s):
                        yield batches.event_batch(rest[0], events, names)

        reader: pa.RecordBatchReader = batches.batch_reader(names, read())
        return reader

    def _read_short(
        self, ranges: Sequence[tuple[str, int, int]], timeout_s: float
    ) -> tuple[list[tuple[str, EncodedEvents]], list[tuple[str, int, int]]]:
        """What ``read_together`` reads of the ranges, by partition, and the rest of them."""
        parts: list[tuple[str, EncodedEvents]] = []
        rests: list[tuple[str, int, int]] = []
        for (key, start, until), fetched in zip(
            ranges, self.read_together(ranges, timeout_s=timeout_s), strict=True
        ):
            parts += [(key, events) for events in fetched.chunks]
            read_until = fetched.chunks[-1].sequence_numbers[-1] + 1 if fetched.chunks else start
            if read_until < until:  # an error is raised again where the rest is read
                rests.append((key, read_until, until))
        return parts, rests

    def first_sequence_number(self, position: EventPosition, ends: PartitionEnds) -> int:
        """The number of the first event at a position of the partition that ``ends`` is of.

        Times and offsets are found by receiving that event. One past the last event if there is none yet.
        """
        until = ends.next_sequence_number
        if position.kind is PositionKind.EARLIEST:
            return ends.begin_sequence_number
        if position.kind is PositionKind.LATEST or ends.is_empty:
            return until
        if position.kind is PositionKind.SEQUENCE_NUMBER:
            assert isinstance(position.value, int)
            return position.value if position.is_inclusive else position.value + 1
        if position.kind is PositionKind.ENQUEUED_TIME:
            last_time = self.get_partition_properties(ends.partition_id).last_enqueued_time
            assert isinstance(position.value, datetime)
            if last_time is None or last_time < position.value:
                return until
        events = run_blocking(lambda: self._receive_first(position, ends.partition_id))
        return events.sequence_numbers[0] if len(events) else until

    async def _receive_first(self, position: EventPosition, partition_id: str) -> EncodedEvents:
        async with await self._consumer(self._hub()).open_receiver(
            partition_id,
            position,
            owner_level=self._owner_level,
            receiver_name=self._name_of_receiver(),
            prefetch_events=1,
            is_peeking=self._is_peeking,
        ) as receiver:
            return await receiver.receive_encoded(1, _FIRST_EVENT_WAIT_S)

    def read_together(
        self,
        ranges: Iterable[tuple[str, int, int] | tuple[str, int, int, str | None]],
        *,
        timeout_s: float = 60.0,
    ) -> list[FetchedRange]:
        """Short ranges of different partitions, fetched concurrently.

        ranges: partition ids with the two sequence numbers, and perhaps the history, of ``read_encoded``. At
        most about 16 MiB are fetched, without waiting for a receiver; read the rest of a range with
        ``read_encoded``.
        timeout_s: the longest wait for a chunk. Raises InvalidArgumentError for an invalid range; any other
        failure of a range is reported in its result.
        """
        wanted = [_Range(self._hub(), *each) for each in ranges]
        share = max(EVENT_BYTES_MAX, _TOGETHER_BYTES // max(1, len(wanted)))
        left = _BytesLeft(_TOGETHER_BYTES, min(self._prefetch_bytes, share))

        async def fetch() -> list[FetchedRange]:
            return await asyncio.gather(*(self._fetch(each, timeout_s, left) for each in wanted))

        return run_blocking(fetch)

    def read_events(
        self,
        event_hub: str,
        partition_id: str,
        sequence_numbers: Iterable[int],
        *,
        timeout_s: float = 60.0,
    ) -> Iterator[ReceivedEvent]:
        """The events with these sequence numbers, each once, ascending. Raises as ``read_encoded``.

        event_hub: any hub of the namespace.
        """
        for numbers in group_neighbours(sequence_numbers, gap_max=_RANGE_GAP_MAX):
            wanted = frozenset(numbers)
            whole = _Range(event_hub, partition_id, numbers[0], numbers[-1] + 1)
            for chunk in self._read(whole, timeout_s):
                for index, sequence_number in enumerate(chunk.sequence_numbers):
                    if sequence_number in wanted:
                        yield ReceivedEvent(
                            partition_id=partition_id,
                            sequence_number=sequence_number,
                            offset=chunk.offsets[index],
                            enqueued_time_ms=chunk.enqueued_times_ms[index],
                            encoded=chunk.messages[index],
                            decode=decode_event,
                            decode_body=event_body,
                        )

    def close(self) -> None:
        """Close all connections of this process. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        state = self._own_state()
        if state.consumers:

            async def close_all() -> None:
                for _, _, timer in state.idle.values():
                    timer.cancel()
                state.idle.clear()
                for consumer in state.consumers.values():
                    await consumer.close()

            run_blocking(close_all)

    # --- coroutines, run on the background loop -------------------------------------------------------------

    def _ask(self, question: Callable[[EventHubConsumer], Awaitable[T]]) -> T:
        async def ask() -> T:
            return await question(self._consumer(self._hub()))

        return run_blocking(ask)

    def _hub(self) -> str:
        return event_hub_of(self._connection_string, self._event_hub)

    def _own_state(self) -> _State:
        if self._state.process_id != os.getpid():
            self._state = _State(os.getpid())
        return self._state

    def _consumer(self, event_hub: str) -> EventHubConsumer:
        if self._is_closed:
            raise ClosedError("The consumer is closed.")
        consumers = self._own_state().consumers
        if event_hub not in consumers:
            consumers[event_hub] = EventHubConsumer(
                self._namespace,
                event_hub,
                consumer_group=self._consumer_group,
                is_batch_delivery_wanted=self._is_batch_delivery_wanted,
            )
        return consumers[event_hub]

    def _read(
        self, wanted: _Range, timeout_s: float, *, is_continued: bool = True
    ) -> Iterator[EncodedEvents]:
        if wanted.start == wanted.until:
            return
        receiver = run_blocking(
            lambda: self._check_out(wanted, self._prefetch_bytes, max(timeout_s, _QUOTA_WAIT_S))
        )
        next_number = wanted.start
        try:
            while next_number < wanted.until:
                chunks = run_blocking(partial(_next_chunks, receiver, wanted, next_number, timeout_s))
                next_number = chunks[-1].sequence_numbers[-1] + 1
                yield from _within(chunks, wanted)
        finally:
            is_reusable = is_continued and next_number == wanted.until
            run_blocking(lambda: self._check_in(wanted, receiver, wanted.until if is_reusable else None))

    async def _fetch(self, wanted: _Range, timeout_s: float, left: _BytesLeft) -> FetchedRange:
        """Fetch as much of a range as the remaining bytes allow. Does not raise."""
        fetched: list[EncodedEvents] = []
        if wanted.start == wanted.until or left.count <= 0:
            return FetchedRange((), None)
        try:
            receiver = await self._check_out(wanted, left.each, quota_wait_s=0.0)
            next_number, continues_at = wanted.start, None
            try:
                while next_number < wanted.until and left.count > 0:
                    chunks = await _next_chunks(receiver, wanted, next_number, timeout_s)
                    next_number = chunks[-1].sequence_numbers[-1] + 1
                    fetched += _within(chunks, wanted)
                    left.count -= sum(chunk.size_bytes for chunk in chunks)
                if next_number <= wanted.until:
                    continues_at = next_number
            finally:
                await self._check_in(wanted, receiver, continues_at)
        except QuotaExceededError:
            return FetchedRange(tuple(fetched), None)
        except (TidegateError, OSError) as error:
            return FetchedRange(tuple(fetched), error)
        return FetchedRange(tuple(_regrouped(fetched)), None)

    async def _check_out(self, wanted: _Range, prefetch_bytes: int, quota_wait_s: float) -> PartitionReceiver:
        """The idle receiver at or shortly before the start of the range, or a new one.

        quota_wait_s: how long to wait if five others read the partition.
        """
        key = (wanted.event_hub, wanted.partition_id)
        kept = self._own_state().idle.pop(key, None)
        if kept is not None:
            receiver, continues_at, timer = kept
            timer.cancel()
            if continues_at <= wanted.start and receiver.estimate_skip_bytes(wanted.start) <= _SKIP_BYTES_MAX:
                receiver.go_on(wanted.until, prefetch_bytes, from_sequence_number=wanted.start)
                return receiver
            await receiver.close()
        loop, state = asyncio.get_running_loop(), self._own_state()
        consumer = self._consumer(wanted.event_hub)
        deadline = loop.time() + quota_wait_s
        while True:
            try:
                return await consumer.open_receiver(
                    wanted.partition_id,
                    EventPosition.from_sequence_number(wanted.start),
                    owner_level=self._owner_level,
                    receiver_name=self._name_of_receiver(),
                    prefetch_bytes=prefetch_bytes,
                    must_start_at_position=True,
                    until_sequence_number=wanted.until,
                    is_peeking=self._is_peeking,
                )
            except QuotaExceededError:
                # With more workers than receivers, idle receivers would block others.
                state.keeps_none_until = loop.time() + _CROWDED_S
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_QUOTA_DELAY_S)

    def _name_of_receiver(self) -> str | None:
        if self._receiver_name is None:
            return None
        return f"{self._receiver_name[: _RECEIVER_NAME_MAX - 9]}-{uuid.uuid4().hex[:8]}"

    async def _check_in(self, read: _Range, receiver: PartitionReceiver, continues_at: int | None) -> None:
        """Keep a receiver for the range that starts at ``continues_at``, or close it."""
        state, loop, key = self._own_state(), asyncio.get_running_loop(), (read.event_hub, read.partition_id)
        is_crowded = loop.time() < state.keeps_none_until
        if continues_at is None or self._is_closed or key in state.idle or is_crowded:
            await receiver.close()
            return
        state.idle[key] = (receiver, continues_at, loop.call_later(_IDLE_S, self._expire, key))

    def _expire(self, key: tuple[str, str]) -> None:
        kept = self._own_state().idle.pop(key, None)
        if kept is not None:
            kept[0].close_nowait()


async def _next_chunks(
    receiver: PartitionReceiver, wanted: _Range, next_number: int, timeout_s: float
) -> list[EncodedEvents]:
    """One or more next chunks; the last may extend beyond the range. Raises OperationTimeoutError."""
    parts = await receiver.receive_parts(wanted.until - next_number, timeout_s)
    if not parts:
        raise OperationTimeoutError(
            f"Sequence number {next_number} of partition {wanted.partition_id} of "
            f"{wanted.event_hub!r} did not arrive within {timeout_s:g} s.",
            next_step="Check that it has been written: the partition's properties show where its log ends.",
        )
    # Each time: the receiver may have attached again, to a log that was restored meanwhile.
    receiver.check_history(min(parts[-1].sequence_numbers[-1] + 1, wanted.until), wanted.history_id)
    return list(_regrouped(parts))


def _within(chunks: Iterable[EncodedEvents], wanted: _Range) -> Iterator[EncodedEvents]:
    """The part within the range; after a hole in the log, events beyond it arrive as well."""
    for chunk in chunks:
        if chunk.sequence_numbers[-1] >= wanted.until:
            chunk = chunk[: bisect_left(chunk.sequence_numbers, wanted.until)]
        if len(chunk):
            yield chunk


def _regrouped(parts: Sequence[EncodedEvents]) -> Iterator[EncodedEvents]:
    """The parts in order, with small ones joined, because each chunk has a fixed cost."""
    group: list[EncodedEvents] = []
    size_bytes = count = 0
    for part in parts:
        group.append(part)
        size_bytes += part.size_bytes
        count += len(part)
        if size_bytes >= _CHUNK_BYTES or count >= _CHUNK_EVENTS:
            yield EncodedEvents.joined(group)
            group, size_bytes, count = [], 0, 0
    if group:
        yield EncodedEvents.joined(group)


def _grouped(ranges: Iterable[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int]]]:
    """The ranges in order: short ones together, because opening a receiver takes longer than reading them."""
    group: list[tuple[str, int, int]] = []
    count = 0
    for each in ranges:
        length = each[2] - each[1]
        if group and (count + length > _TOGETHER_EVENTS or len(group) == _TOGETHER_RANGES):
            yield group
            group, count = [], 0
        group.append(each)
        count += length
    if group:
        yield group


def group_neighbours(sequence_numbers: Iterable[int], *, gap_max: int) -> list[list[int]]:
    """The distinct numbers, ascending, split where two are more than ``gap_max`` apart."""
    groups: list[list[int]] = []
    for number in sorted(set(sequence_numbers)):
        if groups and number - groups[-1][-1] <= gap_max:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups
