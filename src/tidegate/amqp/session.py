"""Sessions: the windows in both directions, links by name and handle, and dispositions.

The engine tops the incoming window up and never enforces it: the official Python client counts deliveries
instead of frames. The byte stream slows a fast sender down (the driver stops reading). The outgoing window is
respected frame by frame; blocked frames wait in order.

A peer's link steals the name of an older link of the same session and direction. The specification has one
name space for all sessions and connections of two containers (part 2 section 2.6.1). Our choice: names in
different sessions are independent, because links have no state to resume here, and clients use equal link
names in several connections of one container (Qpid Proton makes them from the container's id and the
address).

The cost of a frame does not depend on the number of links: a flow wakes only the links that wait for the
window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tidegate.amqp.dispositions import AcceptedDeliveries, UnsettledDeliveries
from tidegate.amqp.errors import (
    ERRANT_LINK,
    FRAME_SIZE_TOO_SMALL,
    HANDLE_IN_USE,
    INVALID_FIELD,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    UNATTACHED_HANDLE,
    FrameTooSmallError,
    FramingError,
)
from tidegate.amqp.events import Event, LinkAttaching, LinkStolen, SessionBegun, SessionEnded
from tidegate.amqp.fitting import REFUSAL_BYTES
from tidegate.amqp.limits import FreeNumbers, PeerAccount, compacted, strings_bytes
from tidegate.amqp.link import Link, LinkRole, ReceiverLink, SenderLink
from tidegate.amqp.link_base import SERIAL_MASK, remaining
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_SETTLED,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Performative,
    Received,
    Source,
    Target,
)
from tidegate.amqp.states import SESSION, SessionInput, SessionState, SessionViolationError
from tidegate.amqp.transfers import IncomingTransfer, Payload, Run, parse_transfer
from tidegate.amqp.types import Symbol
from tidegate.model.errors import LocalProtocolError

OUTGOING_WINDOW = 0x7FFFFFFF
"""The number of frames that we offer to send; only the peer's own window limits them (our choice)."""


class SessionConnection(Protocol):
    """What a session needs of its connection."""

    events: deque[Event]
    output: list[Payload]
    account: PeerAccount
    accepting: list[Session]
    """Sessions whose ``encode_accepted`` is called before the output is sent."""

    @property
    def can_send_frames(self) -> bool:
        """Whether the connection's state allows frames of sessions."""
        ...

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the peer accepts."""
        ...

    def send_performative(self, channel: int, performative: Performative) -> None:
        """Queue one frame. Raises FrameTooSmallError, with nothing sent."""
        ...

    def forget_session(self, session: Session) -> None:
        """Free the session's channels."""
        ...


class Session:
    """A session; created by ``Connection.begin_session`` or by the peer."""

    def __init__(
        self,
        connection: SessionConnection,
        local_channel: int,
        *,
        incoming_window: int,
        handle_max: int,
        message_bytes_max: int,
    ) -> None:
        self.connection = connection
        self.local_channel = local_channel
        """Ours, in the frames that we send."""
        self.remote_channel: int | None = None
        self.state = SESSION.initial
        self.context: Any = None
        """For the application's use."""
        self.is_begun_by_peer = False
        self.handle_max = handle_max
        self.message_bytes_max = message_bytes_max
        self.events = connection.events
        self.output = connection.output
        self.account = connection.account

        self.next_outgoing_id = 1
        self.next_delivery_id = 0
        self.remote_incoming_window = 0
        self.next_incoming_id = 0
        self.incoming_window = incoming_window
        self._incoming_window_full = incoming_window

        self._remote_handle_max = handle_max
        self._links: dict[int, Link] = {}  # by our handle
        self._links_by_remote_handle: dict[int, Link] = {}
        self._ended_handles = 0
        """The peer's handles of ended links, until they are reused: a bit for each."""
        self._links_by_name: dict[tuple[str, LinkRole], Link] = {}
        self._handles = FreeNumbers()
        self._blocked: deque[tuple[Link, bytes]] = deque()
        self._blocked_counts: dict[Link, int] = {}  # frames per link; links without any are absent
        self._waiting: dict[SenderLink, None] = {}  # for the window, in the order in which they were blocked
        self._unsettled = UnsettledDeliveries()
        self._accepted = AcceptedDeliveries()
        self.has_forgotten_deliveries = False
        """Unsettled deliveries may have been sent that ``_unsettled`` lacks."""
        self._local_error: Error | None = None

    def __repr__(self) -> str:
        return f"<Session channel={self.local_channel} {self.state.name} links={len(self._links)}>"

    @property
    def links(self) -> tuple[Link, ...]:
        """The links that have not ended."""
        return tuple(self._links.values())

    def attach_sender(
        self,
        name: str,
        *,
        target: Target | str,
        source: Source | str | None = None,
        properties: Mapping[str, object] | None = None,
        desired_capabilities: Sequence[str] = (),
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        max_message_size: int | None = None,
    ) -> SenderLink:
        """Attach a link on which this side sends; ``LinkAttached`` or ``LinkDetached`` follows.

        Raises LocalProtocolError if the session has ended, all handles are in use, the name is in use, or the
        attach does not fit into the peer's frames.
        """
        link = SenderLink(self, name, self._free_handle(name, LinkRole.SENDER))
        attach = Attach(
            name=name,
            handle=link.handle,
            role=ROLE_SENDER,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            source=_source(source),
            target=_target(target),
            initial_delivery_count=0,
            max_message_size=max_message_size,
            desired_capabilities=tuple(map(Symbol, desired_capabilities)),
            properties=dict((properties or {}).items()),
        )
        self._start_link(link, attach)
        return link

    def attach_receiver(
        self,
        name: str,
        *,
        source: Source | str,
        target: Target | str | None = None,
        properties: Mapping[str, object] | None = None,
        desired_capabilities: Sequence[str] = (),
        snd_settle_mode: int = SND_SETTLED,
        rcv_settle_mode: int = 0,
        max_message_size: int | None = None,
    ) -> ReceiverLink:
        """Attach a link on which this side receives; ``LinkAttached`` or ``LinkDetached`` follows.

        max_message_size: bytes, enforced by the engine; None: ``ConnectionConfiguration.message_bytes_max``.
        Raises LocalProtocolError as ``attach_sender``.
        """
        link = ReceiverLink(self, name, self._free_handle(name, LinkRole.RECEIVER))
        attach = Attach(
            name=name,
            handle=link.handle,
            role=ROLE_RECEIVER,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            source=_source(source),
            target=_target(target),
            max_message_size=max_message_size,
            desired_capabilities=tuple(map(Symbol, desired_capabilities)),
            properties=dict((properties or {}).items()),
        )
        self._start_link(link, attach)
        return link

    def end(self, error: Error | None = None) -> None:
        """End the session and its links; the events follow when the peer has answered."""
        if not self.is_mapped:
            return
        self.state = SESSION.after(self.state, SessionInput.SEND_END)
        self._local_error = error
        self._clear_blocked()
        self.connection.send_performative(self.local_channel, End(error))

    # --- for the connection ---

    def begin(self) -> None:
        """Start a session of ours."""
        self.state = SESSION.after(self.state, SessionInput.SEND_BEGIN)
        self._send_begin()

    def receive_begin(self, begin: Begin, channel: int) -> None:
        """The peer's begin: answer it, unless it is the answer to ours."""
        self.is_begun_by_peer = self.state is SessionState.UNMAPPED
        self.state = SESSION.after(self.state, SessionInput.RECEIVE_BEGIN)
        self.remote_channel = channel
        self.next_incoming_id = begin.next_outgoing_id
        self.remote_incoming_window = begin.incoming_window
        self._remote_handle_max = begin.handle_max
        if self.is_begun_by_peer:
            self.state = SESSION.after(self.state, SessionInput.SEND_BEGIN)
            self._send_begin()
        if self.state is SessionState.MAPPED:
            self.events.append(SessionBegun(self))

    def receive_end(self, end: End) -> None:
        """The peer's end: answer it, unless it is the answer to ours."""
        self.state = SESSION.after(self.state, SessionInput.RECEIVE_END)
        if self.state is SessionState.END_RCVD:
            self.state = SESSION.after(self.state, SessionInput.SEND_END)
            self.connection.send_performative(self.local_channel, End())
        self.finish(end.error or self._local_error)

    def receive_performative(self, performative: Performative) -> None:
        """Handle any frame of this session but begin, transfer and end."""
        self.state = SESSION.after(self.state, SessionInput.RECEIVE_FRAME)
        if self.state is not SessionState.MAPPED:
            return  # we have ended: dropped
        try:
            if isinstance(performative, Flow):
                self._receive_flow(performative)
            elif isinstance(performative, Disposition):
                self._receive_disposition(performative)
            elif isinstance(performative, Attach):
                self._receive_attach(performative)
            else:
                assert isinstance(performative, Detach)
                self._link_at(performative.handle).receive_detach(performative)
        except SessionViolationError as error:
            self._end_violated(error)

    @property
    def is_receiving(self) -> bool:
        """Whether incoming transfers count."""
        return self.state is SessionState.MAPPED

    def receive_runs(self, runs: list[Run]) -> None:
        """Deliveries of one frame each, while ``is_receiving``."""
        try:
            for handle, deliveries in runs:
                link = self._receiver_at(handle)
                if link.is_run_plain(deliveries):
                    self._count_incoming(len(deliveries))
                    link.receive_run(deliveries)
                    continue
                for each in deliveries:  # the general path checks each
                    transfer = IncomingTransfer(
                        handle, *each[:4], more=False, is_aborted=False, payload_start=0
                    )
                    self._count_incoming(1)
                    link.receive_transfer(each.payload, len(each.payload), transfer)
        except SessionViolationError as error:
            self._end_violated(error)

    def receive_transfer(self, data: bytes, start: int, until: int) -> None:
        """A transfer frame: its performative starts at ``start``, its payload ends at ``until``."""
        self.state = SESSION.after(self.state, SessionInput.RECEIVE_FRAME)
        if not self.is_receiving:
            return  # we have ended: dropped
        transfer = parse_transfer(data, start, until)
        try:
            link = self._receiver_at(transfer.handle)
            self._count_incoming(1)
            link.receive_transfer(data, until, transfer)
        except SessionViolationError as error:
            self._end_violated(error)

    def _count_incoming(self, count: int) -> None:
        """Top the window up at its half, even inside a run, so that the result does not depend on how many
        frames are processed together."""
        half = self._incoming_window_full >> 1
        while count:
            step = min(count, max(1, self.incoming_window - half))
            count -= step
            self.next_incoming_id = (self.next_incoming_id + step) & SERIAL_MASK
            self.incoming_window -= step
            if self.incoming_window <= half:
                self._send_session_flow()

    def finish(self, error: Error | None) -> None:
        """End the session, by its own end or with its connection, and report links and session once."""
        self.state = SessionState.ENDED
        self._clear_blocked()
        for link in self.links:
            link.end(error, closed=True)
        self.connection.forget_session(self)
        self.events.append(SessionEnded(self, error))

    # --- for links (``link_base.LinkSession``) ---

    @property
    def is_mapped(self) -> bool:
        """True from our begin on: begin and attach are pipelined."""
        if self.state is not SessionState.MAPPED and not SESSION.allows(self.state, SessionInput.SEND_FRAME):
            return False
        return self.connection.can_send_frames

    @property
    def has_blocked_frames(self) -> bool:
        return bool(self._blocked)

    @property
    def frame_bytes_max(self) -> int:
        return self.connection.frame_bytes_max

    def send_performative(self, performative: Performative) -> None:
        self.state = SESSION.after(self.state, SessionInput.SEND_FRAME)
        self.connection.send_performative(self.local_channel, performative)

    def send_frames(self, link: Link, frames: list[list[Payload]]) -> None:
        count = 0 if self._blocked else min(len(frames), max(0, self.remote_incoming_window))
        for frame in frames[:count]:
            self.output.extend(frame)
        self._count_outgoing(count)
        if count < len(frames):
            # Copied: a frame's buffers are slices, and the last one would keep the whole message, or a batch
            # of them, for as long as the peer likes.
            blocked = [b"".join(frame) for frame in frames[count:]]
            self._blocked.extend((link, frame) for frame in blocked)
            self._blocked_counts[link] = self._blocked_counts.get(link, 0) + len(blocked)
            self.account.blocked_bytes += sum(map(len, blocked))

    def accept(self, first_delivery_id: int, last_delivery_id: int) -> None:
        frames = self._accepted.add(first_delivery_id, last_delivery_id)
        if frames is not None:
            self.output.append(frames)
            self.connection.accepting.append(self)

    def encode_accepted(self) -> None:
        """Encode the accepted deliveries, a frame for each run of ids, where the first one stands in the
        output."""
        self._accepted.encode(self.local_channel)

    def is_link_blocked(self, link: Link) -> bool:
        return link in self._blocked_counts

    def wait_for_window(self, link: Link) -> None:
        assert isinstance(link, SenderLink)
        self._waiting[link] = None

    def add_unsettled(self, delivery_id: int, link: Link) -> None:
        assert isinstance(link, SenderLink)
        self._unsettled.add(delivery_id, link)

    def send_link_flow(
        self, handle: int, *, delivery_count: int | None, link_credit: int, drain: bool, echo: bool = False
    ) -> None:
        self._send_flow(
            handle=handle, delivery_count=delivery_count, link_credit=link_credit, drain=drain, echo=echo
        )

    def drop_blocked(self, link: Link) -> None:
        """Nothing may follow the link's detach."""
        if link in self._blocked_counts:
            kept = [entry for entry in self._blocked if entry[0] is not link]
            self.account.blocked_bytes -= sum(len(frame) for owner, frame in self._blocked if owner is link)
            self._blocked = deque(kept)
            del self._blocked_counts[link]
            self._wake_waiting()

    def forget_link(self, link: Link) -> None:
        if self._links.pop(link.handle, None) is not None:
            self.account.add_links(-1, strings_bytes=-link.strings_bytes)
            self._handles.give_back(link.handle)
        if self._links_by_name.get((link.name, link.role)) is link:
            del self._links_by_name[link.name, link.role]
        if link.remote_handle is not None:
            self._links_by_remote_handle.pop(link.remote_handle, None)
            self._ended_handles |= 1 << link.remote_handle
        self._links = compacted(self._links)
        self._links_by_name = compacted(self._links_by_name)
        self._links_by_remote_handle = compacted(self._links_by_remote_handle)
        if isinstance(link, SenderLink):
            self._waiting.pop(link, None)
            self._unsettled.forget(link)
            self.drop_blocked(link)

    # --- helpers ---

    def _end_violated(self, error: SessionViolationError) -> None:
        self.end(Error(condition=error.condition, description=str(error)))

    def _send_begin(self) -> None:
        self.connection.send_performative(
            self.local_channel,
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self.next_outgoing_id,
                incoming_window=self._incoming_window_full,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=self.handle_max,
            ),
        )

    def _send_session_flow(self) -> None:
        self._send_flow()

    def _send_flow(
        self,
        *,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        self.incoming_window = self._incoming_window_full
        is_peer_known = self.state is SessionState.MAPPED
        self.send_performative(
            Flow(
                next_incoming_id=self.next_incoming_id if is_peer_known else None,
                incoming_window=self.incoming_window,
                next_outgoing_id=self.next_outgoing_id,
                outgoing_window=OUTGOING_WINDOW,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=link_credit,
                drain=drain,
                echo=echo,
            )
        )

    def _free_handle(self, name: str, role: LinkRole) -> int:
        if not self.is_mapped:
            raise LocalProtocolError(f"A link cannot be attached: the session is {self.state.name}.")
        if (name, role) in self._links_by_name:
            raise LocalProtocolError(f"The session already has a link {name!r} in this direction.")
        handle = self._take_handle()
        if handle is None:
            raise LocalProtocolError("All handles of the session are in use: begin another session.")
        return handle

    def _take_handle(self) -> int | None:
        return self._handles.take(min(self.handle_max, self._remote_handle_max))

    def _add_link(self, link: Link) -> None:
        self.account.add_links(1, strings_bytes=link.strings_bytes)
        self._links[link.handle] = link
        self._links_by_name[link.name, link.role] = link

    def _start_link(self, link: Link, attach: Attach) -> None:
        self._add_link(link)
        try:
            link.send_first_attach(attach)
        except FrameTooSmallError:
            self.forget_link(link)
            raise

    def _link_at(self, handle: int) -> Link:
        link = self._links_by_remote_handle.get(handle)
        if link is None:
            raise SessionViolationError(UNATTACHED_HANDLE, f"No link is attached at handle {handle}.")
        return link

    def _receiver_at(self, handle: int) -> ReceiverLink:
        link = self._link_at(handle)
        if not isinstance(link, ReceiverLink):
            raise SessionViolationError(
                ERRANT_LINK, f"Received a transfer on handle {handle}, where this side is the sender."
            )
        return link

    def _receive_attach(self, attach: Attach) -> None:
        if attach.handle > self.handle_max:
            raise FramingError(f"Handle {attach.handle} exceeds the negotiated maximum of {self.handle_max}.")
        if attach.handle in self._links_by_remote_handle:
            raise SessionViolationError(HANDLE_IN_USE, f"Handle {attach.handle} already has a link.")
        if len(attach.name.encode()) > self.frame_bytes_max - REFUSAL_BYTES:
            raise SessionViolationError(
                FRAME_SIZE_TOO_SMALL,
                "A link's name does not fit into an answer: frames of the connection take "
                f"{self.frame_bytes_max} bytes.",
            )
        self._ended_handles &= ~(1 << attach.handle)
        role = LinkRole.SENDER if attach.role is ROLE_RECEIVER else LinkRole.RECEIVER
        if attach.role is ROLE_SENDER and attach.initial_delivery_count is None and attach.source is not None:
            raise SessionViolationError(INVALID_FIELD, "A sender's attach lacks its initial-delivery-count.")
        link = self._links_by_name.get((attach.name, role))
        # A link of ours has this name and direction: the attach is the peer's answer.
        if link is not None and link.is_ours:
            self._links_by_remote_handle[attach.handle] = link
            link.receive_attach(attach)
            return
        # Otherwise the peer starts a link, perhaps in place of one of its own.
        if link is not None:
            self._steal(link)
        handle = self._take_handle()
        if handle is None:
            raise SessionViolationError(RESOURCE_LIMIT_EXCEEDED, "The session has no free handle.")
        link = (SenderLink if role is LinkRole.SENDER else ReceiverLink)(self, attach.name, handle)
        address = attach.target.address if isinstance(attach.target, Target) else None
        link.strings_bytes = strings_bytes(attach.name, address)
        self._add_link(link)
        self._links_by_remote_handle[attach.handle] = link
        link.receive_attach(attach)
        self.events.append(LinkAttaching(link, attach))

    def _steal(self, link: Link) -> None:
        """End the older link: the peer attaches another one with its name (section 2.6.1)."""
        if not link.is_detach_sent:
            text = f"A new link {link.name!r:.100} of the same session replaced this one, with the same name."
            link.detach(Error(condition=STOLEN, description=text))
            self.events.append(LinkStolen(link))

    def _receive_flow(self, flow: Flow) -> None:
        theirs = 1 if flow.next_incoming_id is None else flow.next_incoming_id
        self.remote_incoming_window = remaining(flow.incoming_window, self.next_outgoing_id, theirs)
        self.next_incoming_id = flow.next_outgoing_id
        if self._blocked:
            self._send_blocked()
        # azure-eventhub 5.15.1 answers a detach and grants credit after it (_pyamqp/client.py, line 856). It
        # would hang if its session ended.
        if flow.handle is not None and not self._ended_handles >> flow.handle & 1:
            self._link_at(flow.handle).receive_flow(flow)
        self._wake_waiting()
        if flow.handle is None and flow.echo:
            self._send_session_flow()

    def _wake_waiting(self) -> None:
        """Wake the links that wait for the window, if it is open. Those blocked again wait again."""
        if self._waiting and not self._blocked and self.remote_incoming_window > 0:
            waiting, self._waiting = self._waiting, {}
            for link in waiting:
                link.wake()

    def _clear_blocked(self) -> None:
        self.account.blocked_bytes -= sum(len(frame) for _, frame in self._blocked)
        self._blocked.clear()
        self._blocked_counts.clear()
        self._waiting.clear()

    def _send_blocked(self) -> None:
        blocked, counts, output = self._blocked, self._blocked_counts, self.output
        count = min(len(blocked), max(0, self.remote_incoming_window))
        for _ in range(count):
            link, frame = blocked.popleft()
            output.append(frame)
            self.account.blocked_bytes -= len(frame)
            counts[link] -= 1
            if not counts[link]:
                del counts[link]
        self._count_outgoing(count)

    def _count_outgoing(self, count: int) -> None:
        self.remote_incoming_window -= count
        self.next_outgoing_id = (self.next_outgoing_id + count) & SERIAL_MASK

    def _receive_disposition(self, disposition: Disposition) -> None:
        if disposition.role is not ROLE_RECEIVER:
            return  # a sender settles what we have decided: we keep no record of it
        if not disposition.settled and isinstance(disposition.state, (Received, type(None))):
            return  # not decided yet
        is_known = self._unsettled.settle(disposition, self.events)
        if not disposition.settled and (is_known or self.has_forgotten_deliveries):
            self.send_performative(replace(disposition, role=ROLE_SENDER, settled=True, batchable=False))


def _source(source: Source | str | None) -> Source:
    return source if isinstance(source, Source) else Source(address=source)


def _target(target: Target | str | None) -> Target:
    return target if isinstance(target, Target) else Target(address=target)
