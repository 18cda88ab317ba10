"""The common part of both ends of a link: name, handles, attach and detach.

A link acts through its session (``LinkSession``), never on the connection. Calls on an ended link do nothing,
because the peer may end it at any moment and ``LinkDetached`` notifies the owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Final, Protocol

from tidegate.amqp.errors import FrameTooSmallError
from tidegate.amqp.events import Event, LinkAttached, LinkDetached
from tidegate.amqp.limits import PeerAccount
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Coordinator,
    Detach,
    Error,
    Flow,
    Performative,
    Source,
    Target,
)
from tidegate.amqp.states import LINK, LinkInput, LinkState
from tidegate.amqp.transfers import Payload
from tidegate.amqp.types import Symbol
from tidegate.model.errors import LocalProtocolError

SERIAL_MASK: Final = 0xFFFFFFFF
"""Delivery counts and ids are serial numbers of 32 bits (RFC 1982; AMQP 1.0 part 2 section 2.8.10)."""


def remaining(granted: int, sent: int, seen: int) -> int:
    """How many more frames (deliveries) a peer accepts, from 0 to 2^32-1. It had seen ``seen`` of our
    ``sent`` when it granted ``granted``.

    sent, seen: serial numbers, so their distance wraps; granted: an unsigned number that may use all 32 bits,
    as in the official Rust SDK's windows (AMQP 1.0 part 2 sections 2.5.6 and 2.6.7).
    """
    return max(0, granted - ((sent - seen) & SERIAL_MASK))


class LinkRole(Enum):
    SENDER = ROLE_SENDER
    RECEIVER = ROLE_RECEIVER


class LinkSession(Protocol):
    """What a link needs of its session."""

    local_channel: int
    remote_incoming_window: int
    next_outgoing_id: int
    next_delivery_id: int
    has_forgotten_deliveries: bool
    events: deque[Event]
    output: list[Payload]
    account: PeerAccount

    @property
    def is_mapped(self) -> bool:
        """Whether frames may be sent."""
        ...

    @property
    def has_blocked_frames(self) -> bool:
        """Whether transfers wait for the window."""
        ...

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the peer accepts."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """The largest incoming message on links that advertise no limit."""
        ...

    def send_performative(self, performative: Performative) -> None:
        """Queue one frame. Raises FrameTooSmallError, with nothing sent."""
        ...

    def accept(self, first_delivery_id: int, last_delivery_id: int) -> None:
        """Settle received deliveries as accepted, both ids included; neighbours, also of other links, share a
        frame."""
        ...

    def encode_accepted(self) -> None:
        """Let no outcome that follows share a frame with those before."""
        ...

    def send_frames(self, link: Link, frames: list[list[Payload]]) -> None:
        """Queue transfer frames as far as the window allows; the others are sent when it opens."""
        ...

    def is_link_blocked(self, link: Link) -> bool:
        """Whether frames of this link wait for the window."""
        ...

    def wait_for_window(self, link: Link) -> None:
        """Call ``link.wake`` when the window allows transfers again."""
        ...

    def drop_blocked(self, link: Link) -> None:
        """Discard frames of this link that wait for the window."""
        ...

    def add_unsettled(self, delivery_id: int, link: Link) -> None:
        """Route a later disposition of this delivery to ``link``."""
        ...

    def send_link_flow(
        self, handle: int, *, delivery_count: int | None, link_credit: int, drain: bool, echo: bool = False
    ) -> None:
        """Queue a flow with the session's windows and this link's credit."""
        ...

    def forget_link(self, link: Link) -> None:
        """Free the link's handles, name and unsettled deliveries."""
        ...


class Link:
    """A link: ``SenderLink`` or ``ReceiverLink``."""

    role: LinkRole

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        """Ours, in the frames that we send."""
        self.remote_handle: int | None = None
        self.state = LINK.initial
        self.context: Any = None
        """For the application's use."""
        self.is_ours = False
        """This side attached first."""
        self.strings_bytes = 0
        """Memory for name and target address, beyond the usual."""
        self._is_attach_sent = False
        self._remote_attach: Attach | None = None
        self._local_error: Error | None = None
        self._is_refused_by_peer = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} handle={self.handle} {self.state.name}>"

    @property
    def remote_attach(self) -> Attach:
        """The peer's attach; once answered, only its numbers and its target's address.

        Raises LocalProtocolError before it has arrived.
        """
        if self._remote_attach is None:
            raise LocalProtocolError(f"The peer has not answered the attach of link {self.name!r} yet.")
        return self._remote_attach

    @property
    def is_open(self) -> bool:
        """Attached on both sides, and not ended on either."""
        return self.state is LinkState.ATTACHED

    @property
    def is_detach_sent(self) -> bool:
        """This side has detached, and waits for the peer's answer."""
        return self.state in (LinkState.DETACH_SENT, LinkState.DETACH_PIPE)

    @property
    def has_ended(self) -> bool:
        """Whether it was detached by either side, or its session has ended."""
        return self.is_detach_sent or self._is_over()

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: Mapping[str, object] | None = None,
        offered_capabilities: Sequence[str] | None = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> None:
        """Answer the peer's attach. Source, target, properties and settle modes that are None are echoed.

        max_message_size: bytes; also enforced on a receiver. Properties that do not fit into the peer's
        frames are omitted; if source and target do not fit, the link is refused instead (``is_open`` is then
        false).
        Raises LocalProtocolError if the link was already answered.
        """
        if self.has_ended:
            return
        remote = self.remote_attach
        answer = Attach(
            name=self.name,
            handle=self.handle,
            role=self.role.value,
            snd_settle_mode=remote.snd_settle_mode if snd_settle_mode is None else snd_settle_mode,
            rcv_settle_mode=remote.rcv_settle_mode if rcv_settle_mode is None else rcv_settle_mode,
            source=source or remote.source or Source(),
            target=target or remote.target or Target(),
            initial_delivery_count=0 if self.role is LinkRole.SENDER else None,
            max_message_size=max_message_size,
            offered_capabilities=tuple(map(Symbol, offered_capabilities or ())),
            properties=remote.properties if properties is None else dict(properties.items()),
        )
        try:
            self._send_attach(answer)
        except FrameTooSmallError as error:
            self.refuse(Error(condition=error.condition, description=str(error)))
            return
        self._forget_details()
        self._became_attached()

    def refuse(self, error: Error) -> None:
        """Answer the peer's attach with null source and target, then detach with ``error``."""
        if self.has_ended:
            return
        self._send_refusing_attach()
        self._forget_details()
        self._send_detach(error, closed=True)

    def detach(self, error: Error | None = None, *, closed: bool = True) -> None:
        """End the link; ``LinkDetached`` follows when the peer has answered.

        closed: False ends only this attachment.
        """
        if self._is_over() or self.is_detach_sent:
            return
        if self.state is LinkState.ATTACH_RCVD:
            self._send_refusing_attach()
        self._send_detach(error, closed=closed)

    # --- for the session ---

    def send_first_attach(self, attach: Attach) -> None:
        """Start a link of ours."""
        self.is_ours = True
        self._send_attach(attach)

    def receive_attach(self, attach: Attach) -> None:
        """The peer's attach, first or in answer to ours."""
        is_answer = self.state is not LINK.initial
        self.state = LINK.after(self.state, LinkInput.RECEIVE_ATTACH)
        self._remote_attach = attach
        self.remote_handle = attach.handle
        self._take_remote_attach(attach)
        if is_answer and self.state is LinkState.ATTACHED:
            answered = attach.target if self.role is LinkRole.SENDER else attach.source
            if answered is None:
                self._is_refused_by_peer = True  # its detach follows, with the reason
                return
            self.session.events.append(LinkAttached(self, attach))
            self._became_attached()

    def receive_detach(self, detach: Detach) -> None:
        """The peer's detach: answer it unless ours was sent."""
        self.state = LINK.after(self.state, LinkInput.RECEIVE_DETACH)
        if self.state is LinkState.DETACH_RCVD:
            if not self._is_attach_sent:
                self._send_refusing_attach()
            self._send_detach(None, closed=detach.closed)
        self.end(detach.error or self._local_error, closed=detach.closed)

    def receive_flow(self, flow: Flow) -> None:
        self.state = LINK.after(self.state, LinkInput.RECEIVE_FLOW)
        if self.state is LinkState.DETACH_SENT:
            return
        self._take_flow(flow)
        if flow.echo and self.state is LinkState.ATTACHED:
            self._send_flow()

    def end(self, error: Error | None, *, closed: bool) -> None:
        """End the link, through its own detach or with its session, and report it once."""
        self.state = LinkState.DETACHED
        self.session.forget_link(self)
        self.session.events.append(LinkDetached(self, error, closed))

    # --- helpers ---

    def _forget_details(self) -> None:
        """Keep of the peer's attach only what is needed later: a peer may have thousands of links."""
        if self._remote_attach is not None:
            target = self._remote_attach.target
            self._remote_attach = replace(
                self._remote_attach,
                source=None,
                target=Target(address=target.address) if isinstance(target, Target) else None,
                unsettled=None,
                offered_capabilities=(),
                desired_capabilities=(),
                properties={},
            )

    def _is_over(self) -> bool:
        return self.state is LinkState.DETACHED or not self.session.is_mapped

    def _send_attach(self, attach: Attach) -> None:
        state = LINK.after(self.state, LinkInput.SEND_ATTACH)
        self.session.send_performative(attach)
        self.state = state
        self._is_attach_sent = True

    def _send_refusing_attach(self) -> None:
        self._send_attach(Attach(name=self.name, handle=self.handle, role=self.role.value))

    def _send_detach(self, error: Error | None, *, closed: bool) -> None:
        self.state = LINK.after(self.state, LinkInput.SEND_DETACH)
        self._local_error = error
        self.session.drop_blocked(self)
        self.session.send_performative(Detach(handle=self.handle, closed=closed, error=error))

    def _take_remote_attach(self, attach: Attach) -> None:
        """Role-specific handling of the peer's attach."""

    def _became_attached(self) -> None:
        """Role-specific handling once both sides are attached."""

    def _take_flow(self, flow: Flow) -> None:
        """Role-specific handling of a flow."""

    def _send_flow(self) -> None:
        """Send this link's state to the peer."""
