"""Origins: whose pages may open WebSockets, and no name that somebody else made point here."""

from __future__ import annotations

import pytest

from tidegate.gateway.http.origins import AllowedOrigins
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hosts import HostNames

ORIGINS = AllowedOrigins.parse(["https://App.example.org", "http://localhost:3000", "capacitor://localhost"])
OWN_NAMES = HostNames.of(["gate.example.org", "*.example.net"])


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://app.example.org", "127.0.0.1:5300"),
        ("https://app.example.org:443", "anything"),
        ("http://localhost:3000", "localhost:5300"),
        ("capacitor://localhost", "localhost:5300"),
        ("http://localhost:5300", "localhost:5300"),
        ("http://LOCALHOST", "localhost:80"),
        ("http://127.0.0.1:5300", "127.0.0.1:5300"),
        ("http://[::1]:5300", "[::1]:5300"),
        ("http://192.168.7.7:5300", "192.168.7.7:5300"),
        ("http://tidegate:5300", "tidegate:5300"),
        ("http://gate.example.org:5300", "Gate.example.org:5300"),
        ("https://log.example.com", "log.example.com"),
    ],
)
def test_pages_of_this_service_and_of_allowed_sites_are_admitted(origin: str, host: str) -> None:
    """azure-eventhub's WebSockets say the very address that they connect to (websocket-client 1.9)."""
    assert ORIGINS.admits(origin, host, OWN_NAMES)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "localhost:5300"),
        ("http://evil.example:5300", "evil.example:5300"),
        ("http://evil.", "evil."),
        ("http://sub.example.net", "sub.example.net"),
        ("http://localhost:3001", "localhost:5300"),
        ("http://localhost", "localhost:5300"),
        ("https://localhost:3000", "localhost:5300"),
        ("http://app.example.org", "127.0.0.1"),
        ("http://localhost:5300@evil.example", "localhost:5300"),
        ("http://localhost:5300.evil.example", "localhost:5300"),
        ("null", "null"),
        ("", ""),
        ("localhost:5300", "localhost:5300"),
        ("file://", ""),
        ("http://localhost:5300/path", "localhost:5300/path"),
        ("chrome-extension://abc", "abc"),
    ],
)
def test_pages_of_other_sites_are_not(origin: str, host: str) -> None:
    """Nor those of a name with a dot that may be anybody's, by plain HTTP: it may point here for a trick."""
    assert not ORIGINS.admits(origin, host, OWN_NAMES)


@pytest.mark.parametrize(
    "text", ["", "*", "app.example.org", "https://", "https://a/b", "https://u@a", "null"]
)
def test_what_is_no_origin_is_refused_as_a_setting(text: str) -> None:
    """As browsers send it, or not at all."""
    with pytest.raises(InvalidArgumentError, match="allowed origin"):
        AllowedOrigins.parse([text])
