"""Sends a producer's batches for one partition, in order, and keeps their link.

Theory of operation
-------------------
Batches wait in ``_queue``, are sent in order, and stay in ``_in_flight`` until the service settles them. If
the service offers ``tidegate:idempotent-batch``, each batch has the number of its first event; a batch whose
acknowledgement was lost is sent again with the same number and stored once. Several may then be in flight: if
one is refused, the later ones are refused as well (their numbers leave a gap), and all are sent again in
order. Otherwise (Azure) one batch is in flight at a time, because a second one that overtakes a refused first
would break the order; a batch whose acknowledgement was lost may then be stored twice.

    outcome                          the batch          later ones in flight
    accepted                         done               unaffected
    refused, transient reason        sent again         sent again, in order
    connection lost, or no answer    sent again         sent again, in order
    refused permanently, or          fails              fail if the service may have stored them,
    retries exhausted                                   else continue under a new producer id

The producer id changes after a final failure, so that a delayed batch of the old id inside the service cannot
fill the gap that the failed batch left.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from tidegate.amqp.link import SenderLink
from tidegate.amqp.performatives import Accepted, Attach, DeliveryState, Rejected
from tidegate.client.connection import LinkHandler, LiveConnection, timed_out
from tidegate.client.connector import AuthorizedConnection, Connector
from tidegate.client.entities import FailedEvents
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    OutOfOrderSequenceError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, batch_envelope
from tidegate.wire.conditions import error_from_amqp
from tidegate.wire.names import IDEMPOTENT_BATCH_CAPABILITY

IDEMPOTENT_IN_FLIGHT_MAX: Final = 4
"""Batches in flight per partition if the service recognises repeats. Our choice: one being stored, one being
transmitted, and as many again so that neither waits for the other."""
_SEQUENCE_NUMBERS: Final = 1 << 31
"""Number of events that one producer id can number (an AMQP int)."""


class OutgoingBatch:
    """Events on their way to one partition."""

    __slots__ = ("acknowledged", "event_count", "is_unknown", "parts", "sequence", "size_bytes")

    def __init__(self, parts: list[bytes], size_bytes: int, event_count: int | None = None) -> None:
        """parts, size_bytes: as in ``BatchAccumulator``. event_count: None if each event has two parts."""
        self.parts = parts
        self.size_bytes = size_bytes
        self.event_count = len(parts) // 2 if event_count is None else event_count
        self.acknowledged: asyncio.Future[None] | None = None
        """Done when the batch is stored or has failed; None for buffered events, which use ``on_failed``."""
        self.sequence: int | None = None
        """The number of its first event under the current producer id; None before it is sent."""
        self.is_unknown = False
        """True once a try ended without a response: the batch may be stored."""


class PartitionSender(LinkHandler):
    """Sends batches to one partition in the order of ``submit``; each is stored or fails."""

    def __init__(
        self,
        connector: Connector,
        *,
        address: str,
        audience: str,
        partition_id: str,
        is_idempotent: bool,
        on_done: Callable[[OutgoingBatch], None] = lambda batch: None,
        on_failed: Callable[[FailedEvents], None] = lambda failed: None,
    ) -> None:
        """on_done: called once per batch, stored or failed. on_failed: called before, for buffered events."""
        self.partition_id = partition_id
        self._connector = connector
        self._address = address
        self._audience = audience
        self._is_idempotence_wanted = is_idempotent
        self._on_done = on_done
        self._on_failed = on_failed
        self._queue: deque[OutgoingBatch] = deque()
        self._in_flight: dict[int, OutgoingBatch] = {}
        """By delivery id, in sending order."""
        self._connection: LiveConnection | None = None
        self._link: SenderLink | None = None
        self._is_attached = False
        self._failure: TidegateError | None = None
        """The error that ended the current try, if any."""
        self._refused: OutgoingBatch | None = None
        """The batch whose refusal ended the current try, if one did."""
        self._may_token_be_over = False
        """Whether the token was accepted before: after a refusal now, a new one may help."""
        self._is_token_renewed = False
        """Whether a new token is being tried and nothing was accepted with it yet."""
        self._distrust_token: Callable[[], None] = lambda: None
        self.is_idempotent = False
        """Whether the service accepted numbered batches when the link was last attached."""
        self._producer_id = _new_producer_id()
        self._producer_epoch = 0
        self._next_sequence = 0
        self._changed = asyncio.Event()
        self._is_running = False
        self._message_bytes_max: int | None = None
        self.submitted_count = 0
        self.finished_count = 0
        """Total batches submitted, and those of them that were stored, failed or withdrawn."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when the last of them is finished."""

    async def learn_message_bytes_max(self) -> int | None:
        """Attach, with retries, and return the service's maximum message size; None for no limit.

        Call it before the first ``submit`` only. Raises the error that the service refuses the link with.
        """
        await self._connector.run(f"the attach of {self._address}", self._attach)
        return self._message_bytes_max

    def submit(self, batch: OutgoingBatch) -> None:
        """Queue a batch behind those submitted before."""
        self._queue.append(batch)
        self.submitted_count += 1
        self._wake()

    def withdraw(self, batch: OutgoingBatch) -> bool:
        """Remove a batch that was never sent; False if it may have been.

        A numbered batch is never withdrawn, because it would leave a gap.
        """
        if batch.is_unknown or batch.sequence is not None or batch not in self._queue:
            return False
        self._queue.remove(batch)
        self.finished_count += 1
        return True

    @property
    def is_idle(self) -> bool:
        """Whether every batch submitted so far is finished."""
        return self.finished_count == self.submitted_count

    def close(self, error: ClosedError) -> None:
        """Fail the remaining batches with ``error``; the link ends with its connection."""
        self._take_back(is_unknown=True)
        while self._queue:
            self._finish(self._queue.popleft(), error)

    def release(self) -> None:
        """Detach an idle sender's link; the next batch attaches it again."""
        self._detach()
        self._changed.set()

    # --- the loop ---------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._changed.set()
        if not self._is_running and not self._connector.is_closed:
            self._is_running = True
            self._connector.tasks.start(self._run(), name=f"sender of {self._address}")

    async def _run(self) -> None:
        """Send queued batches until none are left, so that an idle producer has no tasks."""
        retries_done = 0
        try:
            while self._queue:
                head = self._queue[0]
                self._failure = None
                self._refused = None
                try:
                    await self._send_all()
                except TidegateError as error:
                    self._take_back(is_unknown=self._refused is None)
                    if self._queue and self._queue[0] is not head:
                        retries_done = 0  # a batch was stored since the last error: this is a new problem
                    retries_done = await self._recover(error, retries_done)
        finally:
            self._is_running = False

    async def _send_all(self) -> None:
        """One try: attach if needed, send everything, return when all is acknowledged."""
        if self._link is None:
            await self._connector.run_once(f"the attach of {self._address}", self._attach)
        assert self._connection is not None
        timeout_s = self._connector.namespace.timeout_s
        while self._queue or self._in_flight:
            if self._failure is not None and not self._is_undecided_before_refused():
                raise self._failure
            self._changed.clear()
            is_writable = self._connection.is_writable
            if is_writable and self._failure is None and self._send_some():
                self._connection.flush()
                continue
            is_held_back = not is_writable and self._failure is None and self._may_send
            try:
                async with asyncio.timeout(timeout_s):
                    await (self._connection.wait_writable() if is_held_back else self._changed.wait())
            except TimeoutError as error:
                self._detach()
                self._refused = None
                raise timed_out(f"a batch for {self._address}", timeout_s) from error

    async def _attach(self, authorized: AuthorizedConnection) -> None:
        self._may_token_be_over = False
        is_token_new = await authorized.authorize(self._audience)
        self._may_token_be_over = not (is_token_new or self._is_token_renewed)
        self._distrust_token = partial(authorized.distrust_token, self._audience)
        self._connection = authorized.connection
        self._is_attached = False
        self._failure = None
        self._link = authorized.connection.attach_sender(
            self._address,
            self,
            properties=self._link_properties(),
            desired_capabilities=(IDEMPOTENT_BATCH_CAPABILITY,) if self._is_idempotence_wanted else (),
        )
        try:
            while not self._is_attached:
                if self._failure is not None:
                    raise self._failure
                self._changed.clear()
                await self._changed.wait()
        except BaseException:
            self._detach()
            raise

    def _link_properties(self) -> dict[str, object] | None:
        """The properties of the attach."""
        return None

    def _detach(self) -> None:
        if self._link is not None and self._connection is not None:
            self._connection.detach(self._link)
        self._link = None

    def _send_some(self) -> bool:
        """Send as many batches as credit, window and in-flight limit allow; False if none."""
        link = self._link
        has_sent = False
        while link is not None and self._may_send:
            batch = self._queue[0]
            if self.is_idempotent and not self._number(batch):
                break
            self._queue.popleft()
            # Built again for each send, because the envelope may have changed.
            payload = b"".join((self._envelope(batch), *batch.parts))
            delivery_id = link.send(payload, message_format=BATCH_MESSAGE_FORMAT)
            self._in_flight[delivery_id] = batch
            has_sent = True
        return has_sent

    @property
    def _may_send(self) -> bool:
        """Whether there is a batch, and credit, window and in-flight limit allow it."""
        if not self._queue or self._link is None or len(self._in_flight) >= self._in_flight_max():
            return False
        return self._link.sendable > 0

    def _in_flight_max(self) -> int:
        return IDEMPOTENT_IN_FLIGHT_MAX if self.is_idempotent else 1

    def _envelope(self, batch: OutgoingBatch) -> bytes:
        if not self.is_idempotent:
            return batch_envelope()
        return batch_envelope(
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            producer_sequence_number=batch.sequence,
        )

    def _number(self, batch: OutgoingBatch) -> bool:
        """Give a batch its sequence number; False if it must wait because the numbers are used up."""
        if batch.sequence is not None:
            return True
        if self._next_sequence + batch.event_count > _SEQUENCE_NUMBERS:
            if self._in_flight:
                return False
            self._renew_producer_id()
        batch.sequence = self._next_sequence
        self._next_sequence += batch.event_count
        return True

    # --- outcomes ---------------------------------------------------------------------------------------

    def on_attached(self, attach: Attach) -> None:
        """Note the capabilities that the service offers."""
        self._is_attached = True
        self._may_token_be_over = not self._is_token_renewed
        self.is_idempotent = IDEMPOTENT_BATCH_CAPABILITY in attach.offered_capabilities
        self._message_bytes_max = attach.max_message_size
        self._changed.set()

    def on_credit(self) -> None:
        """Continue sending."""
        self._changed.set()

    def on_detached(self, error: TidegateError) -> None:
        """End the current try, if any; an idle link is attached again for the next batch."""
        self._link = None
        if self._failure is None or self._is_undecided_before_refused():
            self._failure = error
            self._refused = None
        self._changed.set()

    def on_settled(self, first_delivery_id: int, last_delivery_id: int, state: DeliveryState | None) -> None:
        """Finish accepted batches; the refusal of the earliest batch ends the try."""
        for delivery_id in range(first_delivery_id, last_delivery_id + 1):
            batch = self._in_flight.get(delivery_id)
            if batch is None:
                continue  # of an earlier try
            if isinstance(state, Accepted):
                self._is_token_renewed, self._may_token_be_over = False, True
                del self._in_flight[delivery_id]
                self._finish(batch, None)
            elif self._failure is None or self._is_before_refused(batch):
                self._failure = _refusal(state)
                self._refused = batch
        self._changed.set()

    def _is_before_refused(self, batch: OutgoingBatch) -> bool:
        """Whether ``batch`` is in flight and was sent before the one whose refusal ends the try."""
        for each in self._in_flight.values():
            if each is self._refused:
                return False
            if each is batch:
                return self._refused is not None
        return False

    def _is_undecided_before_refused(self) -> bool:
        """Whether batches before the refused one are unsettled: they may be stored, so wait for them."""
        first = next(iter(self._in_flight.values()), None)
        return first is not None and self._is_before_refused(first)

    def _take_back(self, *, is_unknown: bool) -> None:
        """Return the batches in flight to the front of the queue, in order."""
        for batch in reversed(self._in_flight.values()):
            batch.is_unknown = batch.is_unknown or is_unknown
            self._queue.appendleft(batch)
        self._in_flight.clear()

    async def _recover(self, error: TidegateError, retries_done: int) -> int:
        """Wait before the next try, or fail batches that cannot be retried; returns the retries done."""
        head = self._queue[0] if self._queue else None
        if head is None:
            return 0
        is_refusal, retry = self._refused is head, self._connector.namespace.retry
        if isinstance(error, OutOfOrderSequenceError) and is_refusal and not head.is_unknown:
            # The service does not know this producer (the hub was created again): nothing is stored.
            if retry.retries_max > retries_done:
                self._renew_producer_id()
                return retries_done + 1
        elif self._is_token_perhaps_over(error):
            return self._try_new_token(retries_done)
        elif retry.decide_retry(error, retries_done=retries_done):
            await self._connector.wait_before_retry(retries_done + 1, error)
            return retries_done + 1
        # A refusal concerns one batch; any other error would repeat for every batch.
        self._finish(self._queue.popleft(), error)
        while self._queue and (self._queue[0].is_unknown or not is_refusal):
            self._finish(self._queue.popleft(), error)
        self._renew_producer_id()
        return 0

    def _is_token_perhaps_over(self, error: TidegateError) -> bool:
        """Whether the service ended an attached link, or refused a batch, as unauthorized.

        Either may come first when a token expires.
        """
        is_retried = self._connector.namespace.retry.retries_max > 0
        return isinstance(error, UnauthorizedError) and self._may_token_be_over and is_retried

    def _try_new_token(self, retries_done: int) -> int:
        """Make the next try use a new token; a suspended or busy machine may not have renewed it in time."""
        self._is_token_renewed, self._may_token_be_over = True, False
        self._distrust_token()
        self._detach()
        return retries_done

    def _renew_producer_id(self) -> None:
        self._producer_id = _new_producer_id()
        self._next_sequence = 0
        for batch in self._queue:
            batch.sequence = None

    def _finish(self, batch: OutgoingBatch, error: TidegateError | None) -> None:
        self.finished_count += 1
        waiter = batch.acknowledged
        if waiter is not None:
            if waiter.done():
                pass  # its caller was cancelled
            elif error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        elif error is not None:
            self._on_failed(FailedEvents(self.partition_id, error, tuple(batch.parts[1::2])))
        self._on_done(batch)
        if self.is_idle:
            self.on_idle()


def _refusal(state: DeliveryState | None) -> TidegateError:
    if isinstance(state, Rejected) and state.error is not None:
        return error_from_amqp(state.error)
    return BrokenError("The service rejected a batch without giving a reason.")


def _new_producer_id() -> int:
    """63 random bits, which fit an AMQP long and make collisions of producers negligible."""
    return secrets.randbits(63)
