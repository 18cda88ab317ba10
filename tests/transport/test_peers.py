"""Peers: whose address counts behind proxies, and whose word about it is not believed."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.transport import peers
from tidegate.transport.peers import TrustedProxies, _said_of, address_in, parse_address, site_in

PROXIES = TrustedProxies.parse(["10.0.0.0/8", "fd00::7"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unknown", None),
        ("_hidden", None),
        ("", None),
        (None, None),
    ],
)
def test_address_is_read_in_each_form_that_peers_and_headers_use(
    text: str | None, address: str | None
) -> None:
    """One peer has one address, however it is written: limits and trust compare equal values."""
    assert parse_address(text) == (None if address is None else ip_address(address))


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        # Nobody else's word counts.
        ("192.0.2.9", [("x-forwarded-for", "198.51.100.1")], "192.0.2.9"),
        ("127.0.0.1", [("x-forwarded-for", "198.51.100.1")], "127.0.0.1"),
        # What the client itself wrote stands left of what the proxy added.
        ("10.0.0.1", [("x-forwarded-for", "127.0.0.1, 198.51.100.1")], "198.51.100.1"),
        ("10.0.0.1", [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "198.51.100.1")], "198.51.100.1"),
        # Two proxies in a row.
        ("10.0.0.1", [("x-forwarded-for", "1.1.1.1, 198.51.100.1, 10.9.9.9")], "198.51.100.1"),
        ("fd00::7", [("x-forwarded-for", "198.51.100.1:5555")], "198.51.100.1"),
        ("10.0.0.1", [("forwarded", 'for=1.1.1.1, For="[2001:db8::17]:4711";proto=https')], "2001:db8::17"),
        # A client can send Forwarded through a proxy that knows only X-Forwarded-For, and the other way.
        ("10.0.0.1", [("forwarded", "for=127.0.0.1"), ("x-forwarded-for", "198.51.100.1")], None),
        ("10.0.0.1", [("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=198.51.100.1")], None),
        ("10.0.0.1", [("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=198.51.100.1")], None),
        ("10.0.0.1", [("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=unknown")], None),
        ("10.0.0.1", [("x-forwarded-for", "6.6.6.6, 1.1.1.1"), ("forwarded", 'for="1.1.1.1:80"')], "1.1.1.1"),
        # A proxy quotes the Host that its client has chosen; the client may begin a quotation of its own.
        ("10.0.0.1", [("forwarded", 'proto=http;host="a;for=6.6.6.6;b";for=1.1.1.1')], "1.1.1.1"),
        ("10.0.0.1", [("forwarded", 'for=1.1.1.1;host="a,for=6.6.6.6"')], "1.1.1.1"),
        ("10.0.0.1", [("forwarded", r'for=1.1.1.1;host="a\",for=6.6.6.6;b\\"')], "1.1.1.1"),
        ("10.0.0.1", [("forwarded", 'for=6.6.6.6;x=", for="1.1.1.1";host="a,b"')], "1.1.1.1"),
        # Nothing, or nothing that is an address: the last proxy known.
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [("x-forwarded-for", "198.51.100.1, unknown, 10.9.9.9")], "10.9.9.9"),
        ("10.0.0.1", [("x-forwarded-for", "10.1.1.1, 10.2.2.2")], "10.1.1.1"),
    ],
)
def test_client_address_is_what_trusted_proxies_wrote(
    peer: str, headers: list[tuple[str, str]], expected: str | None
) -> None:
    """No client chooses the address that its limits and rights are taken from."""
    raw = [(name.encode(), value.encode()) for name, value in headers]
    assert PROXIES.client_address(ip_address(peer), raw) == (
        None if expected is None else ip_address(expected)
    )


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("192.0.2.9", [("x-forwarded-proto", "https")], False),
        ("10.0.0.1", [], False),
        ("10.0.0.1", [("x-forwarded-proto", "https")], True),
        ("10.0.0.1", [("x-forwarded-proto", "https, http")], False),
        ("10.0.0.1", [("x-forwarded-proto", "http"), ("x-forwarded-proto", "HTTPS")], True),
        ("10.0.0.1", [("forwarded", 'for=1.1.1.1;proto=http, for=1.1.1.1;Proto="https"')], True),
        ("10.0.0.1", [("forwarded", "for=1.1.1.1;proto=https"), ("forwarded", "for=1.1.1.1")], False),
        # A client sends the one that the proxy does not write, before or behind the other.
        ("10.0.0.1", [("x-forwarded-proto", "http"), ("forwarded", "proto=https")], False),
        ("10.0.0.1", [("forwarded", "proto=https"), ("x-forwarded-proto", "http")], False),
        ("10.0.0.1", [("x-forwarded-proto", "https"), ("forwarded", "for=1.1.1.1;proto=http")], False),
        ("10.0.0.1", [("forwarded", 'proto=http;host="a,proto=https"')], False),
        # A header without a scheme says nothing.
        ("10.0.0.1", [("x-forwarded-proto", "https"), ("forwarded", "for=1.1.1.1")], True),
        ("10.0.0.1", [("x-forwarded-proto", ""), ("forwarded", "proto=https")], True),
    ],
)
def test_scheme_is_what_trusted_proxies_wrote(
    peer: str, headers: list[tuple[str, str]], expected: bool
) -> None:
    """No client makes plain HTTP look like HTTPS, for which alone a signature may be."""
    raw = [(name.encode(), value.encode()) for name, value in headers]
    assert PROXIES.is_https(ip_address(peer), raw) is expected


def test_few_elements_of_many_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the loop from a stranger behind a proxy: 60 KB of commas took 14 ms."""
    read: list[str] = []

    def said_of(what: str, element: str) -> str:
        read.append(element)
        return _said_of(what, element)

    monkeypatch.setattr(peers, "_said_of", said_of)
    value = b", for=192.0.2.9" + b"," * 10_000 + b"for=192.0.2.1, for=10.0.0.8"
    found = PROXIES.client_address(ip_address("10.0.0.7"), [(b"forwarded", value)])
    assert (found, len(read)) == (ip_address("192.0.2.1"), 2)


@pytest.mark.parametrize(("name", "hop"), [(b"x-forwarded-for", "10.0.0.2"), (b"forwarded", "for=10.0.0.2")])
def test_few_proxies_of_many_are_read(monkeypatch: pytest.MonkeyPatch, name: bytes, hop: str) -> None:
    """A client in a trusted network says that thousands were in a row: before a token, on the event loop."""
    read: list[str | None] = []

    def parse(text: str | None) -> peers.IpAddress | None:
        read.append(text)
        return parse_address(text)

    monkeypatch.setattr(peers, "parse_address", parse)
    headers = [(name, ",".join([hop.replace("10.0.0.2", "198.51.100.1"), *[hop] * 1_000]).encode())]
    assert str(PROXIES.client_address(parse_address("10.0.0.1"), headers)) == "10.0.0.2"
    assert len(read) < 50


@pytest.mark.parametrize("name", ["proxy.example.org", "10.0.0.1/8", "", "10.0.0.0/33"])
def test_trusted_proxy_must_be_an_address_or_a_network(name: str) -> None:
    """A typing mistake does not silently trust nobody, or too many."""
    with pytest.raises(InvalidArgumentError, match="trusted proxy"):
        TrustedProxies.parse([name])


def test_the_name_of_an_unknown_client_is_whole_over_websockets() -> None:
    """It is no address, so it shares no address's limits, and says behind which proxy it is."""
    assert address_in("unknown-behind-10.0.0.1:0 (WebSocket)") == "unknown-behind-10.0.0.1"
    assert address_in("unknown-behind-::1:0 (WebSocket)") == "unknown-behind-::1"
    assert site_in("unknown-behind-10.0.0.1:0 (WebSocket)") is None
