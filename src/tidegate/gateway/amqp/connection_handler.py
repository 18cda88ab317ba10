"""One AMQP connection of a client: events of its engine become calls on nodes, one per link.

    client's link to            node here
    $cbs, $management           RequestNode     (request_node)
    hub, hub/Partitions/n       IngressLink     (ingress)
    …/ConsumerGroups/g/…        EgressLink      (egress)

Everything runs in callbacks of the event loop; the few requests that wait are tasks of the gateway. The
output of one turn of the loop is one write.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, TypeVar

from tidegate.amqp import events
from tidegate.amqp.connection import Connection
from tidegate.amqp.errors import CONNECTION_FORCED, ResourceLimitError
from tidegate.amqp.limits import compacted, value_bytes
from tidegate.amqp.link import Link, SenderLink
from tidegate.amqp.performatives import Attach, Error
from tidegate.broker import Broker, Door, Peer
from tidegate.gateway.amqp.claims import ConnectionClaims
from tidegate.gateway.amqp.egress import EgressLink
from tidegate.gateway.amqp.idle_guard import IdleGuard, IdleLimits
from tidegate.gateway.amqp.ingress import IngressLink
from tidegate.gateway.amqp.management import ManagementService
from tidegate.gateway.amqp.nodes import NodeOpener, OpenedNode
from tidegate.gateway.amqp.owner import LinkNode, Pump
from tidegate.gateway.amqp.request_node import RequestNodes
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    BrokenError,
    Fault,
    InvalidKeyError,
    LocalProtocolError,
    NotFoundError,
    QuotaExceededError,
    ServerBusyError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.transport.driver import AmqpDriver
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import address_in, site_in
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import Cancellations
from tidegate.wire.conditions import error_description, to_amqp_error
from tidegate.wire.names import TRACKING_ID

_ANONYMOUS_LINKS_MAX = 16
"""Maximum sessions and links of a connection before its first token or key is accepted. Our choice: a client
needs a session and two links for it; refused and ended ones count as well."""

_BLOCKED_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes that wait for the windows of a connection's sessions. A waiting session gets nothing more,
but a connection may have thousands of them (our choice: a few of the largest batches)."""

_CONGESTED_BYTES = 16 * 1024
"""Unacknowledged bytes that a connection may have even if the disk is behind because of others (our
choice)."""

_WAITING_ATTACH_BYTES = 16 * 1024
"""Memory of an attach that waits for the log, beside its link and its values (measured: 5,000 hold 80 MB)."""

_JUDGED_AT_ONCE = 50
_TOLD_AT_ONCE = 20
"""Links that are checked again, and links that are detached, in one turn: less than 1 ms (our choice)."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class ConnectionOwner(Protocol):
    """The interface of a connection's gateway."""

    broker: Broker
    clock: Clock
    management: ManagementService
    """Answers ``$management``."""
    budget: MemoryBudget
    """Counts memory held for clients."""
    sliced_work: SlicedWork
    """Runs long work of all clients."""
    cancellations: Cancellations
    """Ends the attaches whose links have ended."""
    idle_limits: IdleLimits
    """How long a connection may be unused."""

    @property
    def unacknowledged_bytes_max(self) -> int:
        """Received bytes of one connection that may be not durable yet, now."""

    def add_unacknowledged(self, change: int) -> None:
        """Count received bytes of all connections that are not durable yet."""

    def on_connection_over(self, handler: ConnectionHandler) -> None:
        """The connection is gone."""

    def on_congestion(self, handler: ConnectionHandler) -> None:
        """The disk is behind: call ``resume_reading`` once it has caught up."""

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work that waits; it is completed even if the connection ends, unless the caller cancels it."""


class ConnectionHandler:
    """The service's end of one connection. Call ``attach_driver`` before data arrives."""

    def __init__(self, owner: ConnectionOwner, *, age_s: float = 0.0) -> None:
        """age_s: seconds since the client connected."""
        self.claims = ConnectionClaims(
            owner.broker,
            owner.clock,
            self.on_rights_changed,
            on_admitted=self._on_admitted,
            find_peer=self._find_peer,
            add_held=self.add_held,
        )
        self._owner = owner
        self._driver: AmqpDriver | None = None
        self._connection: Connection | None = None
        self._nodes: dict[Link, LinkNode] = {}
        self._attaching: dict[Link, asyncio.Task[None]] = {}
        """Links whose attach waits for the log, and what waits."""
        self._unanswered: dict[Link, tuple[Attach, OpenedNode | Exception, int]] = {}
        """Links whose attach has waited, with the answer to it and the bytes that it holds: a client chooses
        how much an answer costs, and the log ends many waits at once."""
        requests = RequestNodes(self, owner.management)
        self._opener: NodeOpener | None = NodeOpener(self, owner.broker, owner.clock, requests)
        self._idle_guard = IdleGuard(
            owner.idle_limits, lambda: not self.claims.is_empty, self._on_idle, age_s=age_s
        )
        self._is_stalled_by_window = False
        self._is_admitted = False
        self._anonymous_links = 0
        self._unacknowledged_bytes = 0
        self._is_reading_paused = False
        self._is_stopping = False
        self._is_over = False
        self._pumps: dict[Pump, None] = {}
        self._unjudged: dict[Link, None] = {}
        """Links to check again before anything is sent on them; the first has waited longest."""
        self._are_all_unjudged = False
        """Whether the next turn adds all links to them."""
        self._judged_revision = owner.broker.authorizer.revision
        """Of the rights for which links were checked, or are in ``_unjudged``: a turn may come before
        ``on_rights_changed``."""
        self._losers: dict[Link, TidegateError] = {}
        """Links that may no longer be used: their nodes are closed, and they wait to be detached with the
        reason."""
        self._is_sending_next = False
        self._scheduled: asyncio.Handle | None = None

    # -- for the driver

    def attach_driver(self, driver: AmqpDriver, connection: Connection) -> None:
        """The driver that carries this connection."""
        self._driver = driver
        self._connection = connection

    def on_event(self, event: events.Event) -> None:
        """Handle an event of the engine; the driver calls it, and writes the output."""
        match event:
            case events.DeliveriesReceived(link, deliveries):
                node = self._nodes.get(link)
                if node is not None:
                    node.on_deliveries(deliveries)
            case events.CreditGranted(link):
                node = self._nodes.get(link)
                if node is not None:
                    node.on_credit()
                self._wake_stalled()
            case events.LinkAttaching(link, attach):
                if self._is_within_anonymous_limit():
                    self._on_attaching(link, attach)
            case events.SessionBegun():
                self._is_within_anonymous_limit()
            case events.LinkDetached(link) | events.LinkStolen(link):
                self._drop(link)
            case events.ConnectionOpened():
                self._refuse_when_exhausted()
            case events.SaslReceived(initial_response=response, is_decided=False):
                self._judge_plain(response)
            case events.ConnectionClosed(error):
                if error is not None and not self._is_stopping:
                    _log.warning(
                        "%s: the peer closed the connection: %.80r: %.300r",
                        self._peer_name,
                        error.condition,
                        error.description,
                    )
                self._on_over()
            case events.ConnectionFailed(error):
                # Clients often vanish; anything else should be looked at.
                level = logging.INFO if isinstance(error, BrokenError) else logging.WARNING
                _log.log(level, "%s: connection ended, %s: %s", self._peer_name, _whose_fault(error), error)
                self._on_over()

    def on_writable(self) -> None:
        """The socket is writable again: the receiver links that wait continue, in their order."""
        if self._pumps and self._driver is not None:
            self._driver.request_turn()

    def on_turn(self) -> bool:
        """Answer an attach that has waited; then send on the receiver link that has waited longest, or check
        some links again, or detach some. Returns whether more can be done now. Links that wait for the socket
        stay in their order until ``on_writable``: each of a thousand would otherwise run once for each time
        that it takes more.

        While links wait to be checked or detached, every other turn sends: policies of others may change
        faster than thousands of links are checked.
        """
        revision = self._owner.broker.authorizer.revision
        if self._are_all_unjudged or self._judged_revision != revision:
            self._are_all_unjudged, self._judged_revision = False, revision
            self._unjudged |= dict.fromkeys(self._nodes)
            if self._is_admitted and self.claims.is_empty:
                self._is_admitted = False
                self._idle_guard.note_loss()
        if self._unanswered:
            self._answer_attach(next(iter(self._unanswered)))
        pump = next(iter(self._pumps), None) if self.is_writable else None
        if pump is not None and (self._is_sending_next or not (self._unjudged or self._losers)):
            self._is_sending_next = False
            del self._pumps[pump]
            if pump.link in self._unjudged:
                self._judge(pump.link)
            pump.pump()
        else:
            self._is_sending_next = True
            if self._unjudged:
                for link in list(islice(self._unjudged, _JUDGED_AT_ONCE)):
                    self._judge(link)
            else:
                for loser in list(self._losers)[:_TOLD_AT_ONCE]:
                    self._tell_loser(loser, self._losers.pop(loser))
        is_more = self._unanswered or self._unjudged or self._losers
        return bool(is_more or (pump is not None and self._pumps))

    def on_memory_pressure(self, is_short: bool) -> list[Callable[[], None]]:
        """Memory has become short, or no longer is: returns what drops, for one link each, what can be read
        again."""
        nodes = self._nodes.values() if is_short else ()
        return [node.drop_read_ahead for node in nodes if isinstance(node, EgressLink)]

    # -- for the nodes

    @property
    def is_writable(self) -> bool:
        """False while the socket's buffer is full, or too many bytes wait for sessions' windows."""
        if self._connection is not None and self._connection.blocked_bytes > _BLOCKED_BYTES_MAX:
            self._is_stalled_by_window = True
            return False
        return self._driver is not None and self._driver.is_writable

    @property
    def address(self) -> Hashable:
        """The client's, as limits count it; None: unknown."""
        return site_in(self._peer_name)

    async def work_in_slices(self, items: Iterator[T | None]) -> list[T]:
        """``SlicedWork.collect``, on behalf of the client's address."""
        return await self._owner.sliced_work.collect(items, address=self.address)

    @property
    def is_memory_short(self) -> bool:
        """Whether to hold as little memory as possible."""
        return self._owner.budget.is_short

    def add_held(self, change: int) -> None:
        """Count bytes that are held for the client and that only the client can free."""
        if self._driver is not None:
            self._driver.add_held(change)

    def schedule_flush(self) -> None:
        """Write the engine's output soon, once for all callers."""
        if self._scheduled is None and not self._is_over:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run_scheduled)

    def schedule_pump(self, link: Pump) -> None:
        """Run ``link.pump`` in this connection's turn, and write what it sends."""
        self._pumps[link] = None
        if self._driver is not None:
            self._driver.request_turn()

    def add_unacknowledged(self, size: int) -> None:
        """``size`` more bytes (negative: fewer) wait for the disk: reading may pause or resume."""
        self._unacknowledged_bytes += size
        self._owner.add_unacknowledged(size)
        if self._is_reading_paused:
            self.resume_reading()
            return
        is_congested = self._unacknowledged_bytes > _CONGESTED_BYTES and self._owner.broker.is_congested
        if size > 0 and (is_congested or self._unacknowledged_bytes > self._owner.unacknowledged_bytes_max):
            assert self._driver is not None
            self._is_reading_paused = True
            self._driver.pause_reading()
            if is_congested:
                self._owner.on_congestion(self)

    def resume_reading(self) -> None:
        """Read from the socket again, if half of the allowed bytes are durable and the disk keeps up."""
        if not self._is_reading_paused or self._is_stopping or self._driver is None:
            return
        if self._owner.broker.is_congested:
            self._owner.on_congestion(self)
        elif self._unacknowledged_bytes <= self._owner.unacknowledged_bytes_max // 2:
            self._is_reading_paused = False
            self._driver.resume_reading()

    def amqp_error(self, error: BaseException) -> Error:
        """An error as the client receives it; log its ``description``, which has a tracking id."""
        tracking_id = str(uuid.uuid4())
        if isinstance(error, TidegateError):
            if error.remote_text:
                _log.error("%s: %s TrackingId:%s", self._peer_name, error, tracking_id)
        else:
            _log.error("%s: unexpected failure, TrackingId:%s", self._peer_name, tracking_id, exc_info=error)
        return to_amqp_error(error, tracking_id=tracking_id, now_utc=self._owner.clock.now_utc())

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work that waits; it is completed even if the connection ends, unless the caller cancels it."""
        return self._owner.start_task(work, name)

    def note_use(self) -> None:
        """Record that the connection is used, if only for requests."""
        self._idle_guard.note_use()

    def answer_late(self, after_s: float, answer: Callable[[], None]) -> None:
        """Call ``answer`` after that time, or earlier if the connection would end before."""
        asyncio.get_running_loop().call_later(self._idle_guard.delay_s(after_s), answer)

    # -- for the gateway

    def on_rights_changed(self) -> None:
        """A token expired, a policy changed, or an event hub was deleted: check all tokens and links, and
        detach those that may no longer be used, in this connection's turns: there may be thousands."""
        if self._is_admitted and self._driver is not None:
            self._are_all_unjudged = True
            self._driver.request_turn()

    def stop(self) -> None:
        """The service stops: close the connection once all received data is durable and acknowledged."""
        self._is_stopping = True
        if self._driver is not None and not self._is_over:
            self._is_reading_paused = True
            self._driver.pause_reading()
        self.schedule_flush()

    # -- links

    def _is_within_anonymous_limit(self) -> bool:
        """Count a session or link of an unauthenticated client; too many end the connection."""
        if not self.claims.is_empty:
            return True
        self._anonymous_links += 1
        if self._anonymous_links <= _ANONYMOUS_LINKS_MAX:
            return True
        assert self._connection is not None
        self._connection.abort(
            ResourceLimitError(
                f"The connection began more than {_ANONYMOUS_LINKS_MAX} sessions and links without a token.",
                next_step="Put a token to $cbs first.",
            )
        )
        return False

    def _on_attaching(self, link: Link, attach: Attach) -> None:
        try:
            assert self._opener is not None  # nothing is attached after its end
            opened = self._opener.open(link, attach)
        except TidegateError as error:
            self._refuse(link, attach, error)
            return
        if isinstance(opened, OpenedNode):
            self._accept(link, attach, opened)
        else:
            held_bytes = _WAITING_ATTACH_BYTES + value_bytes(attach)
            task = self.start_task(self._finish_attaching(link, attach, opened, held_bytes), "attach")
            if isinstance(opened, Coroutine):
                task.add_done_callback(lambda _: opened.close())  # cancelled before it began
            self._attaching[link] = task

    async def _finish_attaching(
        self, link: Link, attach: Attach, opening: Awaitable[OpenedNode], held_bytes: int
    ) -> None:
        self.add_held(held_bytes)
        try:
            opened = await opening
        except asyncio.CancelledError:
            self.add_held(-held_bytes)
            raise
        except Exception as error:  # Any failure is reported to the client, and logged by ``amqp_error``.
            self._answer_in_turn(link, attach, error, held_bytes)
        else:
            self._answer_in_turn(link, attach, opened, held_bytes)

    def _answer_in_turn(
        self, link: Link, attach: Attach, opened: OpenedNode | Exception, held_bytes: int
    ) -> None:
        if link in self._attaching:
            assert self._driver is not None
            del self._attaching[link]
            self._unanswered[link] = attach, opened, held_bytes
            self._driver.request_turn()
        else:  # The client, or the connection, has gone meanwhile.
            self._give_up(opened, held_bytes)

    def _answer_attach(self, link: Link) -> None:
        attach, opened, held_bytes = self._unanswered.pop(link)
        self.add_held(-held_bytes)
        if isinstance(opened, Exception):
            self._refuse(link, attach, opened)
            return
        try:
            # Again: a policy may have changed meanwhile.
            _check_or_close(opened.node)
        except TidegateError as error:
            self._refuse(link, attach, error)
        else:
            self._accept(link, attach, opened)

    def _give_up(self, opened: OpenedNode | Exception, held_bytes: int) -> None:
        self.add_held(-held_bytes)
        if isinstance(opened, OpenedNode):
            opened.node.close()

    def _refuse(self, link: Link, attach: Attach, error: Exception) -> None:
        answer = self.amqp_error(error)
        _log.info("%s: attach of link %.80r refused: %s", self._peer_name, attach.name, answer.description)
        link.refuse(answer)

    def _accept(self, link: Link, attach: Attach, opened: OpenedNode) -> None:
        self._nodes[link] = opened.node
        if _is_for_events(opened.node):
            self._idle_guard.add_link()
        source = attach.source
        if source is not None and source.filter and isinstance(link, SenderLink):
            source = replace(source, filter=dict(opened.filters))
        if source is not None and opened.source_address is not None:
            source = replace(source, address=opened.source_address)
        link.accept(
            source=source,
            max_message_size=opened.message_bytes_max,
            properties={
                **_text_keys(attach.properties),
                **opened.properties,
                TRACKING_ID: str(uuid.uuid4()),
            },
            offered_capabilities=opened.offered_capabilities,
            # On links where the client sends, the service always settles immediately.
            rcv_settle_mode=None if isinstance(link, SenderLink) else 0,
        )
        if link.is_open:
            opened.node.start()
        else:  # the answer does not fit into the client's frames, and the link was refused
            self._drop(link)

    def _on_admitted(self) -> None:
        self._is_admitted = True
        if self._driver is not None:
            self._driver.admit_peer()

    def _wake_stalled(self) -> None:
        """A session's window opened: wake links of other sessions that waited because of it."""
        if self._is_stalled_by_window and self.is_writable:
            self._is_stalled_by_window = False
            self.on_writable()

    def _drop(self, link: Link) -> None:
        if (attaching := self._attaching.pop(link, None)) is not None:
            self._owner.cancellations.add(attaching)  # others wait behind it for the log
        if link in self._unanswered:
            _, opened, held_bytes = self._unanswered.pop(link)
            self._give_up(opened, held_bytes)
        self._unjudged.pop(link, None)
        self._losers.pop(link, None)
        node = self._nodes.pop(link, None)
        self._nodes, self._unjudged = compacted(self._nodes), compacted(self._unjudged)
        self._losers = compacted(self._losers)
        if node is not None:
            node.close()
            if _is_for_events(node):
                self._idle_guard.remove_link()
        self._wake_stalled()

    def _judge(self, link: Link) -> None:
        """Close a link that may no longer be used; its detach follows."""
        del self._unjudged[link]
        try:
            self._nodes[link].check_usable()
        except (NotFoundError, UnauthorizedError) as error:
            self._drop(link)
            self._losers[link] = error.with_traceback(None)

    def _tell_loser(self, link: Link, error: TidegateError) -> None:
        answer = self.amqp_error(error)
        _log.info("%s: link %.80r detached: %s", self._peer_name, link.name, answer.description)
        link.detach(answer)

    # -- the connection

    def _refuse_when_exhausted(self) -> None:
        if self._owner.budget.is_exhausted:
            assert self._connection is not None
            self._connection.abort(
                ResourceLimitError(
                    "The service's memory for clients is exhausted.",
                    next_step="Connect again later.",
                )
            )

    def _judge_plain(self, response: bytes) -> None:
        """SASL PLAIN: authorisation identity, policy, key, with NUL between (RFC 4616)."""
        assert self._connection is not None
        parts = response.split(b"\0")
        try:
            if len(parts) != 3:
                raise UnauthorizedError("SASL PLAIN requires a policy name and its key.")
            self.claims.put_policy(parts[1].decode(), parts[2].decode())
        except (UnauthorizedError, ServerBusyError, QuotaExceededError, UnicodeDecodeError) as error:
            _log.info("%s: SASL PLAIN: %s", self._peer_name, error)
            if isinstance(error, InvalidKeyError) and error.answer_after_s:
                self.answer_late(error.answer_after_s, self._refuse_plain)
            else:
                self._connection.complete_sasl(is_accepted=False)
        else:
            self._connection.complete_sasl(is_accepted=True)

    def _refuse_plain(self) -> None:
        assert self._connection is not None
        self._connection.complete_sasl(is_accepted=False)
        self.schedule_flush()

    def _on_idle(self, limit_s: float) -> None:
        if self._connection is None or self._driver is None:
            return
        idle = BrokenError(
            f"The connection was inactive for more than the allowed {limit_s * 1000:.0f} milliseconds and is "
            "closed by container 'LinkTracker'."
        )
        now_utc = self._owner.clock.now_utc()
        text = error_description(idle, tracking_id=str(uuid.uuid4()), now_utc=now_utc)
        self._connection.abort(BrokenError(text))
        self._driver.flush()

    def _run_scheduled(self) -> None:
        self._scheduled = None
        if self._driver is None or self._connection is None:
            return
        if self._is_stopping and self._unacknowledged_bytes == 0:
            self._connection.close(Error(CONNECTION_FORCED, "The service is stopping. Connect again later."))
            self._is_reading_paused = False
            self._driver.resume_reading()
        self._driver.flush()

    def _find_peer(self) -> Peer:
        return Peer(Door.AMQP, address_in(self._peer_name))

    @property
    def _peer_name(self) -> str:
        return self._driver.peer_name if self._driver is not None else "a client"

    def _on_over(self) -> None:
        self._is_over, self._is_admitted = True, False
        self.claims.close()
        for link in [*self._nodes, *self._unanswered]:
            self._drop(link)
        for attaching in self._attaching.values():
            self._owner.cancellations.add(attaching)
        self._attaching.clear()
        self._idle_guard.close()
        if self._opener is not None:
            self._opener.close()
            self._opener = None  # no reference cycle is left
        self._pumps.clear()
        self._unjudged.clear()
        self._losers.clear()
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._owner.on_connection_over(self)


def _is_for_events(node: LinkNode) -> bool:
    return isinstance(node, (IngressLink, EgressLink))


def _check_or_close(node: LinkNode) -> None:
    try:
        node.check_usable()
    except TidegateError:
        node.close()
        raise


def _text_keys(properties: Mapping[object, object]) -> dict[str, object]:
    return {key: value for key, value in properties.items() if isinstance(key, str)}


def _whose_fault(error: TidegateError) -> str:
    if isinstance(error, LocalProtocolError):
        return "our own fault"
    return {
        Fault.CALLER: "the peer's fault",
        Fault.PEER: "the peer's fault",
        Fault.WORLD: "no fault",
        Fault.STATE: "no fault",
    }[error.fault]
