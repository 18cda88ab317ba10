"""Receiver links of clients: record batches of the log become deliveries, as fast as credit and socket allow.

Nothing polls and nothing waits in a task: ``pump`` runs when there may be something to do, sends what it can,
and returns.

    why it runs                      why it stops
    link attached                    end of the log (the append listener runs it again)
    credit or window granted         no credit, or no window
    events appended                  the socket's buffer is full (``on_writable`` runs it again)
    socket writable again            its share of the loop is used up (it asks to be run again)
    its wait for throughput is over  the namespace's throughput units are used up (a timer runs it again)
    its wait for the log is over     the log cannot open a file now (a timer runs it again)

Deliveries are settled when sent, except to a client that asks for unsettled ones (snd-settle-mode). What it
decides about those settles them and changes nothing else, as events stay in the log: none is remembered, and
a client may as well decide nothing, as the official Python client does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from tidegate.amqp.link import SenderLink
from tidegate.broker import (
    Claim,
    EventHub,
    LogReader,
    OnStolen,
    Partition,
    ReceiverHandle,
    RecordBatch,
)
from tidegate.gateway.amqp.owner import LinkNode, NodeOwner
from tidegate.model.clock import Clock
from tidegate.model.errors import ClosedError, ServerBusyError, TidegateError
from tidegate.wire.addresses import NodeAddress
from tidegate.wire.alike import Steps
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT
from tidegate.wire.delivery import (
    batched_delivery_prefix,
    encode_runtime_metrics,
    event_deliveries,
)

_PUMP_BYTES = 256 * 1024
_PUMP_BYTES_SHORT = 64 * 1024
"""Payload that one run of ``pump`` sends before others get their turn, and that a client which stops reading
leaves unsent; the second if memory is short."""
_READ_BYTES = 256 * 1024
"""Payload of one read from the log (at least one batch), which a reader without credit keeps in memory,
unless memory is short."""
_ROUND_BYTES = 4 * 1024
_EVENT_BYTES = 200
"""Bytes that each batch, or part of one, and each separately delivered event count in addition to their
payload, because many small ones take time (measured: 20 and 1 microseconds)."""
_STEP_BYTES = 256
"""The same for each step of checking an unusual event."""
_EVENTS_PER_ROUND = 1000
_RETRY_AFTER_S = 1.0

_log = logging.getLogger(__name__)


class EgressLink(LinkNode):
    """One receiver link of a client, on one partition in a consumer group."""

    def __init__(
        self,
        owner: NodeOwner,
        link: SenderLink,
        event_hub: EventHub,
        partition: Partition,
        *,
        address: NodeAddress,
        clock: Clock,
        start_sequence_number: int,
        is_lost_refused: bool,
        is_batched: bool,
        is_settled: bool,
        are_metrics_wanted: bool,
    ) -> None:
        """address: for claims and log lines.

        is_lost_refused: see ``Broker.is_lost_position_refused``. is_batched: ``tidegate:batch-delivery`` was
        agreed on. is_settled: False: the client asked for unsettled deliveries (not of slices of batches).
        """
        self._owner = owner
        self.link = link
        self._event_hub = event_hub
        self._partition = partition
        self._path = address.format()
        self._entity = address.entity
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._resume_at = 0.0  # on the loop's clock: no event may be sent before
        self._resume: asyncio.TimerHandle | None = None
        self._next_sequence_number = start_sequence_number
        self._is_lost_refused = is_lost_refused
        self._is_batched = is_batched
        self._is_settled = is_settled
        if not is_settled:
            link.forget_deliveries()
        self._are_metrics_wanted = are_metrics_wanted
        self._receiver: ReceiverHandle | None = None
        self._reader: LogReader | None = None
        self._batches: deque[RecordBatch] = deque()
        self._index = 0  # of the next event in the first batch
        self._offset = 0  # where its bytes start
        self._is_closed = False

    def open_receiver(
        self, consumer_group: str, *, name: str | None, owner_level: int | None, is_peeking: bool
    ) -> None:
        """Open a receiver by the rules of owner levels; a receiver that loses the partition is detached.

        Raises NotFoundError, ReceiverStolenError, QuotaExceededError.
        """
        on_stolen: OnStolen = self._on_stolen
        self._receiver = self._partition.open_receiver(
            consumer_group,
            name=name,
            owner_level=owner_level,
            on_stolen=on_stolen,
            is_peeking=is_peeking,
        )

    def start(self) -> None:
        """Begin to deliver; the link was accepted."""
        self._reader = self._open_reader()
        self._use_throughput(0, 0)
        self.pump()

    def check_usable(self) -> None:
        """Raise NotFoundError or UnauthorizedError if the connection may no longer receive here."""
        if self._event_hub.is_deleted:
            raise self._event_hub.deleted_error(self._path)
        self._owner.claims.require(self._entity, Claim.LISTEN)

    def on_credit(self) -> None:
        """The client granted credit, or the session's window opened."""
        self._owner.schedule_pump(self)

    def close(self) -> None:
        """The link is gone: release the partition."""
        self._is_closed = True
        self.drop_read_ahead()
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def drop_read_ahead(self) -> None:
        """Drop events that were read and not sent; they are read again when they can be sent."""
        if self._batches:
            self._owner.add_held(-sum(map(_held_bytes, self._batches)))
            self._batches.clear()
            if self._reader is not None:
                self._reader.close()
                self._reader = self._open_reader()

    def pump(self) -> None:
        """Send what credit, window, socket, throughput units and a fair share of time allow."""
        if self._is_closed or self._resume is not None:
            return
        try:
            self._pump()
        except ServerBusyError as error:
            delay_s = error.retry_after_s or _RETRY_AFTER_S
            self._resume = self._loop.call_later(delay_s, self._on_resumed)
        except Exception as error:  # any failure ends only this link; ``fail`` logs it
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Detach the link with ``error``."""
        if self._is_closed:
            return
        answer = self._owner.amqp_error(error)
        _log.info("%s: receiver detached: %s", self._path, answer.description)
        self.close()
        self.link.detach(answer)

    def _pump(self) -> None:
        link, owner = self.link, self._owner
        is_memory_short = owner.is_memory_short
        bytes_left = _PUMP_BYTES_SHORT if is_memory_short else _PUMP_BYTES
        while (sendable := link.sendable) > 0:
            if not owner.is_writable:
                owner.schedule_pump(self)
                break
            if self._resume_at and self._resume_at > self._loop.time():
                self._resume = self._loop.call_at(self._resume_at, self._on_resumed)
                return
            if bytes_left <= 0:
                owner.schedule_pump(self)
                return
            batch = self._current_batch()
            if batch is None:
                break
            if self._is_batched:
                bytes_left -= self._send_slice(batch)
            else:
                bytes_left -= self._send_events(batch, sendable, bytes_left)
            bytes_left -= _ROUND_BYTES
        if is_memory_short:
            self.drop_read_ahead()
        if link.is_drain and (link.credit == 0 or self._current_batch() is None):
            link.drained()
        if self._partition.is_closed:
            if self._event_hub.is_deleted:
                raise self._event_hub.deleted_error(self._path)
            raise ClosedError("The service is stopping.", next_step="Connect again later.")

    def _current_batch(self) -> RecordBatch | None:
        """The batch that holds the next event; None at the end of the log."""
        batches = self._batches
        if not batches:
            if self._partition.is_closed or self._reader is None:
                return None
            if self._is_lost_refused:
                self._partition.check_held(self._next_sequence_number)
            batches.extend(self._reader.take(_READ_BYTES))
            if not batches:
                return None
            self._owner.add_held(sum(map(_held_bytes, batches)))
            self._enter(batches[0])
        return batches[0]

    def _enter(self, batch: RecordBatch) -> None:
        # The first batch may begin before the start, or after it if retention removed events.
        self._index = max(0, self._next_sequence_number - batch.base_sequence_number)
        self._offset = sum(batch.lengths[: self._index])
        self._next_sequence_number = batch.base_sequence_number + self._index

    def _open_reader(self) -> LogReader:
        return self._partition.open_reader(self._next_sequence_number, self._on_appended)

    def _advance(self, batch: RecordBatch, events: int, size: int) -> None:
        self._index += events
        self._offset += size
        self._next_sequence_number += events
        self._partition.count_delivered(events, size)
        self._use_throughput(events, size)
        if self._index == len(batch.lengths):
            self._owner.add_held(-_held_bytes(self._batches.popleft()))
            if self._batches:
                self._enter(self._batches[0])

    def _send_slice(self, batch: RecordBatch) -> int:
        """Send the rest of the batch as one delivery; returns its bytes."""
        events = len(batch.lengths) - self._index
        stored = batch.payload[self._offset :]
        prefix = batched_delivery_prefix(
            first_sequence_number=self._next_sequence_number,
            enqueued_time_ms=batch.enqueued_time_ms,
            event_count=events,
        )
        self.link.send([prefix, stored], message_format=BATCH_MESSAGE_FORMAT, settled=True)
        self._advance(batch, events, len(stored))
        return len(stored)

    def _send_events(self, batch: RecordBatch, sendable: int, bytes_left: int) -> int:
        """Send events of the batch, one delivery each, up to ``sendable`` and about ``bytes_left``; returns
        the bytes that they count.
        """
        index, offset = self._index, self._offset
        wanted = min(sendable, _EVENTS_PER_ROUND)
        lengths = batch.lengths[index : index + wanted]
        size = sum(lengths)
        if size > bytes_left:  # the events of a batch mostly have one size
            wanted = max(1, len(lengths) * bytes_left // size)
            lengths = lengths[:wanted]
            size = sum(lengths)
        steps = Steps()
        deliveries = event_deliveries(
            batch.payload[offset : offset + size],
            lengths,
            first_sequence_number=self._next_sequence_number,
            enqueued_time_ms=batch.enqueued_time_ms,
            metric_entries=self._metric_entries(),
            steps=steps,
        )
        taken = self.link.send_batch(deliveries, settled=self._is_settled)
        if taken < len(lengths):
            size = sum(lengths[:taken])
        self._advance(batch, taken, size)
        return size + taken * _EVENT_BYTES + steps.taken * _STEP_BYTES

    def _metric_entries(self) -> bytes:
        if not self._are_metrics_wanted:
            return b""
        now_ms = int(self._clock.now_utc().timestamp() * 1000)
        return encode_runtime_metrics(self._partition.known_ends(), retrieval_time_ms=now_ms)

    def _use_throughput(self, events: int, size: int) -> None:
        delay_s = self._partition.egress_delay_s(events, size)
        if delay_s > 0.0:
            self._resume_at = self._loop.time() + delay_s

    def _on_resumed(self) -> None:
        self._resume = None
        self._resume_at = 0.0  # a timer may fire a little early
        self._on_appended()

    def _on_appended(self) -> None:
        if not self._is_closed:
            self._owner.schedule_pump(self)

    def _on_stolen(self, error: TidegateError) -> None:
        self.fail(error)
        self._owner.schedule_flush()


def _held_bytes(batch: RecordBatch) -> int:
    """The memory of a batch: its payload is a view of the stored body, which also has the lengths."""
    return len(batch.payload) + 8 * len(batch.lengths)
