"""Sender links of clients: deliveries become appends, and appends become acknowledgements.

Many appends of one link are in flight at once. Outcomes are sent in the order of the deliveries, each after
its batch is durable; runs of accepted deliveries share one disposition.

    delivery -> envelope split (no event is decoded) -> append_nowait -> … durable … -> disposition

A refused delivery (too large, log full, out of order) is *rejected* with its condition; the link stays
usable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tidegate.amqp.events import Delivery
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.performatives import Rejected
from tidegate.broker import AppendResult, Claim, EventHub, Partition, ProducerBatch, ProducerHandle
from tidegate.gateway.amqp.owner import LinkNode, NodeOwner
from tidegate.model.errors import (
    ClosedError,
    EventTooLargeError,
    InvalidArgumentError,
    NotFoundError,
    TidegateError,
)
from tidegate.wire.addresses import NodeAddress
from tidegate.wire.batch import BatchSections, split_lone, split_message, with_event_numbers
from tidegate.wire.publisher import (
    may_pretend,
    published_events,
    rewritten_batch,
    unpublished_events,
)

_CREDIT = 500
"""Maximum unsettled deliveries of a link. Our choice: memory is bounded in bytes (see
``NodeOwner.add_unacknowledged``), so this only has to cover a round trip of small batches."""

_ENTRY_BYTES = 512
"""Approximate memory of a pending delivery without its payload, so that many tiny ones count as well."""

_SECTIONS_AT_ONCE = 2_000
"""Events of the deliveries that arrive together that are found immediately: about 1 ms."""
_EVENTS_AT_ONCE = 20
_BYTES_AT_ONCE = 4 * 1024
"""Events, and their bytes, of these that are rewritten immediately: 2 ms, or 5 if all bytes are sections."""

_REWRITTEN_BYTES = 160
"""Approximate memory of a rewritten event beside its bytes (measured: 28 MB for 200,000 of none)."""

_Pending = tuple[int, int, bool, asyncio.Future[AppendResult] | TidegateError]
"""A delivery whose outcome has not been sent: its id, the bytes that it holds, whether it is settled (the
client expects no answer), and its outcome."""

_log = logging.getLogger(__name__)


class IngressLink(LinkNode):
    """One sender link of a client, to an event hub or to one of its partitions.

    The official Python client sends flows on such links; ``on_credit`` ignores them.
    """

    def __init__(
        self,
        owner: NodeOwner,
        link: ReceiverLink,
        event_hub: EventHub,
        partition: Partition | None,
        *,
        find_hub: Callable[[str], EventHub],
        publisher: str | None = None,
        is_idempotent: bool = False,
    ) -> None:
        """partition: None: the key of each batch, or the turn, chooses it.

        find_hub: returns the current event hub of a name; raises NotFoundError.
        publisher: the sender, whose name is the key of all batches; None: not a named publisher.
        is_idempotent: the client numbers its batches (``tidegate:idempotent-batch`` was agreed on).
        """
        assert partition is None or publisher is None
        self._owner = owner
        self._link = link
        self._find_hub = find_hub
        self._event_hub = event_hub
        self._partition = partition
        self._is_idempotent = is_idempotent
        self._producer: ProducerHandle | None = None
        partition_id = None if partition is None else partition.partition_id
        address = NodeAddress.for_sending(event_hub.name, partition_id=partition_id, publisher=publisher)
        self._path = address.format()
        self._entity = address.entity
        self._publisher = publisher
        self._pending: deque[_Pending] = deque()
        self._awaited: asyncio.Future[AppendResult] | None = None
        """The outcome that calls ``_on_appended``."""
        self._unwritten: deque[_Unwritten] = deque()
        """Batches whose events are not found or rewritten yet; work on the first is being done."""
        self._sections_left = 0
        self._is_closed = False

    async def open_producer(
        self, *, producer_id: int | None, epoch: int | None, last_sequence_number: int | None
    ) -> ProducerHandle:
        """Attach as an idempotent producer that names itself; on partitions only.

        Batches are numbered in their envelopes if ``tidegate:idempotent-batch`` was agreed on; events are
        numbered in the protocol of Event Hubs. Values of None are assigned. A newer instance of the producer
        detaches this link.
        Raises UnauthorizedError, InvalidArgumentError, ProducerEpochStolenError, ClosedError. Cancellation:
        not attached.
        """
        assert self._partition is not None
        self.check_usable()  # This is a task, which starts after the attach was judged; it detaches others.
        self._producer = await self._partition.open_producer(
            producer_id=producer_id,
            epoch=epoch,
            last_sequence_number=last_sequence_number,
            on_stolen=self._on_stolen,
            party=self._owner.address,
        )
        return self._producer

    def start(self) -> None:
        """Allow the client to send."""
        # As Event Hubs does: the JavaScript SDK's own tests keep sending on the link. If it ended, that SDK
        # would wait for its time-out and retry.
        self._link.is_oversized_rejected = True
        self._link.grant_credit(_CREDIT)

    def check_usable(self) -> None:
        """Raise UnauthorizedError if the connection, or the publisher, may no longer send here.

        If only the event hub was deleted, the next delivery is refused instead.
        """
        self._owner.claims.require(self._entity, Claim.SEND)
        if self._publisher is not None:
            self._event_hub.check_publisher(self._publisher)

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Queue appends for complete deliveries, in order."""
        if self._is_closed:
            return  # a newer instance of the producer already has the number of the last stored event
        if self._event_hub.is_deleted and not self._has_followed_name():
            self._refuse(deliveries)
            return
        self._sections_left = _SECTIONS_AT_ONCE
        refusal = self._refusal()
        size = 0
        for delivery in deliveries:
            outcome: asyncio.Future[AppendResult] | TidegateError
            try:
                outcome = refusal or self._append(delivery)
            except TidegateError as error:
                outcome = error
            held = len(delivery.payload) + _ENTRY_BYTES
            size += held
            self._pending.append((delivery.delivery_id, held, delivery.is_settled, outcome))
        self._owner.add_unacknowledged(size)
        self._settle()
        missing = _CREDIT - self._link.outstanding_credit
        if missing > _CREDIT // 2:
            self._link.grant_credit(missing)

    def close(self) -> None:
        """The link is gone: pending appends end without an answer."""
        self._is_closed = True
        if self._producer is not None:
            self._producer.close()

    def _has_followed_name(self) -> bool:
        """Switch to the event hub that was created again under the deleted one's name; False if there is
        none.

        Ending the link would not do: the official Python producers do not read while they have nothing to
        send, notice the end only after their next events, and report an unknown error.
        """
        if self._is_numbered or self._unwritten:
            return False  # numbers and unwritten batches are of the deleted one
        try:
            event_hub = self._find_hub(self._event_hub.name)
            partition = self._partition and event_hub.partition(self._partition.partition_id)
        except NotFoundError:
            return False
        self._event_hub, self._partition = event_hub, partition
        return True

    def _refuse(self, deliveries: Sequence[Delivery]) -> None:
        """The event hub was deleted: answer each delivery with that error."""
        answer = self._owner.amqp_error(self._event_hub.deleted_error(self._path))
        for delivery in deliveries:
            if not delivery.is_settled:
                self._link.settle(delivery.delivery_id, state=Rejected(error=answer))
        if self._is_numbered:
            self._link.detach(answer)
        else:
            self._link.grant_credit(len(deliveries))

    @property
    def _is_numbered(self) -> bool:
        return self._is_idempotent or self._producer is not None

    def _refusal(self) -> TidegateError | None:
        """Why deliveries are refused that arrive now; None: the client may send here."""
        try:
            self.check_usable()
        except TidegateError as error:
            return error
        return None

    def _append(self, delivery: Delivery) -> asyncio.Future[AppendResult]:
        size, bytes_max = len(delivery.payload), self._event_hub.event_bytes_max
        if size > bytes_max:
            raise EventTooLargeError(
                f"The received message (delivery-id:{delivery.delivery_id}, size:{size} bytes) exceeds the "
                f"limit ({bytes_max} bytes) currently allowed on the link.",
                next_step="Send fewer events per batch, or smaller ones.",
            )
        is_as_sent = self._publisher is None and not may_pretend(delivery.payload)
        if is_as_sent and not self._unwritten and self._sections_left > 0:
            lone = split_lone(delivery.payload, delivery.message_format)
            if lone is not None:
                self._sections_left -= 1
                return self._store(lone)
        steps = split_message(delivery.payload, delivery.message_format)
        if self._unwritten or self._sections_left <= 0 or (sections := next(steps)) is None:
            self._sections_left = 0
            return self._write_later(steps, is_as_sent)
        self._sections_left -= len(sections.lengths)
        if is_as_sent:
            return self._store(sections)
        share = max(len(sections.lengths) / _EVENTS_AT_ONCE, size / _BYTES_AT_ONCE)
        self._sections_left -= int(share * _SECTIONS_AT_ONCE)
        if share > 1:
            return self._write_later(iter((sections,)), is_as_sent)
        events: list[bytes] = []
        for event in self._rewritten(sections):
            if event is None:  # more work than one step
                return self._write_later(iter((sections,)), is_as_sent)
            events.append(event)
        return self._store_rewritten(sections, events)

    def _rewritten(self, sections: BatchSections) -> Iterator[bytes | None]:
        """The events with their publisher's name, or without the name that their sender claims."""
        if self._publisher is None:
            return unpublished_events(sections)
        return published_events(sections, self._publisher)

    def _store_rewritten(
        self, sections: BatchSections, events: Sequence[bytes]
    ) -> asyncio.Future[AppendResult]:
        batch = rewritten_batch(sections, events, self._publisher)
        return self._store(batch, sent_bytes=len(sections.payload))

    def _write_later(
        self, steps: Iterator[BatchSections | None], is_as_sent: bool
    ) -> asyncio.Future[AppendResult]:
        """Find, and rewrite, many events in slices; batches stay in their order."""
        stored: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        check = self._owner.claims.checked_later(self._entity, Claim.SEND)
        self._unwritten.append(_Unwritten(steps, is_as_sent, stored, check))
        if len(self._unwritten) == 1:
            self._owner.start_task(self._write_all(), "batches of many events")
        return stored

    async def _write_all(self) -> None:
        while self._unwritten:
            batch = self._unwritten[0]
            try:
                sections = await self._sections(batch.steps)
                events = None if batch.is_as_sent else await self._rewrite(sections)
                # Again, because other batches may come first: a lost right must not store anything.
                batch.check()
                if self._producer is not None and self._producer.stolen_error is not None:
                    raise self._producer.stolen_error
                if self._publisher is not None:
                    self._event_hub.check_publisher(self._publisher)
                stored = self._store(sections) if events is None else self._store_rewritten(sections, events)
                stored.add_done_callback(partial(_hand_on, batch.stored))
            except Exception as error:  # Any failure is reported to the client, and logged by ``amqp_error``.
                batch.stored.set_exception(error)
            await asyncio.sleep(0)  # many short ones are long work, too
            # Only now: a delivery that finds none here starts this task once more.
            self._unwritten.popleft()

    async def _rewrite(self, sections: BatchSections) -> list[bytes]:
        held_bytes = len(sections.payload) + _REWRITTEN_BYTES * len(sections.lengths)
        self._owner.add_held(held_bytes)
        try:
            return await self._owner.work_in_slices(self._rewritten(sections))
        finally:
            self._owner.add_held(-held_bytes)

    async def _sections(self, steps: Iterator[BatchSections | None]) -> BatchSections:
        return (await self._owner.work_in_slices(steps))[-1]

    def _store(
        self, sections: BatchSections, *, sent_bytes: int | None = None
    ) -> asyncio.Future[AppendResult]:
        """sent_bytes: the bytes that the client sent; None: all."""
        added_bytes = 0 if sent_bytes is None else max(0, len(sections.payload) - sent_bytes)
        partition = self._event_hub.partition_for(sections.partition_key, chosen=self._partition)
        producer = self._producer_batch(sections)
        appended = partition.append_nowait(
            sections.payload, sections.lengths, producer=producer, added_bytes=added_bytes
        )
        if sections.publisher is not None:
            self._event_hub.publishers.note_when_stored(
                appended,
                sections.publisher,
                partition.partition_id,
                event_bytes=len(sections.payload),
                is_own_address=self._publisher is not None,
            )
        return appended

    def _producer_batch(self, sections: BatchSections) -> ProducerBatch | None:
        producer = self._producer
        if producer is None:
            return _numbered(sections) if self._is_idempotent else None
        batch = _numbered(sections if self._is_idempotent else with_event_numbers(sections))
        if (batch.producer_id, batch.epoch) != (producer.producer_id, producer.epoch):
            raise InvalidArgumentError(
                f"The events are of producer {batch.producer_id} with epoch {batch.epoch}; the link is of "
                f"{producer.producer_id} with {producer.epoch}."
            )
        if self._is_idempotent:
            return replace(batch, is_repeatable=True)
        return producer.batch(batch.sequence)

    def _on_stolen(self, error: TidegateError) -> None:
        if self._is_closed or self._producer is None:
            return  # not attached yet: ``open_producer`` raises it
        answer = self._owner.amqp_error(error)
        _log.info("%s: producer detached: %s", self._path, answer.description)
        self.close()
        self._link.detach(answer)
        self._owner.schedule_flush()

    def _on_appended(self, _: asyncio.Future[AppendResult]) -> None:
        self._settle()
        self._owner.schedule_flush()

    def _settle(self) -> None:
        """Settle the deliveries at the head of the queue whose outcome is known; wait for the next one's."""
        pending = self._pending
        run: tuple[int, int] | None = None  # first and last accepted delivery that is not settled yet
        size = 0
        while pending:
            delivery_id, held, is_settled, outcome = pending[0]
            if isinstance(outcome, TidegateError):
                error: BaseException | None = outcome
            elif outcome.done():
                error = _error_of(outcome)
            else:
                # The disk answers many at once, so only the first is waited for.
                if self._awaited is not outcome:
                    self._awaited = outcome
                    outcome.add_done_callback(self._on_appended)
                break
            pending.popleft()
            size += held
            if isinstance(error, ClosedError) and self._event_hub.is_deleted:
                error = self._event_hub.deleted_error(self._path)
            if is_settled or self._is_closed:
                continue
            # Delivery ids count per session: those of another link may be between two of this link.
            if error is None and run is not None and run[1] + 1 == delivery_id:
                run = (run[0], delivery_id)
                continue
            if run is not None:
                self._link.settle(*run)
                run = None
            if error is None:
                run = (delivery_id, delivery_id)
            else:
                answer = self._owner.amqp_error(error)
                _log.info("%s: a batch was refused: %s", self._path, answer.description)
                self._link.settle(delivery_id, delivery_id, Rejected(error=answer))
        if run is not None:
            self._link.settle(*run)
        if size:
            self._owner.add_unacknowledged(-size)


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """A batch whose events are found, and rewritten, in slices."""

    steps: Iterator[BatchSections | None]
    """See ``split_message``."""
    is_as_sent: bool
    """Whether its events are stored as they were sent, not rewritten."""
    stored: asyncio.Future[AppendResult]
    check: Callable[[], None]
    """Raises UnauthorizedError if the connection's right to send it is gone."""


def _error_of(outcome: asyncio.Future[AppendResult]) -> BaseException | None:
    """Why an append failed that is done; None: it is durable."""
    return asyncio.CancelledError() if outcome.cancelled() else outcome.exception()


def _hand_on(waiting: asyncio.Future[AppendResult], done: asyncio.Future[AppendResult]) -> None:
    """Copy one future's outcome to another."""
    if done.cancelled():
        waiting.cancel()
    elif (error := done.exception()) is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(done.result())


def _numbered(sections: BatchSections) -> ProducerBatch:
    parts = (sections.producer_id, sections.producer_epoch, sections.producer_sequence_number)
    if parts[0] is None or parts[1] is None or parts[2] is None:
        raise InvalidArgumentError(
            "The batch lacks producer-id, producer-epoch or producer-sequence-number, on a link that was "
            "attached for numbered batches."
        )
    return ProducerBatch(parts[0], parts[1], parts[2])
