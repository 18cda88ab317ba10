"""One partition of an event hub: its log, its receivers and its producers.

Everything is called on the event loop; methods that end in ``_nowait`` never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime

from tidegate.broker.producers import OnProducerStolen, ProducerHandle, ProducerRegistry
from tidegate.broker.receivers import OnStolen, ReceiverHandle, ReceiverRegistry
from tidegate.broker.throttling import Throughput
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    PositionOutOfRangeError,
    ServerBusyError,
    TidegateError,
)
from tidegate.model.history import find_divergence
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.position import EventPosition, PositionKind
from tidegate.model.times import milliseconds_of, time_of
from tidegate.storage.engine import Bounds, LogReader, PartitionLog, closed_error, copy_error
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch

_START_OFFSET = "-1"
_END_OFFSET = "@latest"
_ENVELOPE_BYTES_PER_EVENT = 8
"""The stored form (an AMQP data section) adds 5 to 8 bytes to an event."""


class Partition:
    """A partition as the protocols use it. Get one from ``EventHub.partition``."""

    def __init__(
        self,
        event_hub: str,
        partition_id: str,
        log: PartitionLog,
        clock: Clock,
        find_consumer_group: Callable[[str], str],
        *,
        throughput: Throughput,
        created_at_ms: int,
        find_event_bytes_max: Callable[[], int],
    ) -> None:
        """created_at_ms: of its hub. No event has an earlier time, whatever the clock says since: by that,
        databases recognize events of an earlier hub of its name.
        """
        self.event_hub = event_hub
        self.partition_id = partition_id
        self._log = log
        self._clock = clock
        self._find_consumer_group = find_consumer_group
        self._registries: dict[tuple[str, bool], ReceiverRegistry] = {}
        """By consumer group and whether its receivers peek."""
        self._producers = ProducerRegistry(log)
        self._delivered_events = 0
        self._delivered_bytes = 0
        self._throughput = throughput
        self._unit = throughput.partition_unit()
        self._created_at_ms = created_at_ms
        self._find_event_bytes_max = find_event_bytes_max
        self.incoming_requests = 0
        """Batches received since the start, including refused ones."""
        self.throttled_requests = 0
        """Those refused because the throughput units were used up."""

    async def append(
        self, payload: bytes | memoryview, lengths: Sequence[int], *, producer: ProducerBatch | None = None
    ) -> AppendResult:
        """Append events in order and return once they are durable.

        payload: the encoded events end to end; lengths: the bytes of each. Must not change until this
        returns. producer: from an idempotent producer; a repeat of a stored batch returns the stored range
        (``is_duplicate``) and stores nothing.
        Raises EventTooLargeError, InvalidArgumentError, LogFullError or ServerBusyError (transient),
        OutOfOrderSequenceError, ProducerEpochStolenError, LogFailedError, ClosedError.
        Cancellation: the log has either the whole batch or nothing of it.
        """
        return await self.append_nowait(payload, lengths, producer=producer)

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        producer: ProducerBatch | None = None,
        added_bytes: int = 0,
    ) -> asyncio.Future[AppendResult]:
        """As ``append``, without a task: queue the batch and return the future of its result.

        Batches are stored in the order of the calls. EventTooLargeError, InvalidArgumentError,
        ServerBusyError (also for throughput units) and ClosedError are raised here, the others by the future.
        added_bytes: bytes that the service added to the events, which do not count against the maximum size.
        """
        self.incoming_requests += 1
        bytes_max = self._find_event_bytes_max()
        if len(payload) - added_bytes - _ENVELOPE_BYTES_PER_EVENT * len(lengths) > bytes_max:
            raise EventTooLargeError(
                f"The received message (size {len(payload)} bytes) exceeds the limit "
                f"({bytes_max} bytes) currently allowed on the link.",
                next_step="Send fewer events per batch, or smaller ones.",
            )
        try:
            self._throughput.admit_ingress(self._unit, len(lengths), len(payload))
        except ServerBusyError:
            self.throttled_requests += 1
            raise
        now_ms = max(milliseconds_of(self._clock.now_utc()), self._created_at_ms)
        return self._log.append_nowait(payload, lengths, enqueued_time_ms=now_ms, producer=producer)

    def egress_delay_s(self, events: int, size: int) -> float:
        """As ``Throughput.egress_delay_s``, for a receiver of this partition."""
        return self._throughput.egress_delay_s(self._unit, events, size)

    def open_reader(self, start_sequence_number: int, wake: Callable[[], None]) -> LogReader:
        """Read stored batches from an event on; see ``LogReader``, and ``PartitionLog.open_reader``."""
        return self._log.open_reader(start_sequence_number, wake)

    async def read(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        """About ``bytes_max`` bytes of stored batches from ``start_sequence_number`` on.

        At least one batch if there is one; empty at the end of the log. The first batch may begin before
        ``start_sequence_number``. If retention removed the start, the first batch held follows, as its
        sequence numbers show.
        Raises LogCorruptError if the stored bytes fail their checksum, ClosedError.
        """
        return await self._log.read(start_sequence_number, bytes_max=bytes_max)

    async def wait_appended(self, sequence_number: int) -> None:
        """Return once the event ``sequence_number`` can be read.

        Raises ClosedError when the log closes or the hub is deleted. Cancellation: no effect.
        """
        woken = asyncio.Event()
        reader = self.open_reader(sequence_number, woken.set)
        try:
            while not reader.take(1):
                if self.is_closed:
                    raise closed_error()
                await woken.wait()
                woken.clear()
        finally:
            reader.close()

    @property
    def is_failed(self) -> bool:
        """Whether its log refuses events until the service is restarted."""
        return self._log.failure is not None

    @property
    def open_error(self) -> TidegateError | None:
        """Why its log could not be opened: then everything here raises it, except counts, ``receivers`` and
        retention. None: it was opened."""
        return self._log.failure if self._log.known_bounds is None else None

    @property
    def is_closed(self) -> bool:
        """Whether the hub was deleted or the service is stopping."""
        return self._log.is_closed

    @property
    def begin_sequence_number(self) -> int:
        """The first sequence number held, as last seen; the next one if the log is empty."""
        return self._known_bounds.begin_sequence_number

    @property
    def next_sequence_number(self) -> int:
        """One past the last readable event, as last seen."""
        return self._known_bounds.next_sequence_number

    @property
    def known_bounds(self) -> Bounds | None:
        """The sequence numbers held, as last seen; None if it could not be opened."""
        return self._log.known_bounds

    def known_ends(self) -> PartitionEnds:
        """The beginning and end of the log, as last seen."""
        return self._ends(self._known_bounds)

    async def ends(self) -> PartitionEnds:
        """The beginning and end of the log now."""
        return self._ends(await self._log.bounds())

    @property
    def _known_bounds(self) -> Bounds:
        bounds = self._log.known_bounds
        if bounds is None:
            assert self._log.failure is not None
            raise copy_error(self._log.failure)
        return bounds

    def _ends(self, bounds: Bounds) -> PartitionEnds:
        return PartitionEnds(
            event_hub=self.event_hub,
            partition_id=self.partition_id,
            begin_sequence_number=bounds.begin_sequence_number,
            next_sequence_number=bounds.next_sequence_number,
            last_enqueued_offset=str(bounds.next_sequence_number - 1),
            last_enqueued_time_ms=bounds.last_enqueued_time_ms,
            histories=bounds.histories,
        )

    async def resolve(self, position: EventPosition, *, is_lost_refused: bool = False) -> int:
        """The sequence number of the first event for a reader at ``position``.

        At the end of the log, this is ``next_sequence_number``. A sequence number or offset that retention
        removed resolves to the first event held, or (is_lost_refused) is an error that names it.
        Raises PositionOutOfRangeError for that and for a position beyond the end, LogDivergedError for one
        whose history is another, InvalidArgumentError for an invalid offset.
        """
        bounds = await self._log.bounds()
        begin, until = bounds.begin_sequence_number, bounds.next_sequence_number
        value = position.value
        match position.kind:
            case PositionKind.EARLIEST:
                return begin
            case PositionKind.LATEST:
                return until
            case PositionKind.ENQUEUED_TIME:
                assert isinstance(value, datetime)
                # The log has whole milliseconds: after a fraction, the next one is the first.
                time_ms = milliseconds_of(value)
                is_included = position.is_inclusive and time_of(time_ms) == value
                return await self._log.sequence_number_at_time(time_ms if is_included else time_ms + 1)
            case PositionKind.SEQUENCE_NUMBER:
                assert isinstance(value, int)
                sequence_number, noun = value, "sequence number"
            case PositionKind.OFFSET:
                assert isinstance(value, str)
                if value == _END_OFFSET:
                    return until
                if value == _START_OFFSET:
                    return begin
                sequence_number, noun = _parse_offset(value), "offset"
        start = sequence_number if position.is_inclusive else sequence_number + 1
        where = f"Partition {self.partition_id} of {self.event_hub!r}"
        diverged = find_divergence(start, position.history_id, bounds.histories, where=where)
        if diverged is not None:
            raise diverged
        if start > until:
            raise PositionOutOfRangeError(
                f"The supplied {noun} '{sequence_number}' is invalid. "
                f"The last {noun} in the system is '{until - 1}'"
            )
        if is_lost_refused:
            self.check_held(start)
        return max(start, begin)

    def check_held(self, sequence_number: int) -> None:
        """Raise PositionOutOfRangeError, naming the first event held, if retention removed the event."""
        begin = self.begin_sequence_number
        if sequence_number < begin:
            raise PositionOutOfRangeError(
                f"Partition {self.partition_id} no longer holds sequence number {sequence_number}: the first "
                f"available is {begin}.",
                next_step="Retention removed it before it was read. Start from the first available, "
                "and increase retention or read faster.",
            )

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None, seal_before_ms: int = 0) -> int:
        """Remove the oldest events; see ``PartitionLog.apply_retention``."""
        return await self._log.apply_retention(
            before_ms=before_ms, bytes_max=bytes_max, seal_before_ms=seal_before_ms
        )

    def open_receiver(
        self,
        consumer_group: str,
        *,
        name: str | None,
        owner_level: int | None,
        on_stolen: OnStolen,
        is_peeking: bool = False,
    ) -> ReceiverHandle:
        """Admit a receiver; close the handle when its link ends.

        owner_level: the epoch; None shares the partition. on_stolen: called at most once, from within the
        call that steals; must not raise. is_peeking: it has no owner level, and those of others do not
        concern it; it counts only among others that peek.
        Raises NotFoundError (no such consumer group), ReceiverStolenError (refused by the epoch rules),
        QuotaExceededError (a 6th receiver without owner level).
        """
        group = self._find_consumer_group(consumer_group)
        of_group = group.lower(), is_peeking  # it may be made again in other letters
        registry = self._registries.get(of_group)
        if registry is None:
            # Those of deleted groups must not add up.
            self._registries = {name: each for name, each in self._registries.items() if each.receivers}
            registry = self._registries[of_group] = ReceiverRegistry(group)
        return registry.open(name=name, owner_level=owner_level, on_stolen=on_stolen)

    async def open_producer(
        self,
        *,
        producer_id: int | None,
        epoch: int | None,
        last_sequence_number: int | None,
        on_stolen: OnProducerStolen,
        party: Hashable = None,
    ) -> ProducerHandle:
        """Admit an idempotent producer; close the handle when its link ends.

        For what is None see ``broker.producers``. on_stolen: as in ``open_receiver``. party: on whose
        behalf; parties take turns at a log that is slow.
        Raises InvalidArgumentError (a number out of range), ProducerEpochStolenError, ClosedError.
        Cancellation: the producer is not attached.
        """
        return await self._producers.open(
            producer_id=producer_id,
            epoch=epoch,
            last_sequence_number=last_sequence_number,
            on_stolen=on_stolen,
            party=party,
        )

    def receivers(self) -> list[ReceiverHandle]:
        """The open receivers of all consumer groups."""
        return [handle for registry in self._registries.values() for handle in registry.receivers]

    def count_delivered(self, events: int, payload_bytes: int) -> None:
        """Count events that were sent to receivers; call it once per batch."""
        self._delivered_events += events
        self._delivered_bytes += payload_bytes

    @property
    def delivered(self) -> tuple[int, int]:
        """Events and bytes sent to receivers since the start."""
        return self._delivered_events, self._delivered_bytes

    @property
    def stored_bytes(self) -> int:
        """The size of its log."""
        return self._log.stored_bytes

    @property
    def appended(self) -> tuple[int, int]:
        """Events and bytes stored since the start."""
        return self._log.appended

    def __repr__(self) -> str:
        return f"<Partition {self.event_hub}/{self.partition_id}>"


def _parse_offset(offset: str) -> int:
    if not offset.isascii() or not offset.isdigit() or len(offset) > 19:
        raise InvalidArgumentError(
            f"The supplied offset '{offset[:40]}' is invalid: this service did not issue it.",
            next_step="Offsets are opaque. Use one that was received, '-1' or '@latest'.",
        )
    return int(offset)
