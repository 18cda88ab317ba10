"""Who is on this machine, and means it: the development key, /metrics and WebSockets of browsers' pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.access.support import Header, RawHttp
from tests.console.support import console_service
from tests.gateway.blob_client import BlobClient

from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from tidegate.testing.hub import HubService

PROXY_HEADERS = (
    *(
        "Forwarded: for=1.2.3.4",
        "X-Forwarded-For: 1.2.3.4",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: a",
    ),
    *("X-Forwarded-Port: 443", "X-Forwarded-Server: a", "X-Forwarded: 1.2.3.4", "X-Forwarded-Client-Cert: a"),
    *("X-Real-IP: 1.2.3.4", "X-Client-IP: 1.2.3.4", "X-Original-Host: a", "X-Original-For: a", "Via: 1.1 a"),
    *(
        "X-Original-URL: /",
        "CF-Connecting-IP: 1.2.3.4",
        "CF-Ray: 1",
        "True-Client-IP: 1.2.3.4",
        "CDN-Loop: a",
    ),
    *("X-Cluster-Client-IP: 1.2.3.4", "Fastly-Client-IP: 1.2.3.4", "Fly-Client-IP: 1.2.3.4", "Client-IP: 1"),
    *("X-Envoy-External-Address: 1.2.3.4", "X-Amzn-Trace-Id: a", "X-Scheme: https", "Front-End-Https: on"),
    *("x-forwarded-for:", "X-ARR-SSL: a", "X-Azure-ClientIP: 1.2.3.4", "X-Rewrite-URL: /", "Max-Forwards: 1"),
)
NOT_LOOPBACK = (
    *(
        "evil.example",
        "evil.example:5300",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.1:5300@evil",
    ),
    *("evil@localhost", "", "localhost/x", "localhost?x", "192.168.0.1", "0.0.0.0", "gate.example", "[::2]"),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """With the development key, and a name of its own that is not loopback's."""
    directory = tmp_path_factory.mktemp("local")
    settings = {"host_names": ["gate.example"], "allowed_origins": ["https://app.example"]}
    with console_service(directory, **settings) as service:
        yield service


@pytest.fixture
def http(service: HubService) -> Iterator[RawHttp]:
    """A connection from this machine."""
    assert service.ready.http is not None
    with RawHttp(service.ready.http) as http:
        yield http


def _statuses(http: RawHttp, headers: list[Header], *, version: str = "1.1") -> tuple[int, int]:
    """Of the console, which signs in by itself, and of /metrics, without a token."""
    statuses = []
    for path in ("/", "/metrics"):
        statuses.append(http.ask("GET", path, headers, version=version)[0])
        http.close()
    return statuses[0], statuses[1]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5300", "127.0.0.1", "127.8.8.8:1", "[::1]:5300"])
def test_loopback_needs_nothing(http: RawHttp, host: str) -> None:
    """Development stays as it is: the console opens, and Prometheus scrapes."""
    assert _statuses(http, [("Host", host)]) == (200, 200)


@pytest.mark.parametrize("header", PROXY_HEADERS)
@pytest.mark.slow
def test_what_a_proxy_passes_on_is_from_elsewhere(http: RawHttp, header: str) -> None:
    """Any header of any proxy is enough, whatever it says: its client may be anybody."""
    name, _, value = header.partition(":")
    assert _statuses(http, [("Host", "localhost"), (name, value.strip())]) == (303, 401)


@pytest.mark.parametrize("host", NOT_LOOPBACK)
def test_a_name_that_is_not_loopbacks_is_from_elsewhere(http: RawHttp, host: str) -> None:
    """DNS rebinding: a page of evil.example, whose name points here now, still says its name. The service's
    own name does not count, either: a proxy on this machine may have kept it.
    """
    assert _statuses(http, [("Host", host)]) == (303, 401)


def test_absolute_targets_say_their_host_themselves(http: RawHttp) -> None:
    """The host of the target is the one that counts (RFC 9112 section 3.2.2)."""
    for target, host, expected in (
        ("http://evil.example/metrics", "localhost", 401),
        ("http://localhost/metrics", "evil.example", 200),
    ):
        assert http.ask("GET", target, [("Host", host)])[0] == expected


def test_http_1_0_is_a_proxys(http: RawHttp) -> None:
    """nginx's proxy_pass speaks it where nothing else is configured, and adds no header."""
    assert _statuses(http, [("Host", "localhost")], version="1.0") == (303, 401)


def test_a_trusted_proxy_is_never_this_machine(tmp_path: Path) -> None:
    """With the setting no header is needed."""
    with console_service(tmp_path, trusted_proxies=["127.0.0.0/8"]) as service:
        assert service.ready.http is not None
        with RawHttp(service.ready.http) as http:
            assert _statuses(http, [("Host", "localhost")]) == (303, 401)
            for name in ("X-Forwarded-For", "Forwarded"):
                headers = [("Host", "localhost"), (name, "for=127.0.0.1" if name == "Forwarded" else "::1")]
                assert _statuses(http, headers) == (303, 401), name


def _development_status(service: HubService, headers: list[Header]) -> int:
    """Of a container in the development account, whose key is public."""
    assert service.ready.http is not None
    client = BlobClient(service.ready.http, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)
    return client.ask("GET", "/absent", {"restype": "container"}, dict(headers)).status


@pytest.mark.parametrize("header", PROXY_HEADERS)
@pytest.mark.slow
def test_a_proxy_does_not_open_the_development_account(service: HubService, header: str) -> None:
    """Nor does a name that is not loopback's; a program on this machine needs only the public key."""
    name, _, value = header.partition(":")
    assert _development_status(service, [("Host", "localhost")]) == 404
    assert _development_status(service, [("Host", "localhost"), (name, value.strip())]) == 403
    assert _development_status(service, [("Host", "evil.example")]) == 403


@pytest.mark.parametrize(("setting", "statuses"), [("off", (403, 403)), ("everywhere", (404, 404))])
def test_a_setting_says_who_has_the_development_account(
    tmp_path: Path, setting: str, statuses: tuple[int, int]
) -> None:
    """Nobody, or everybody."""
    with console_service(tmp_path, development_account=setting) as service:
        assert statuses == (
            _development_status(service, [("Host", "localhost")]),
            _development_status(service, [("Host", "elsewhere.example")]),
        )


def _websocket_status(http: RawHttp, headers: list[Header]) -> int:
    handshake = [
        *headers,
        *(("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")),
        *(("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="), ("Sec-WebSocket-Protocol", "AMQPWSB10")),
    ]
    status, _ = http.ask("GET", "/$servicebus/websocket", handshake)
    http.close()
    return status


@pytest.mark.parametrize(
    ("host", "origins", "status"),
    [
        ("localhost:5300", [], 101),
        ("localhost:5300", ["http://localhost:5300"], 101),
        ("gate.example", ["http://gate.example"], 101),
        ("localhost:5300", ["https://app.example"], 101),
        ("localhost:5300", ["https://evil.example"], 403),
        ("localhost:5300", ["http://localhost:3000"], 403),
        ("evil.example", ["http://evil.example"], 403),
        ("localhost:5300", ["null"], 403),
        ("localhost:5300", [""], 403),
        ("localhost:5300", ["http://localhost:5300", "https://evil.example"], 403),
        ("localhost:5300", ["https://evil.example", "http://localhost:5300"], 403),
    ],
)
def test_pages_of_other_sites_open_no_websocket(
    http: RawHttp, host: str, origins: list[str], status: int
) -> None:
    """A page that somebody looks at on this machine cannot use the development key through the browser."""
    headers = [("Host", host), *(("Origin", origin) for origin in origins)]
    assert _websocket_status(http, headers) == status
