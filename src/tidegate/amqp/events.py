"""The events that the engine reports to its owner, and deliveries.

Events are values, in the order of the wire. ``LinkDetached`` comes exactly once per link, ``SessionEnded``
exactly once per session, after its links, and ``ConnectionClosed`` or ``ConnectionFailed`` is the last event:
cleaning up needs no other bookkeeping. (From ``link`` and ``session`` only type names are used here.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tidegate.amqp.performatives import Attach, DeliveryState, Error, Open
from tidegate.model.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.amqp.link import Link, ReceiverLink, SenderLink
    from tidegate.amqp.session import Session


class Delivery(NamedTuple):
    """One complete incoming message."""

    delivery_id: int
    """Unique in the session; for ``ReceiverLink.settle``."""
    delivery_tag: bytes
    message_format: int
    is_settled: bool
    """True: the sender expects no disposition."""
    payload: bytes
    """The encoded message; owned by the receiver of the event."""


@dataclass(frozen=True, slots=True)
class SaslReceived:
    """Server: the client chose a mechanism."""

    mechanism: str
    initial_response: bytes
    hostname: str | None
    is_decided: bool
    """False (PLAIN): the connection waits for ``Connection.complete_sasl``. True: already accepted."""

    def __repr__(self) -> str:  # the response of PLAIN is a password
        return f"SaslReceived(mechanism={self.mechanism!r}, is_decided={self.is_decided})"


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """Both sides have sent their open."""

    open: Open
    """The peer's."""


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """A session is ready: the peer began it, or answered our begin."""

    session: Session


@dataclass(frozen=True, slots=True)
class LinkAttaching:
    """The peer attaches a link. Call ``accept`` or ``refuse`` on it, now or later."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The peer accepted our attach."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """``link.sendable`` may have grown, or the peer asks to drain (``link.is_drain``)."""

    link: SenderLink


@dataclass(frozen=True, slots=True)
class LinkDrained:
    """The sender answered our ``drain``: no credit is outstanding."""

    link: ReceiverLink


@dataclass(frozen=True, slots=True)
class DeliveriesReceived:
    """Consecutive complete deliveries of one link, in order; at least one."""

    link: ReceiverLink
    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class DeliveriesSettled:
    """The receiver settled our deliveries with ids ``first`` to ``last``, both included."""

    link: SenderLink
    first_delivery_id: int
    last_delivery_id: int
    state: DeliveryState | None
    """None: settled without an outcome."""


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """The link is gone."""

    link: Link
    error: Error | None
    """The peer's error, else the one we detached with; None without an error."""
    closed: bool
    """False: only this attachment ended; the peer may attach the same name again."""


@dataclass(frozen=True, slots=True)
class LinkStolen:
    """The peer has attached another link with this link's name: no more deliveries on this one.

    It is already detached. ``LinkAttaching`` of the other link is next, ``LinkDetached`` follows later.
    """

    link: Link


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session has ended; its links were reported before."""

    session: Session
    error: Error | None


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """Both sides have sent close. The last event."""

    error: Error | None
    """The peer's error, else the one we closed with."""


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The connection failed: protocol violation, time-out, lost connection, SASL refused. The last event."""

    error: TidegateError


Event = (
    SaslReceived
    | ConnectionOpened
    | SessionBegun
    | LinkAttaching
    | LinkAttached
    | CreditGranted
    | LinkDrained
    | DeliveriesReceived
    | DeliveriesSettled
    | LinkDetached
    | LinkStolen
    | SessionEnded
    | ConnectionClosed
    | ConnectionFailed
)
