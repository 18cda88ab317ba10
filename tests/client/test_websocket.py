"""Our client in a WebSocket and through an HTTP proxy: where only port 443 or a proxy leads outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.http_proxy import HttpProxy

from tidegate.client import EventHubConsumer, EventHubProducer, Namespace
from tidegate.client.credentials import credential_from_connection_string
from tidegate.client.retry import RetryPolicy
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, InvalidArgumentError, RemoteProtocolError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import EventProcessorHost, MemoryStore, PartitionContext
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.websocket import MESSAGE_BYTES_MAX

LARGE = b"x" * (3 * MESSAGE_BYTES_MAX)
NO_RETRY = RetryPolicy(retries_max=0)


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names none."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def _string(service: HubService, hub: str, *, is_tls_used: bool, is_websocket: bool = True) -> str:
    ready = service.ready
    if is_websocket:
        address = ready.https if is_tls_used else ready.http
    else:
        address = ready.amqps if is_tls_used else ready.amqp
    assert address is not None
    assert ready.connection_string_plain is not None
    parsed = ConnectionString.parse(ready.connection_string if is_tls_used else ready.connection_string_plain)
    port = int(address.rpartition(":")[2])
    return replace(parsed, port=port, entity_path=hub, is_websocket=is_websocket).format()


@pytest.fixture(params=[None, "us%er:pass:wörd"])
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[tuple[HttpProxy, str]]:
    """A proxy, and its address with the password that it asks for."""
    async with HttpProxy(credentials=request.param) as found:
        password = "" if request.param is None else "us%25er:pass%3Aw%C3%B6rd@"
        yield found, f"http://{password}{found.address}"


async def _send_and_receive(string: str, ca_file: str | None, http_proxy: str | None = None) -> None:
    async with (
        EventHubProducer.from_connection_string(string, ca_file=ca_file, http_proxy=http_proxy) as producer,
        EventHubConsumer.from_connection_string(string, ca_file=ca_file, http_proxy=http_proxy) as consumer,
    ):
        await producer.send([EventData(LARGE), EventData(b"second")], partition_id="0")
        receiver = await consumer.open_receiver("0", EventPosition.earliest())
        found: list[bytes] = []
        async with asyncio.timeout(60):
            while len(found) < 2:
                found += [event.body for event in await receiver.receive()]
        assert found == [LARGE, b"second"]


@pytest.mark.parametrize("is_tls_used", [True, False])
@pytest.mark.slow
async def test_events_travel_in_a_websocket(
    hub_service: HubService, event_hub: str, is_tls_used: bool
) -> None:
    """By the connection string alone, with TLS and without; messages larger than a frame, too."""
    string = _string(hub_service, event_hub, is_tls_used=is_tls_used)
    await _send_and_receive(string, hub_service.ready.ca_file if is_tls_used else None)


@pytest.mark.slow
@pytest.mark.parametrize("is_websocket", [True, False])
async def test_through_a_proxy(
    hub_service: HubService, event_hub: str, proxy: tuple[HttpProxy, str], is_websocket: bool
) -> None:
    """AMQP itself and in a WebSocket, with a password and without."""
    opened, address = proxy
    string = _string(hub_service, event_hub, is_tls_used=True, is_websocket=is_websocket)
    await _send_and_receive(string, hub_service.ready.ca_file, address)
    assert opened.tunnels == 2


@pytest.mark.slow
async def test_a_websocket_uses_the_proxy_of_the_environment(
    hub_service: HubService, event_hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other HTTPS clients do, unless NO_PROXY excludes the host; AMQP itself never does."""
    async with HttpProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        ca_file = hub_service.ready.ca_file
        websocket = _string(hub_service, event_hub, is_tls_used=True)
        await _send_and_receive(websocket, ca_file)
        assert proxy.tunnels == 2
        plain = _string(hub_service, hub_service.create_hub(), is_tls_used=True, is_websocket=False)
        await _send_and_receive(plain, ca_file)
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
        string = _string(hub_service, hub_service.create_hub(), is_tls_used=True)
        await _send_and_receive(string, ca_file)
        assert proxy.tunnels == 2


async def test_a_host_in_a_websocket_through_a_proxy(hub_service: HubService, event_hub: str) -> None:
    """Its options are those of the client."""
    handled = asyncio.Event()

    async def handle(context: PartitionContext, events: list[ReceivedEvent]) -> None:
        if any(event.body == b"for the host" for event in events):
            handled.set()

    string, ca_file = _string(hub_service, event_hub, is_tls_used=True), hub_service.ready.ca_file
    async with EventHubProducer.from_connection_string(string, ca_file=ca_file) as producer:
        await producer.send([EventData(b"for the host")])
    async with HttpProxy() as proxy:
        host = EventProcessorHost.from_connection_string(
            string, store=MemoryStore(SystemClock()), ca_file=ca_file, http_proxy=f"http://{proxy.address}"
        )
        async with host.running(handle), asyncio.timeout(60):
            await handled.wait()
        assert proxy.tunnels > 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:wrong@{address}", "answered 403"),
        ("http://{address}", "answered 407"),
        ("http://127.0.0.1:1", "No connection to the HTTP proxy 127.0.0.1:1"),
    ],
)
@pytest.mark.slow
async def test_a_proxy_that_refuses(hub_service: HubService, event_hub: str, url: str, message: str) -> None:
    """The error names the proxy and not the password."""
    async with HttpProxy(credentials="user:right") as proxy:
        namespace = Namespace.from_connection_string(
            _string(hub_service, event_hub, is_tls_used=True),
            ca_file=hub_service.ready.ca_file,
            http_proxy=url.format(address=proxy.address),
            timeout_s=20,
        )
        async with EventHubConsumer(replace(namespace, retry=NO_RETRY), event_hub) as consumer:
            with pytest.raises(BrokenError, match=message) as caught:
                await consumer.get_event_hub_properties()
        assert "wrong" not in str(caught.value)
        assert "wrong" not in repr(namespace)


@pytest.mark.parametrize("url", ["", "127.0.0.1:3128", "socks5://h:1", "http://:1", "http://u:secret@h:x"])
@pytest.mark.slow
def test_proxies_that_cannot_be_meant(url: str) -> None:
    """Refused before anything is opened; a password is not repeated."""
    string = "Endpoint=sb://x;SharedAccessKeyName=a;SharedAccessKey=b"
    with pytest.raises(InvalidArgumentError, match="HTTP proxy") as caught:
        Namespace.from_connection_string(string, http_proxy=url)
    assert "secret" not in str(caught.value)


async def _serve(answer: bytes) -> asyncio.Server:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(respond, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "answered 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "answered 200"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "WebSocket"),
        (b"", "without an answer|WebSocket"),
    ],
)
async def test_what_is_not_a_websocket(answer: bytes, message: str) -> None:
    """Another web server, or none: the error says what it answered and what to use instead."""
    async with await _serve(answer) as server:
        port = server.sockets[0].getsockname()[1]
        string = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b"
        parsed = ConnectionString.parse(f"{string};TransportType=AmqpWebSockets;UseDevelopmentEmulator=true")
        namespace = Namespace(
            parsed.host, port, credential_from_connection_string(parsed), retry=NO_RETRY, is_websocket=True
        )
        async with EventHubConsumer(namespace, "hub") as consumer:
            with pytest.raises((BrokenError, RemoteProtocolError), match=message):
                await consumer.get_event_hub_properties()
