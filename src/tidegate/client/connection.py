"""One AMQP connection of a client, from connecting to its end: sessions and links.

A ``LiveConnection`` never reconnects: once it has ended, everything that waits on it gets the first reason,
and ``connector`` opens another. Each link has its own session, as in the official .NET client, so that the
service's limit of handles per session does not limit the number of partitions.

    what arrives            who handles it
    attach, detach, flow    the link's ``LinkHandler``
    transfers, settlements  the same
    close, lost connection  every link, as ``on_detached``
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    DeliveriesSettled,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
)
from tidegate.amqp.link import Link, ReceiverLink, SenderLink
from tidegate.amqp.performatives import Attach, DeliveryState, Error, Source, Target
from tidegate.amqp.session import Session
from tidegate.client.namespace import Namespace
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    OperationTimeoutError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.transport.driver import AmqpDriver, connect_amqp
from tidegate.wire.conditions import error_from_amqp

L = TypeVar("L", bound=Link)

_MAX_FRAME_SIZE: Final = 1_048_576
"""Largest frame accepted: as azure-eventhub 5.15.1, so that a batch arrives in one or two frames."""
_IDLE_TIMEOUT_S: Final = 60.0
"""Our choice: a dead connection is noticed within a minute."""
_CLOSE_TIMEOUT_S: Final = 5.0
"""How long a close waits for the peer's answer."""


class LinkHandler:
    """Callbacks for one link, called on the event loop. Overrides must neither block nor raise."""

    def on_attached(self, attach: Attach) -> None:
        """The peer accepted the link; ``attach`` is its answer."""

    def on_detached(self, error: TidegateError) -> None:
        """The link has ended: refused, detached, or ended with its session or connection. Called once."""

    def on_credit(self) -> None:
        """More deliveries may be sent."""

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Complete deliveries arrived, in order."""

    def on_settled(self, first_delivery_id: int, last_delivery_id: int, state: DeliveryState | None) -> None:
        """The peer settled the deliveries ``first..last``, inclusive."""


class LiveConnection:
    """An open connection, for one event loop. Create it with ``open``; end it with ``close``."""

    def __init__(self, namespace: Namespace, clock: Clock) -> None:
        self.namespace = namespace
        self.clock = clock
        self._driver: AmqpDriver | None = None
        self._engine: Connection | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._links: dict[Link, LinkHandler] = {}
        self._sessions: dict[Link, Session] = {}
        self._failure: TidegateError | None = None
        self._over = asyncio.Event()
        self._write_turn = asyncio.Lock()
        """Held by the first of those that wait for the socket: woken together, the senders of a thousand
        partitions would all write before it is seen to be full again."""

    @classmethod
    async def open(cls, namespace: Namespace, clock: Clock) -> LiveConnection:
        """Connect, with TLS if the namespace requires it, and exchange headers, SASL and open.

        Raises BrokenError (no answer, connection closed), UnauthorizedError (untrusted certificate, SASL),
        RemoteProtocolError.
        Cancellation: nothing stays open.
        """
        connection = cls(namespace, clock)
        try:
            driver = await connect_amqp(
                namespace.host,
                namespace.port,
                ssl=namespace.ssl_context,
                configuration=_configuration(namespace),
                clock=clock,
                on_event=connection._on_event,
                is_websocket=namespace.is_websocket,
                proxy=namespace.proxy,
                timeout_s=namespace.timeout_s,
            )
        except BrokenError as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                # A retry would not help: raise at once.
                raise UnauthorizedError(error.message, next_step=error.next_step) from error
            raise
        connection._driver = driver
        connection._engine = driver.connection
        try:
            await connection._wait_opened()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _wait_opened(self) -> None:
        """Raises what ended the connection before."""
        try:
            await asyncio.shield(self._opened)
        except BrokenError as error:
            if self.namespace.ssl_context is not None or error.next_step:
                raise
            # A TLS port ends a connection that begins without TLS.
            step = "If this is a TLS port, take UseDevelopmentEmulator=true out of the connection string."
            raise BrokenError(error.message, next_step=step) from error

    @property
    def is_open(self) -> bool:
        """Whether links can be attached now."""
        return self._failure is None and self._opened.done()

    def attach_sender(
        self,
        address: str,
        handler: LinkHandler,
        *,
        properties: Mapping[str, object] | None = None,
        desired_capabilities: tuple[str, ...] = (),
    ) -> SenderLink:
        """Begin attaching a sender to ``address``; the handler gets the result.

        Raises the reason if the connection has ended.
        """
        name = f"sender-link-{uuid.uuid4()}"
        return self._attach(
            handler,
            lambda session: session.attach_sender(
                name,
                target=Target(address=address),
                source=Source(address=name),
                properties=properties,
                desired_capabilities=desired_capabilities,
            ),
        )

    def attach_receiver(
        self,
        source: Source,
        handler: LinkHandler,
        *,
        name: str | None = None,
        properties: Mapping[str, object] | None = None,
        desired_capabilities: tuple[str, ...] = (),
    ) -> ReceiverLink:
        """As ``attach_sender``, a receiver without credit. name: of the link and its target."""
        name = name or f"receiver-link-{uuid.uuid4()}"
        return self._attach(
            handler,
            lambda session: session.attach_receiver(
                name,
                source=source,
                target=Target(address=name),
                properties=properties,
                desired_capabilities=desired_capabilities,
            ),
        )

    def _attach(self, handler: LinkHandler, attach: Callable[[Session], L]) -> L:
        if self._failure is not None:
            raise self._failure
        assert self._engine is not None
        session = self._engine.begin_session()
        link = attach(session)
        self._links[link], self._sessions[link] = handler, session
        self.flush()
        return link

    def detach(self, link: Link) -> None:
        """End a link and its session; its handler is not called again. Does nothing if the link has ended."""
        if self._links.pop(link, None) is None or self._failure is not None:
            return
        link.detach()
        self._sessions.pop(link).end()
        self.flush()

    def flush(self) -> None:
        """Send the engine's output; call it after commands outside of handlers."""
        if self._driver is not None:
            self._driver.flush()

    @property
    def is_writable(self) -> bool:
        """Whether ``wait_writable`` would return at once."""
        if self._failure is not None or self._driver is None or self._write_turn.locked():
            return False
        return self._driver.is_writable

    async def wait_writable(self) -> None:
        """Return once the socket is writable, in the order of the calls; the caller may then write once.

        Raises the reason if the connection has ended.
        """
        async with self._write_turn:
            if self._driver is not None:
                try:
                    await self._driver.wait_writable()
                except TidegateError as error:
                    # The driver only knows that the connection was closed; the reason is known here.
                    raise self._failure or error from error
            if self._failure is not None:
                raise self._failure

    async def wait_over(self) -> None:
        """Return once the connection has ended."""
        await self._over.wait()

    async def close(self) -> None:
        """Close the connection and wait briefly for the answer. Handlers get ClosedError. Idempotent."""
        self.fail(ClosedError("The client was closed."))
        if self._driver is None:
            return
        driver, self._driver = self._driver, None
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await driver.close()
        except (TimeoutError, OSError, TidegateError):
            pass

    def fail(self, error: TidegateError) -> None:
        """End everything on this connection with ``error``; the first reason counts."""
        if self._failure is not None:
            return
        self._failure = error
        self._over.set()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # marks it as retrieved: a cancelled ``open`` does not await it
        links, self._links, self._sessions = self._links, {}, {}
        for handler in links.values():
            handler.on_detached(error)

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliveriesReceived(link=link, deliveries=deliveries):
                if handler := self._links.get(link):
                    handler.on_deliveries(deliveries)
            case DeliveriesSettled(link=link):
                if handler := self._links.get(link):
                    handler.on_settled(event.first_delivery_id, event.last_delivery_id, event.state)
            case CreditGranted(link=link):
                if handler := self._links.get(link):
                    handler.on_credit()
            case LinkAttached(link=link, attach=attach):
                if handler := self._links.get(link):
                    handler.on_attached(attach)
            case LinkDetached(link=link, error=error):
                self._on_link_detached(link, error)
            case ConnectionOpened():
                if not self._opened.done():
                    self._opened.set_result(None)
            case ConnectionClosed(error=error):
                self.fail(_error_or_broken(error, "closed the connection"))
            case ConnectionFailed(error=failure):
                self.fail(failure)
            case _:
                pass  # sessions begin and links attach only at our request

    def _on_link_detached(self, link: Link, error: Error | None) -> None:
        assert self._engine is not None
        if self._engine.is_finished:
            return  # the connection's event follows, with the reason for all of its links
        session = self._sessions.pop(link, None)
        if session is not None:
            session.end()
        if handler := self._links.pop(link, None):
            handler.on_detached(_error_or_broken(error, "detached the link"))


def _configuration(namespace: Namespace) -> ConnectionConfiguration:
    return ConnectionConfiguration(
        container_id=f"tidegate-client-{uuid.uuid4()}",
        hostname=namespace.host,
        max_frame_size=_MAX_FRAME_SIZE,
        idle_timeout_s=_IDLE_TIMEOUT_S,
        sasl_mechanism="ANONYMOUS",
    )


def _error_or_broken(error: Error | None, what: str) -> TidegateError:
    if error is None:
        return BrokenError(f"The service {what} without giving a reason.")
    return error_from_amqp(error)


def timed_out(what: str, timeout_s: float) -> OperationTimeoutError:
    """The error for a missing response; ``what`` completes "No response to …"."""
    return OperationTimeoutError(f"No response to {what} within {timeout_s:g} s.")
