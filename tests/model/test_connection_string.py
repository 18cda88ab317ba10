"""Connection strings parse as the official SDKs parse them, and never leak their key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ConnectionStringError

EMULATOR = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)


def test_the_emulators_own_string_parses() -> None:
    """People paste the string of the official emulator's page, trailing semicolon and all."""
    parsed = ConnectionString.parse(EMULATOR)
    assert parsed == ConnectionString(
        host="localhost",
        shared_access_key_name="RootManageSharedAccessKey",
        shared_access_key="SAS_KEY_VALUE",
        use_development_emulator=True,
    )
    assert parsed.effective_port == 5672


@pytest.mark.parametrize(
    ("more", "port"),
    [
        ("TransportType=AmqpWebSockets", 443),
        ("transporttype=amqpwebsockets;UseDevelopmentEmulator=true", 5300),
        ("TransportType=AmqpTcp", 5671),
    ],
)
def test_the_transport_is_that_of_nets_connection_strings(more: str, port: int) -> None:
    """A WebSocket uses the ports of HTTP unless one is given."""
    text = f"Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=s;{more}"
    parsed = ConnectionString.parse(text)
    assert (parsed.effective_port, parsed.is_websocket) == (port, "websockets" in more.lower())
    assert ConnectionString.parse(parsed.format()) == parsed
    assert ConnectionString.parse(text.replace("ns/", "ns:7/")).effective_port == 7


def test_an_azure_string_means_tls_and_its_key_may_hold_equal_signs() -> None:
    """Azure's keys are base64: they end in '='."""
    parsed = ConnectionString.parse(
        "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=YWJj+/8=;EntityPath=hub"
    )
    assert (parsed.host, parsed.effective_port) == ("ns.servicebus.windows.net", 5671)
    assert (parsed.shared_access_key, parsed.entity_path) == ("YWJj+/8=", "hub")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "environment variable"),
        ("SharedAccessKeyName=a;SharedAccessKey=secret", "Endpoint"),
        ("Endpoint=http://x/;SharedAccessKeyName=a;SharedAccessKey=secret", "Endpoint"),
        ("Endpoint=sb://x:notaport/;SharedAccessKeyName=a;SharedAccessKey=secret", "notaport"),
        ("Endpoint=sb://x:70000/;SharedAccessKeyName=a;SharedAccessKey=secret", "70000"),
        (f"Endpoint=sb://x:{'9' * 5000}/;SharedAccessKeyName=a;SharedAccessKey=secret", "port"),
        ("Endpoint=sb://x/;SharedAccessKey=secret", "only one of"),
        ("Endpoint=sb://x/;Endpoint=sb://y/;SharedAccessKeyName=a;SharedAccessKey=secret", "twice"),
        ("Endpoint=sb://x/;SharedAccessKeyNam=a;SharedAccessKey=secret", "sharedaccesskeynam"),
        ("Endpoint=sb://x/;secret", "Name=Value"),
        (
            "Endpoint=sb://x/;TransportType=secret;SharedAccessKeyName=a;SharedAccessKey=secret",
            "TransportType",
        ),
    ],
)
def test_a_bad_string_names_the_part_and_not_the_key(text: str, named: str) -> None:
    """One clear error for each way to get it wrong, and the key is in none of them."""
    with pytest.raises(ConnectionStringError) as caught:
        ConnectionString.parse(text)
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_repr_hides_secrets() -> None:
    """A connection string ends up in logs and tracebacks by its repr."""
    shown = repr(ConnectionString.parse(EMULATOR + "SharedAccessSignature=sig-value"))
    assert "SAS_KEY_VALUE" not in shown
    assert "sig-value" not in shown


_name = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1)


@given(
    host=st.one_of(_name, st.ip_addresses(v=6).map(str)),
    port=st.none() | st.integers(1, 65535),
    key=_name,
    entity_path=st.none() | _name,
    emulator=st.booleans(),
)
@pytest.mark.slow
def test_format_parses_back(
    host: str, port: int | None, key: str, entity_path: str | None, emulator: bool
) -> None:
    """What we print at start is what every client reads."""
    value = ConnectionString(host, port, "policy", key + "=", None, entity_path, emulator)
    assert ConnectionString.parse(value.format()) == value
