"""Guessing keys: every door answers wrong ones later and later, and counts them; right ones do not wait."""

from __future__ import annotations

import re
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.utils import formatdate
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import create_connection
from typing import TypeVar
from urllib.parse import urlencode

import pytest

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    Event,
)
from tidegate.amqp.message import Message, decode_message, encode_message
from tidegate.broker import ROOT_POLICY_NAME, attempts
from tidegate.broker import Door as BrokerDoor
from tidegate.broker.blobs.accounts import account_name
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.management import ManagementRequest, Operation
from tidegate.wire.request_response import Response

HUB = "guarded"
RIGHT = "the right key, which has as many bytes as it should have"
POLICIES = {
    "put-token": "by-token",
    "plain": "by-plain",
    "http": "by-http",
    "admin": "by-admin",
    "management": "by-request",
}
WAIT_S = 60.0

E = TypeVar("E", bound=Event)


@pytest.fixture(autouse=True)
def _usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a service has, whatever other tests of the run have set."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 5)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HubService]:
    """A service of its own: its failures begin at 0, and each door has a policy."""

    async def create(server: TidegateServer) -> None:
        await server.broker.create_event_hub(HUB, partition_count=1)
        for name in (*POLICIES.values(), "other"):
            await server.broker.create_policy(None, name, list(server.broker.policies()[0].claims), key=RIGHT)

    with HubService(tmp_path / "data", is_http_used=True, is_tls_used=True, root_key=RIGHT) as service:
        service.call(create)
        yield service


def _token(name: str, key: str) -> str:
    return make_sas_token(audience=f"sb://127.0.0.1/{HUB}", key_name=name, key=key, expiry=4_000_000_000)


class _Client:
    """An AMQP client's engine on a socket."""

    def __init__(self, service: HubService, **options: object) -> None:
        assert service.ready.amqp is not None
        host, _, port = service.ready.amqp.rpartition(":")
        self._socket = create_connection((host, int(port)), timeout=WAIT_S)
        configuration = ConnectionConfiguration("client", **options)  # type: ignore[arg-type]
        self.engine = Connection(configuration, role=Role.CLIENT, now=0.0)
        self.engine.open()

    def wait(self, *kinds: type[E]) -> E:
        """The next event of these kinds."""
        while True:
            self._socket.sendall(b"".join(self.engine.data_to_send()))
            while (event := self.engine.next_event()) is not None:
                if isinstance(event, kinds):
                    return event
            if self.engine.is_finished:
                raise ConnectionResetError
            data = self._socket.recv(65536)
            if data:
                self.engine.receive_data(data, now=0.0)
            else:
                self.engine.receive_eof(now=0.0)

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def _request(service: HubService, node: str, request: Message) -> int:
    with closing(_Client(service, sasl_mechanism="ANONYMOUS")) as client:
        session = client.engine.begin_session()
        requests = session.attach_sender("requests", target=node)
        answers = session.attach_receiver("answers", source=node, target="client")
        answers.grant_credit(1)
        client.wait(CreditGranted)
        requests.send(encode_message(request))
        (delivery,) = client.wait(DeliveriesReceived).deliveries
    return Response.from_message(decode_message(delivery.payload)).status_code


def _put_token(service: HubService, name: str, key: str) -> int:
    token = PutToken(SAS_TOKEN_TYPE, f"sb://127.0.0.1/{HUB}", _token(name, key))
    return _request(service, "$cbs", put_token_request(token))


def _manage(service: HubService, name: str, key: str) -> int:
    """With the token in the request itself, as the Java processor asks."""
    request = ManagementRequest(Operation.READ_EVENT_HUB, HUB, security_token=_token(name, key))
    return _request(service, "$management", request.to_message())


def _plain(service: HubService, name: str, key: str) -> int:
    options = {"sasl_mechanism": "PLAIN", "sasl_initial_response": f"\0{name}\0{key}".encode()}
    with closing(_Client(service, **options)) as client:
        ended = client.wait(ConnectionOpened, ConnectionFailed, ConnectionClosed)
    return 202 if isinstance(ended, ConnectionOpened) else 401


def _ask(service: HubService, method: str, path: str, body: str, headers: dict[str, str]) -> HTTPResponse:
    assert service.ready.http is not None
    with closing(HTTPConnection(service.ready.http, timeout=WAIT_S)) as connection:
        connection.request(method, path, body, {"Connection": "close", **headers})
        response = connection.getresponse()
        response.read()
    return response


def _http(service: HubService, name: str, key: str) -> int:
    headers = {"Authorization": _token(name, key)}
    return _ask(service, "POST", f"/{HUB}/messages", "x", headers).status


def _admin(service: HubService, name: str, key: str) -> int:
    return _ask(service, "GET", f"/api/v1/event-hubs/{HUB}", "", {"Authorization": _token(name, key)}).status


def _console(service: HubService, name: str, key: str) -> int:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return _ask(service, "POST", "/console/sign-in", urlencode({"policy": name, "key": key}), headers).status


def _console_link(service: HubService, name: str, key: str) -> int:
    return _ask(service, "GET", f"/console/sign-in?{urlencode({'link': key})}", "", {}).status


def _blobs(service: HubService, name: str, key: str) -> int:
    account, signature = account_name(None), b64encode(key.encode()).decode()
    headers = {"Authorization": f"SharedKey {account}:{signature}", "x-ms-date": formatdate(usegmt=True)}
    return _ask(service, "GET", f"/{account}/store?restype=container", "", headers).status


Door = Callable[[HubService, str, str], int]
DOORS: list[tuple[Door, str, str]] = [
    (_put_token, "by-token", "amqp"),
    (_manage, "by-request", "amqp"),
    (_plain, "by-plain", "amqp"),
    (_http, "by-http", "http"),
    (_admin, "by-admin", "http"),
    (_console, "other", "console"),
]


def _metric(service: HubService, name: str) -> float:
    assert service.ready.http is not None
    connection = HTTPConnection(service.ready.http, timeout=WAIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf"^tidegate_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.parametrize(("door", "policy", "label"), DOORS)
@pytest.mark.slow
def test_wrong_keys_are_answered_later_and_later(
    service: HubService, door: Door, policy: str, label: str
) -> None:
    """After five the answers take 0.1, 0.2 and 0.4 s at least; a right key does not wait, and is let in."""
    accepted = door(service, policy, RIGHT)
    assert accepted in (200, 201, 202, 303)
    refused = {door(service, policy, f"wrong {number}") for number in range(5)}
    assert refused <= {401, 403}
    begun_at = time.monotonic()
    for number in range(3):
        assert door(service, policy, f"wrong again {number}") in refused
    assert time.monotonic() - begun_at >= 0.7
    assert door(service, policy, RIGHT) == accepted
    assert _metric(service, f'authentication_failures_total{{door="{label}"}}') == 8.0


@pytest.mark.slow
@pytest.mark.parametrize(("door", "policy", "label"), DOORS)
def test_a_right_key_does_not_wait_behind_wrong_ones(
    service: HubService, door: Door, policy: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let in while a wrong one's answer is outstanding. Many of those have keys refused unseen, at that
    policy only, until their answers are out.
    """
    monkeypatch.setattr(attempts, "FREE_FAILURES", 0)
    monkeypatch.setattr(attempts, "DELAY_S_FIRST", 30.0)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 30.0)
    monkeypatch.setattr(attempts, "WAITING_MAX", 3)
    failures = f'authentication_failures_total{{door="{label}"}}'
    threads = []
    for number in range(3):
        assert door(service, policy, RIGHT) in (200, 201, 202, 303)
        thread = threading.Thread(target=_ignoring_its_end, args=(door, service, policy, f"wrong {number}"))
        thread.daemon = True
        thread.start()
        threads.append(thread)
        while _metric(service, failures) <= number:
            time.sleep(0.01)
    assert all(thread.is_alive() for thread in threads)
    busy = 401 if door is _plain else 429  # SASL has no word for it
    assert door(service, policy, RIGHT) == busy
    assert door(service, ROOT_POLICY_NAME, RIGHT) in (200, 201, 202, 303)
    service.stop()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.slow
def test_a_late_answer_comes_before_the_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with an old key reads that its key is wrong, not that its connection was inactive, though the
    delay is longer than the time that it has for its first token.
    """
    monkeypatch.setattr(attempts, "FREE_FAILURES", 0)
    monkeypatch.setattr(attempts, "DELAY_S_FIRST", 600.0)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 600.0)
    config = tmp_path / "config.toml"
    config.write_text("authentication_timeout_s = 2.0")
    with HubService(tmp_path / "data", config=config, root_key=RIGHT) as service:
        assert _put_token(service, ROOT_POLICY_NAME, "wrong") == 401


@pytest.mark.slow
@pytest.mark.parametrize("door", [_http, _admin, _console, _console_link, _blobs])
def test_a_late_answer_over_http_keeps_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: Door
) -> None:
    """Delayed answers would take all the places of clients without a token."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 0)
    monkeypatch.setattr(attempts, "DELAY_S_FIRST", 600.0)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 600.0)
    config = tmp_path / "config.toml"
    config.write_text("connections_without_token_max = 1")

    async def count(server: TidegateServer) -> int:
        return sum(server.broker.key_guard.failures(each) for each in BrokerDoor)

    with HubService(tmp_path / "data", is_http_used=True, config=config, root_key=RIGHT) as service:
        arguments = (door, service, ROOT_POLICY_NAME, "wrong")
        thread = threading.Thread(target=_ignoring_its_end, args=arguments, daemon=True)
        thread.start()
        while not service.call(count):
            assert thread.is_alive()
            time.sleep(0.01)
        assert _admin(service, ROOT_POLICY_NAME, RIGHT) == 404  # there is no such hub
        thread.join(WAIT_S)
        assert not thread.is_alive()


def _ignoring_its_end(door: Door, service: HubService, policy: str, key: str) -> None:
    with suppress(OSError, AssertionError):  # the service stops while it waits
        door(service, policy, key)


def test_a_refusal_says_when_to_try_again(service: HubService, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole seconds, as HTTP has it."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 0)
    monkeypatch.setattr(attempts, "DELAY_S_FIRST", 0.5)
    monkeypatch.setattr(attempts, "WAITING_MAX", 0)
    assert _http(service, "by-http", "wrong") == 401
    monkeypatch.setattr(attempts, "WAITING_MAX", 1)
    monkeypatch.setattr(attempts, "DELAY_S_FIRST", 20.0)
    thread = threading.Thread(
        target=_ignoring_its_end, args=(_http, service, "by-http", "wrong"), daemon=True
    )
    thread.start()
    while _metric(service, 'authentication_failures_total{door="http"}') < 2:
        time.sleep(0.01)
    response = _ask(service, "POST", f"/{HUB}/messages", "x", {"Authorization": _token("by-http", RIGHT)})
    assert (response.status, response.getheader("Retry-After")) == (429, "10")
    service.stop()
    thread.join(WAIT_S)


@pytest.mark.parametrize("face", ["amqps", "https"])
@pytest.mark.slow
def test_failed_tls_handshakes_are_counted(service: HubService, face: str) -> None:
    """Of a client that does not know the certificate's authority, and of one that speaks no TLS."""
    address = getattr(service.ready, face)
    host, _, port = address.rpartition(":")
    with create_connection((host, int(port)), timeout=WAIT_S) as connection, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")
    with create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while connection.recv(1024):
            pass
    while _metric(service, "tls_handshake_failures_total") < 2:
        time.sleep(0.01)
    assert _metric(service, "tls_handshake_failures_total") == 2.0
