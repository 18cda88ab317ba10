"""The two ends of a link: credit, and deliveries in both directions.

    application -> SenderLink.send / send_batch                  -> frames in the connection's output
    frames      -> ReceiverLink.receive_run / receive_transfer   -> DeliveriesReceived

Calls on a link that has ended do nothing, except that ``SenderLink.send`` raises.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.amqp.errors import INVALID_FIELD, MESSAGE_SIZE_EXCEEDED, NOT_ALLOWED
from tidegate.amqp.events import (
    CreditGranted,
    DeliveriesReceived,
    Delivery,
    LinkDrained,
)
from tidegate.amqp.link_base import SERIAL_MASK, Link, LinkRole, LinkSession, remaining
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    Accepted,
    Attach,
    DeliveryState,
    Disposition,
    Error,
    Flow,
    Rejected,
)
from tidegate.amqp.states import LINK, LinkInput, LinkState, SessionViolationError
from tidegate.amqp.transfers import (
    BATCH_HEAD_BYTES,
    DELIVERY_TAG_BYTES_MAX,
    TAG_OF_4,
    IncomingTransfer,
    Payload,
    batch_front,
    batch_head,
    batch_tail,
    split_delivery,
)
from tidegate.model.errors import LocalProtocolError

__all__ = ["Link", "LinkRole", "LinkSession", "ReceiverLink", "SenderLink"]


class SenderLink(Link):
    """The sending end."""

    role = LinkRole.SENDER

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.credit = 0
        """Deliveries that the receiver still accepts."""
        self.is_drain = False
        """The receiver asks to use up the credit: send what is available, then call ``drained``."""
        self.delivery_count = 0
        self._is_forgetful = False
        self._front = batch_front(session.local_channel, handle)

    @property
    def sendable(self) -> int:
        """Deliveries that may start now, limited by the credit and the session's window.

        If only the window limits it, ``CreditGranted`` follows when the window opens.
        """
        session = self.session
        if self.credit <= 0 or self.state is not LinkState.ATTACHED or self._is_refused_by_peer:
            return 0
        if not session.is_mapped:
            return 0
        if session.has_blocked_frames or session.remote_incoming_window <= 0:
            session.wait_for_window(self)
            return 0
        return min(self.credit, session.remote_incoming_window)

    @property
    def is_blocked(self) -> bool:
        """Frames of a sent delivery wait for the session's window."""
        return self.session.is_link_blocked(self)

    def forget_deliveries(self) -> None:
        """Stop tracking unsettled deliveries: outcomes are answered if required, but not reported."""
        self._is_forgetful = self.session.has_forgotten_deliveries = True

    def send(
        self,
        payload: Payload | Sequence[Payload],
        *,
        message_format: int = 0,
        settled: bool = False,
        delivery_tag: bytes | None = None,
    ) -> int:
        """Send one message, in as many frames as needed, and return its delivery id.

        Frames beyond the session's window are sent when it opens; ``is_blocked`` until then.
        payload: the encoded message, whole or in pieces; must not change until ``data_to_send`` returned it.
        delivery_tag: at most 32 bytes; None: made from the delivery id.
        Raises LocalProtocolError if the link is not attached or has no credit.
        """
        session = self.session
        if self.state is not LinkState.ATTACHED or not session.is_mapped or self._is_refused_by_peer:
            raise LocalProtocolError(f"Link {self.name!r} cannot send: it is {self.state.name}.")
        if self.credit <= 0:
            raise LocalProtocolError(f"Link {self.name!r} has no credit: wait for CreditGranted.")
        delivery_id = session.next_delivery_id
        if delivery_tag is None:
            delivery_tag = delivery_id.to_bytes(4, "big")
        elif len(delivery_tag) > DELIVERY_TAG_BYTES_MAX:
            raise LocalProtocolError(f"A delivery tag has at most {DELIVERY_TAG_BYTES_MAX} bytes.")
        buffers = payload if isinstance(payload, (list, tuple)) else (payload,)
        frames = split_delivery(
            buffers,
            channel=session.local_channel,
            handle=self.handle,
            delivery_id=delivery_id,
            delivery_tag=delivery_tag,
            message_format=message_format,
            settled=settled,
            frame_bytes_max=session.frame_bytes_max,
        )
        self._count_deliveries(1)
        if not settled and not self._is_forgetful:
            session.add_unsettled(delivery_id, self)
        session.send_frames(self, frames)
        return delivery_id

    def send_batch(
        self,
        payloads: Sequence[Payload | list[Payload]],
        *,
        message_format: int = 0,
        settled: bool = True,
    ) -> int:
        """Send messages, one delivery each, as far as ``sendable`` allows, and return the number sent.

        The fast path for many small messages: one small head per message, no other copy. A message is bytes
        or a list of buffers; one that does not fit into a frame is sent as by ``send``.
        settled: False only after ``forget_deliveries``.
        """
        assert settled or self._is_forgetful
        tail = batch_tail(message_format, settled=settled)
        count = min(len(payloads), self.sendable)
        position = 0
        while position < count:
            position += self._send_one_frame_each(payloads, position, count, tail)
            if position < count:  # one that needs several frames
                self.send(payloads[position], message_format=message_format, settled=settled)
                position += 1
                if self.sendable < count - position:
                    count = position + self.sendable
        return position

    def _send_one_frame_each(
        self,
        payloads: Sequence[Payload | list[Payload]],
        start: int,
        until: int,
        tail: bytes,
    ) -> int:
        """Queue deliveries up to the first that does not fit into a frame, and return their number."""
        session = self.session
        output = session.output
        append, extend = output.append, output.extend
        front, tag_code = self._front, TAG_OF_4
        frame_bytes_max = session.frame_bytes_max
        first = delivery_id = session.next_delivery_id
        for payload in payloads if until - start == len(payloads) else payloads[start:until]:
            if type(payload) is list:
                size = BATCH_HEAD_BYTES + sum(map(len, payload))
                if size > frame_bytes_max:
                    break
                append(batch_head(size, front, delivery_id, tag_code, delivery_id, tail))
                extend(payload)
            else:
                size = BATCH_HEAD_BYTES + len(payload)
                if size > frame_bytes_max:
                    break
                append(batch_head(size, front, delivery_id, tag_code, delivery_id, tail))
                append(payload)  # type: ignore[arg-type]  # not a list
            delivery_id = (delivery_id + 1) & SERIAL_MASK
        count = (delivery_id - first) & SERIAL_MASK
        self._count_deliveries(count)
        session.remote_incoming_window -= count
        session.next_outgoing_id = (session.next_outgoing_id + count) & SERIAL_MASK
        return count

    def drained(self) -> None:
        """Return the rest of the credit, as ``is_drain`` asks: nothing more to send for now."""
        if self._is_over() or self.state is not LinkState.ATTACHED or not self.is_drain:
            return
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
        self.credit = 0
        self._send_flow()
        self.is_drain = False

    def wake(self) -> None:
        """The session's window opened: notify the owner if it may send."""
        if self.sendable > 0 or (self.is_drain and self.state is LinkState.ATTACHED):
            self.session.events.append(CreditGranted(self))

    def _count_deliveries(self, count: int) -> None:
        self.credit -= count
        self.delivery_count = (self.delivery_count + count) & SERIAL_MASK
        self.session.next_delivery_id = (self.session.next_delivery_id + count) & SERIAL_MASK

    def _became_attached(self) -> None:
        self.wake()

    def _take_flow(self, flow: Flow) -> None:
        if flow.link_credit is None:
            return
        theirs = 0 if flow.delivery_count is None else flow.delivery_count
        self.credit = remaining(flow.link_credit, self.delivery_count, theirs)
        self.is_drain = flow.drain
        self.wake()

    def _send_flow(self) -> None:
        self.session.send_link_flow(
            self.handle, delivery_count=self.delivery_count, link_credit=self.credit, drain=self.is_drain
        )


class ReceiverLink(Link):
    """The receiving end."""

    role = LinkRole.RECEIVER

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.outstanding_credit = 0
        """Deliveries that the sender may still send. Stays at zero if a client sends without credit."""
        self.delivery_count = 0
        self.is_draining = False
        self.is_oversized_rejected = False
        """On an unsettled delivery over the size limit: False ends the link immediately (AMQP 1.0 part 2
        section 2.7.3); True reads it to its end and rejects it, and the link continues."""
        self.is_one_by_one = False
        """Whether each delivery is reported as a separate event, because each is much work for the owner."""
        self._bytes_max = session.message_bytes_max
        self._partial = bytearray()
        self._first: IncomingTransfer | None = None
        self._is_settled = False
        self._dropped_bytes = 0

    def grant_credit(self, count: int) -> None:
        """Allow ``count`` more deliveries. Before the link is attached, the credit is kept and sent later."""
        if count <= 0:
            raise LocalProtocolError(f"Credit grows by at least 1, not {count}.")
        if self._is_over():
            return
        self.outstanding_credit = min(self.outstanding_credit + count, SERIAL_MASK >> 1)
        self.is_draining = False
        if self.state is LinkState.ATTACHED:
            self._send_flow()

    def drain(self) -> None:
        """Ask the sender to use up its credit. ``LinkDrained`` follows its last deliveries."""
        if self._is_over() or self.state is not LinkState.ATTACHED:
            return
        self.is_draining = True
        self._send_flow()

    def settle(
        self, first_delivery_id: int, last_delivery_id: int | None = None, state: DeliveryState | None = None
    ) -> None:
        """Settle deliveries, both ids included; by default only the first, as accepted."""
        session = self.session
        if not session.is_mapped:
            return
        last = first_delivery_id if last_delivery_id is None else last_delivery_id
        if state is None or type(state) is Accepted:
            session.accept(first_delivery_id, last)
            return
        session.encode_accepted()  # outcomes keep their order
        session.send_performative(
            Disposition(role=ROLE_RECEIVER, first=first_delivery_id, last=last, settled=True, state=state)
        )

    # --- for the session ---

    def is_run_plain(self, deliveries: list[Delivery]) -> bool:
        """Whether ``receive_run`` may accept all of them without sending anything."""
        if self.state is not LinkState.ATTACHED or self._first is not None:
            return False
        return max([len(delivery.payload) for delivery in deliveries]) <= self._bytes_max

    def receive_run(self, deliveries: list[Delivery]) -> None:
        """Deliveries of one frame each; requires ``is_run_plain``."""
        self._hand_out(deliveries)

    def receive_transfer(self, data: bytes, until: int, transfer: IncomingTransfer) -> None:
        """One transfer frame, with its payload up to ``until`` in ``data``."""
        self.state = LINK.after(self.state, LinkInput.RECEIVE_TRANSFER)
        if self.state is not LinkState.ATTACHED:
            return  # we have detached: dropped
        first = self._first
        if first is None:
            if transfer.delivery_id is None:
                raise SessionViolationError(INVALID_FIELD, "The first transfer of a delivery has no id.")
            if transfer.more and len(transfer.delivery_tag or b"") > DELIVERY_TAG_BYTES_MAX:
                # It would be kept until the last transfer, and not be counted.
                raise SessionViolationError(
                    INVALID_FIELD, f"A delivery's tag has more than {DELIVERY_TAG_BYTES_MAX} bytes."
                )
            first = self._first = transfer
            self._is_settled = False
        elif transfer.delivery_id not in (None, first.delivery_id):
            raise SessionViolationError(NOT_ALLOWED, "A delivery starts inside another on the same link.")
        if transfer.is_aborted:
            self._drop_partial()
            self._count_deliveries(1)
            return
        self._is_settled = self._is_settled or transfer.settled is True
        size = self._dropped_bytes + len(self._partial) + until - transfer.payload_start
        if size > self._bytes_max:
            self._refuse_oversized(first, size, is_more=transfer.more)
        elif transfer.more:
            # Copied: even an empty view would keep the whole read alive.
            self.session.account.add_partial_bytes(until - transfer.payload_start)
            self._partial += memoryview(data)[transfer.payload_start : until]
        else:
            payload = data[transfer.payload_start : until]
            if self._partial:
                payload = b"".join((self._partial, payload))
            self._deliver(first, payload)

    def _deliver(self, first: IncomingTransfer, payload: bytes) -> None:
        delivery_id = first.delivery_id
        assert delivery_id is not None
        delivery = Delivery(
            delivery_id, first.delivery_tag or b"", first.message_format or 0, self._is_settled, payload
        )
        self._drop_partial()
        self._hand_out([delivery])

    def _hand_out(self, deliveries: list[Delivery]) -> None:
        """Report deliveries, in the last event if that is also of this link, unless ``is_one_by_one``."""
        self._count_deliveries(len(deliveries))
        events = self.session.events
        if self.is_one_by_one:
            events.extend(DeliveriesReceived(self, [delivery]) for delivery in deliveries)
            return
        # The link does not keep the event: it would hold the payloads until its next delivery.
        last = events[-1] if events else None
        if isinstance(last, DeliveriesReceived) and last.link is self:
            last.deliveries.extend(deliveries)
        else:
            events.append(DeliveriesReceived(self, deliveries))

    def _count_deliveries(self, count: int) -> None:
        self.delivery_count = (self.delivery_count + count) & SERIAL_MASK
        self.outstanding_credit = max(0, self.outstanding_credit - count)

    def _drop_partial(self) -> None:
        self._first = None
        if self._partial:
            self.session.account.add_partial_bytes(-len(self._partial))
            self._partial = bytearray()
        self._dropped_bytes = 0

    def _refuse_oversized(self, first: IncomingTransfer, size: int, *, is_more: bool) -> None:
        """Drop the received part of the delivery, and reject it at its end, or detach immediately."""
        self._drop_partial()
        is_rejected = self.is_oversized_rejected and not self._is_settled
        if is_rejected and is_more:
            self._first, self._dropped_bytes = first, size
            return
        text = (
            f"The received message (delivery-id:{first.delivery_id}, size:{size} bytes"
            f"{'' if is_rejected else ' or more'}) exceeds the limit ({self._bytes_max} bytes) currently "
            "allowed on the link."
        )
        error = Error(condition=MESSAGE_SIZE_EXCEEDED, description=text)
        if not is_rejected:
            self.detach(error)
            return
        assert first.delivery_id is not None
        self.settle(first.delivery_id, state=Rejected(error))
        # The owner is not notified, so the credit must be returned here.
        self._count_deliveries(1)
        self.grant_credit(1)

    def _send_attach(self, attach: Attach) -> None:
        super()._send_attach(attach)
        bytes_max = self.session.message_bytes_max
        self._bytes_max = min(attach.max_message_size or bytes_max, bytes_max)

    def end(self, error: Error | None, *, closed: bool) -> None:
        """See ``Link``; drops an incomplete delivery."""
        self._drop_partial()
        super().end(error, closed=closed)

    def _send_detach(self, error: Error | None, *, closed: bool) -> None:
        self._drop_partial()
        super()._send_detach(error, closed=closed)

    def _take_remote_attach(self, attach: Attach) -> None:
        self.delivery_count = attach.initial_delivery_count or 0

    def _became_attached(self) -> None:
        if self.outstanding_credit > 0:
            self._send_flow()

    def _take_flow(self, flow: Flow) -> None:
        """A sender's flow matters only as the answer to our drain: some clients put their own credit in."""
        if not self.is_draining or flow.delivery_count is None:
            return
        used = (flow.delivery_count - self.delivery_count) & SERIAL_MASK
        if used >= 1 << 31 or used < self.outstanding_credit:
            return  # sent before it read our drain
        self.delivery_count = flow.delivery_count
        self.outstanding_credit = 0
        self.is_draining = False
        self.session.events.append(LinkDrained(self))

    def _send_flow(self) -> None:
        self.session.send_link_flow(
            self.handle,
            delivery_count=self.delivery_count,
            link_credit=self.outstanding_credit,
            drain=self.is_draining,
        )
