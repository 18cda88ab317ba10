"""A peer for the official SDK that stores nothing and sends what it has ready: the SDK's own ceiling.

It answers the handshake, acknowledges what it is sent at once, and sends deliveries that were made before the
client came. What our service loses against it is what the service costs. Run as a process of its own:
``python -m bench.canned_service EVENT_BYTES`` prints its port.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import CreditGranted, DeliveriesReceived, Delivery, Event, LinkAttaching
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.message import decode_message
from tidegate.model.events import EventData
from tidegate.model.hub_properties import EventHubProperties
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.times import EPOCH
from tidegate.transport.clock import SystemClock
from tidegate.transport.driver import AmqpDriver, AmqpServer, EventHandler
from tidegate.wire.batch import wrap_event
from tidegate.wire.cbs import ACCEPTED
from tidegate.wire.delivery import event_deliveries
from tidegate.wire.event_codec import encode_event
from tidegate.wire.management import event_hub_to_map
from tidegate.wire.request_response import Request, encode_response

_READY_EVENTS = 1000


class _CannedConnection:
    """One client's connection: accepts every link, and feeds or drains it."""

    def __init__(self, deliveries: Sequence[bytes]) -> None:
        self._deliveries = deliveries
        self._answering: dict[str, SenderLink] = {}
        """The links that answers to requests go out on, by the name of their node."""

    def on_event(self, event: Event) -> None:
        """An event of the engine."""
        match event:
            case LinkAttaching(link, attach) if isinstance(link, ReceiverLink):
                link.accept(max_message_size=EVENT_BYTES_MAX)
                link.grant_credit(1000)
            case LinkAttaching(link, attach) if isinstance(link, SenderLink):
                link.accept()
                node = _address(attach.source)
                if node in _ANSWERS:
                    self._answering[node] = link
            case CreditGranted(link) if link not in self._answering.values():
                while link.sendable > 0:
                    if not link.send_batch(self._deliveries[: link.sendable]):
                        break
            case DeliveriesReceived(link, deliveries):
                self._on_deliveries(link, deliveries)
            case _:
                pass

    def _on_deliveries(self, link: ReceiverLink, deliveries: Sequence[Delivery]) -> None:
        link.settle(deliveries[0].delivery_id, deliveries[-1].delivery_id)
        link.grant_credit(len(deliveries))
        node = _address(link.remote_attach.target)
        if node not in _ANSWERS:
            return
        for delivery in deliveries:
            request = Request.from_message(decode_message(delivery.payload))
            self._answering[node].send(_ANSWERS[node](request), settled=True)


def _address(terminus: object) -> str:
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else ""


def _accept_token(request: Request) -> bytes:
    return encode_response(request.message_id, ACCEPTED)


def _describe_hub(request: Request) -> bytes:
    properties = EventHubProperties("bench", EPOCH, ("0", "1", "2", "3"))
    return encode_response(request.message_id, 200, event_hub_to_map(properties))


_ANSWERS: dict[str, Callable[[Request], bytes]] = {
    "$cbs": _accept_token,
    "$management": _describe_hub,
}


@contextmanager
def running(event_bytes: int) -> Iterator[tuple[str, int]]:
    """Run the peer in a process; gives a connection string without hub, and the process id."""
    command = [sys.executable, "-m", "bench.canned_service", str(event_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield (
                f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=any;SharedAccessKey=any;"
                "UseDevelopmentEmulator=true",
                process.pid,
            )
        finally:
            process.terminate()


async def _serve(event_bytes: int) -> None:
    encoded = encode_event(EventData(bytes(event_bytes), {"device": "d-1", "kind": "reading"}))
    section = wrap_event(encoded)
    deliveries = event_deliveries(
        section * _READY_EVENTS,
        [len(section)] * _READY_EVENTS,
        first_sequence_number=0,
        enqueued_time_ms=1_700_000_000_000,
    )

    def on_connection(driver: AmqpDriver) -> EventHandler:
        assert isinstance(driver.connection, Connection)
        return _CannedConnection(deliveries).on_event

    configuration = ConnectionConfiguration(container_id="canned")
    server = AmqpServer(configuration, clock=SystemClock(), on_connection=on_connection)
    _, port = await server.listen("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
