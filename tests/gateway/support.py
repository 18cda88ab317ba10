"""A client engine and a connection handler over a real broker, joined without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import DeliveriesReceived, DeliveriesSettled, Delivery, Event, LinkDetached
from tidegate.amqp.link import Link, ReceiverLink, SenderLink
from tidegate.amqp.message import Message, Properties, decode_message, encode_message
from tidegate.amqp.performatives import Error
from tidegate.amqp.session import Session
from tidegate.broker import ROOT_POLICY_NAME, Broker
from tidegate.gateway.amqp.connection_handler import ConnectionHandler
from tidegate.gateway.amqp.idle_guard import IdleLimits
from tidegate.gateway.amqp.management import ManagementService
from tidegate.model.clock import Clock
from tidegate.model.sas import make_sas_token
from tidegate.transport.driver import AmqpDriver
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import Cancellations
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.request_response import Response

WAIT_S = 30.0
HOST = "hub.test"

EventKind = TypeVar("EventKind")


class FakeOwner:
    """The gateway as a connection sees it."""

    def __init__(self, broker: Broker, clock: Clock, idle_limits: IdleLimits) -> None:
        self.broker = broker
        self.clock = clock
        self.unacknowledged_bytes_max = 100_000
        self.idle_limits = idle_limits
        self.budget = MemoryBudget(1 << 40)
        self.sliced_work = SlicedWork(None, self.budget)
        self.cancellations = Cancellations()
        self.management = ManagementService(broker, self.sliced_work)
        self.unacknowledged_bytes = 0
        self.ended: list[ConnectionHandler] = []
        self.congestions = 0
        self.tasks: list[asyncio.Task[None]] = []

    def on_connection_over(self, handler: ConnectionHandler) -> None:
        """Remember it."""
        self.ended.append(handler)

    def add_unacknowledged(self, change: int) -> None:
        """Count it."""
        self.unacknowledged_bytes += change

    def on_congestion(self, handler: ConnectionHandler) -> None:
        """Count it."""
        self.congestions += 1

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run it on the test's loop."""
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]


class Pair:
    """Client engine and service end; ``exchange`` carries bytes until both are silent.

    It is the service's driver, too: ``is_writable`` and ``is_reading`` can be looked at and set.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        *,
        idle_limits: IdleLimits | None = None,
        age_s: float = 0.0,
        **client: Any,
    ) -> None:
        now = clock.monotonic()
        self._clock = clock
        self.owner = FakeOwner(broker, clock, idle_limits or IdleLimits())
        self.handler = ConnectionHandler(self.owner, age_s=age_s)
        self.server = Connection(ConnectionConfiguration("service"), role=Role.SERVER, now=now)
        self.handler.attach_driver(cast(AmqpDriver, self), self.server)
        self.stop_visits = broker.authorizer.add_change_listener(self.handler.on_rights_changed)
        """Ends what the gateway does after a change of rights."""
        client.setdefault("sasl_mechanism", "ANONYMOUS")
        self.client = Connection(
            ConnectionConfiguration("client", hostname=HOST, **client), role=Role.CLIENT, now=now
        )
        self.events: list[Event] = []
        self.is_writable = True
        self.is_reading = True
        self._is_turn_due = False
        self.turns = 0
        """How often the handler had its turn."""
        self.bytes_to_client = 0
        self.held_bytes = 0
        self.blocked_bytes_peak = 0
        self._changed = asyncio.Event()
        self.client.open()
        self.session = self.client.begin_session()

    # -- the service's driver

    @property
    def peer_name(self) -> str:
        """For logs."""
        return "test client"

    def flush(self) -> None:
        """The handler has something to send."""
        self.exchange()

    def request_turn(self) -> None:
        """The handler has work to do in its turn: in the exchange under way, or in the loop's next pass."""
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self.exchange)

    def pause_reading(self) -> None:
        """Nothing more is carried to the service."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Carry again."""
        self.is_reading = True

    def add_held(self, change: int) -> None:
        """Count it."""
        self.held_bytes += change

    def admit_peer(self) -> None:
        """The client has proved who it is."""
        self.server.admit_peer()

    # -- for tests

    def exchange(self) -> None:
        """Carry bytes both ways until there are none."""
        is_busy = True
        while is_busy:
            is_busy = False
            now = self._clock.monotonic()
            if self.is_reading and self.client.has_data_to_send:
                self.server.receive_data(b"".join(self.client.data_to_send()), now=now)
                is_busy = True
            while (event := self.server.next_event()) is not None:
                self.handler.on_event(event)
                is_busy = True
            if self._is_turn_due:
                self.turns += 1
                self._is_turn_due = self.handler.on_turn()
                is_busy = True
            self.blocked_bytes_peak = max(self.blocked_bytes_peak, self.server.blocked_bytes)
            if self.server.has_data_to_send:
                data = b"".join(self.server.data_to_send())
                self.bytes_to_client += len(data)
                self.client.receive_data(data, now=now)
                is_busy = True
            while (event := self.client.next_event()) is not None:
                self.events.append(event)
                is_busy = True
        self._changed.set()

    async def wait_for(self, is_met: Callable[[], bool]) -> None:
        """Return once something holds; the service may still be writing to disk."""
        async with asyncio.timeout(WAIT_S):
            self.exchange()
            while not is_met():
                self._changed.clear()
                await self._changed.wait()

    def of_kind(self, kind: type[EventKind]) -> list[EventKind]:
        """The client's events of one kind, so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def deliveries(self, link: Link) -> list[Delivery]:
        """What the client has received on a link."""
        return [
            delivery
            for event in self.of_kind(DeliveriesReceived)
            if event.link is link
            for delivery in event.deliveries
        ]

    def settled(self, link: Link) -> list[DeliveriesSettled]:
        """The outcomes that the client was told for a link."""
        return [event for event in self.of_kind(DeliveriesSettled) if event.link is link]

    def error_of(self, link: Link) -> Error | None:
        """Why a link was detached; fails where it was not."""
        detached = [event for event in self.of_kind(LinkDetached) if event.link is link]
        assert len(detached) == 1, f"{link} was detached {len(detached)} times"
        return detached[0].error

    def request_links(self, node: str, session: Session | None = None) -> tuple[SenderLink, ReceiverLink]:
        """Links for requests to a node and for their responses."""
        session = session or self.session
        sender = session.attach_sender(f"{node}-sender", target=node)
        receiver = session.attach_receiver(f"{node}-receiver", source=node, target="client")
        receiver.grant_credit(100)
        self.exchange()
        return sender, receiver

    def put_token(
        self,
        broker: Broker,
        audience: str,
        *,
        expiry: int = 4_000_000_000,
        key: str = "",
        policy_name: str = ROOT_POLICY_NAME,
    ) -> Response:
        """Authorise the connection with the root policy (or another, or a wrong key); returns the answer."""
        if not key:
            key = broker.policy(None, policy_name).key
        token = make_sas_token(audience=audience, key_name=policy_name, key=key, expiry=expiry)
        sender, receiver = self.request_links("$cbs", self.client.begin_session())
        message = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
        return self.request(sender, receiver, message)

    def request(self, sender: SenderLink, receiver: ReceiverLink, message: Message) -> Response:
        """Send a request and return its response, which must come at once."""
        seen = len(self.deliveries(receiver))
        properties = Properties(message_id=f"id-{seen}")
        sender.send(encode_message(_with_properties(message, properties)))
        self.exchange()
        received = self.deliveries(receiver)
        assert len(received) == seen + 1, "no response came"
        response = Response.from_message(decode_message(received[-1].payload))
        assert response.correlation_id == f"id-{seen}"
        return response


def _with_properties(message: Message, properties: Properties) -> Message:
    return Message(
        properties=properties,
        application_properties=message.application_properties,
        data=message.data,
        value=message.value,
    )
