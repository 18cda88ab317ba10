"""What a connection costs that only stays open: at most 50 KB of memory, as 5,000 are to be held."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import CreditGranted, DeliveriesReceived, Event, LinkAttached, LinkDetached
from tidegate.amqp.message import Message, Properties, encode_message
from tidegate.model.connection_string import ConnectionString
from tidegate.model.sas import make_sas_token
from tidegate.testing.hub import HubProcess
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request

_CONNECTIONS = 300
_BYTES_MAX = 50 * 1024
_RECEIVERS_PER_PARTITION = 5
_WAIT_S = 30.0


def _resident_bytes(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024


class _Client:
    """A blocking client with as little to it as there can be: this process holds hundreds."""

    def __init__(self, port: int, hub: str, token: str, partition: int, tls: ssl.SSLContext | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._connection = Connection(
            ConnectionConfiguration("idle", hostname="localhost", sasl_mechanism="ANONYMOUS"),
            role=Role.CLIENT,
            now=0.0,
        )
        self._connection.open()
        session = self._connection.begin_session()
        requests = session.attach_sender("requests", target="$cbs")
        responses = session.attach_receiver("responses", source="$cbs", target="client")
        responses.grant_credit(1)
        self._run_until(lambda event: isinstance(event, CreditGranted))
        message = put_token_request(PutToken(SAS_TOKEN_TYPE, f"sb://localhost/{hub}", token))
        properties = Properties(message_id="1")
        requests.send(
            encode_message(
                Message(
                    properties=properties,
                    application_properties=message.application_properties,
                    value=message.value,
                )
            )
        )
        self._run_until(lambda event: isinstance(event, DeliveriesReceived))
        source = f"{hub}/ConsumerGroups/$Default/Partitions/{partition}"
        receiver = session.attach_receiver("events", source=source, target="client")
        receiver.grant_credit(300)
        self._run_until(lambda event: isinstance(event, (LinkAttached, LinkDetached)))
        assert receiver.is_open

    def _run_until(self, is_met: Callable[[Event], bool]) -> None:
        connection = self._connection
        while True:
            if connection.has_data_to_send:
                self.socket.sendall(b"".join(connection.data_to_send()))
            while (event := connection.next_event()) is not None:
                if is_met(event):
                    if connection.has_data_to_send:
                        self.socket.sendall(b"".join(connection.data_to_send()))
                    return
            data = self.socket.recv(65536)
            assert data, "the service closed the connection"
            connection.receive_data(data, now=0.0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize("is_tls_used", [False, True], ids=["plain", "TLS"])
def test_idle_connections(is_tls_used: bool) -> None:
    """Hundreds of authorised connections with a waiting receiver each grow the service by little."""
    with HubProcess(is_tls_used=is_tls_used) as service, ExitStack() as stack:
        warm_up = 20
        partitions = -(-(_CONNECTIONS + warm_up) // _RECEIVERS_PER_PARTITION)
        hub = service.create_hub(partition_count=partitions)
        key = ConnectionString.parse(service.connection_string)
        assert key.shared_access_key_name is not None
        assert key.shared_access_key is not None
        token = make_sas_token(
            audience=f"sb://localhost/{hub}",
            key_name=key.shared_access_key_name,
            key=key.shared_access_key,
            expiry=4_000_000_000,
        )
        address = service.ready.amqps if is_tls_used else service.ready.amqp
        assert address is not None
        port = int(address.rpartition(":")[2])
        tls = ssl.create_default_context(cafile=service.ready.ca_file) if is_tls_used else None

        def connect(number: int) -> None:
            client = _Client(port, hub, token, number // _RECEIVERS_PER_PARTITION, tls)
            stack.callback(client.socket.close)

        for number in range(warm_up):
            connect(number)
        before = _resident_bytes(service.process_id)
        for number in range(warm_up, warm_up + _CONNECTIONS):
            connect(number)
        each = (_resident_bytes(service.process_id) - before) / _CONNECTIONS
    print(f"{each / 1024:.1f} KB per connection")
    assert each <= _BYTES_MAX
