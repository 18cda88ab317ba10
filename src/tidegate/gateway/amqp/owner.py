"""The interface between a connection and the nodes of its links.

``connection_handler.ConnectionHandler`` is the one ``NodeOwner``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from tidegate.amqp.events import Delivery
from tidegate.amqp.link import SenderLink
from tidegate.amqp.performatives import Error
from tidegate.gateway.amqp.claims import ConnectionClaims

T = TypeVar("T")


class LinkNode:
    """Serves a client's link. Methods that a kind of node does not override do nothing."""

    def start(self) -> None:
        """The link was accepted."""

    def check_usable(self) -> None:
        """Raise NotFoundError if the link's entity was deleted, UnauthorizedError if the connection may no
        longer use it."""

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Complete deliveries have arrived (on links where the client sends)."""

    def on_credit(self) -> None:
        """More may be sent (on links where the client receives)."""

    def close(self) -> None:
        """The link is gone."""


class Pump(Protocol):
    """The node of a link that sends events."""

    link: SenderLink

    def pump(self) -> None:
        """Send events, as far as credit and socket allow."""


class NodeOwner(Protocol):
    """The connection of a node."""

    claims: ConnectionClaims
    """The rights of the connection."""

    @property
    def address(self) -> Hashable:
        """The client's, as limits count it; None: unknown."""

    async def work_in_slices(self, items: Iterator[T | None]) -> list[T]:
        """``SlicedWork.collect``, on behalf of the client's address."""

    @property
    def is_writable(self) -> bool:
        """False while the socket's buffer is full."""

    @property
    def is_memory_short(self) -> bool:
        """Whether to hold as little memory as possible."""

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work that waits; it is completed even if the connection ends, unless the caller cancels it."""

    def add_unacknowledged(self, size: int) -> None:
        """Count ``size`` more bytes (negative: fewer) that wait for the disk; reading may pause or resume."""

    def add_held(self, change: int) -> None:
        """Count bytes that are held for the client and that only the client can free."""

    def schedule_pump(self, link: Pump) -> None:
        """Run ``link.pump`` in this connection's turn."""

    def schedule_flush(self) -> None:
        """Write the engine's output soon, once for all callers."""

    def amqp_error(self, error: BaseException) -> Error:
        """An error in the form that the client receives."""

    def note_use(self) -> None:
        """Record that the connection is used, if only for requests."""

    def answer_late(self, after_s: float, answer: Callable[[], None]) -> None:
        """Call ``answer`` after that time, or before the connection ends for lack of a token."""
