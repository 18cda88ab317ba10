"""Bytes that are no AMQP client at the AMQP port: one clear log line each, and the service serves on."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tidegate.testing.hub import HubService

WAIT_S = 60.0
SASL_HEADER = b"AMQP\x03\x01\x00\x00"


class LogLines(logging.Handler):
    """Warnings of the gateway, with a way to wait for them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the formatted line."""
        with self._changed:
            self.lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_line(self, is_wanted: Callable[[str], bool] = lambda line: True) -> str:
        """The first line that is wanted."""
        with self._changed:
            met = self._changed.wait_for(lambda: any(is_wanted(line) for line in self.lines), WAIT_S)
        assert met, f"no such log line; there were {self.lines}"
        return next(line for line in self.lines if is_wanted(line))


@pytest.fixture
def log_lines() -> Iterator[LogLines]:
    """What the gateway warns of during the test."""
    handler = LogLines()
    logger = logging.getLogger("tidegate.gateway")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def _connect(service: HubService) -> socket.socket:
    assert service.ready.amqp is not None
    host, _, port = service.ready.amqp.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def _read_to_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def _assert_healthy(service: HubService) -> None:
    """A new client gets its protocol header back."""
    with _connect(service) as connection:
        connection.sendall(SASL_HEADER)
        assert connection.recv(8).startswith(b"AMQP")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"AMQP\x00\x09\x09\x09",
        SASL_HEADER + b"\xff" * 64,
        SASL_HEADER + struct.pack(">IBBH", 0x7FFFFFFF, 2, 1, 0),
        SASL_HEADER + struct.pack(">IBBH", 12, 2, 1, 0) + b"\x00\x53\x41\xc0",
        b"AMQP\x00\x01\x00\x00" + struct.pack(">IBBH", 16, 2, 0, 0) + b"\x00\x53\x99\xc0\x01\x00\x00\x00",
    ],
    ids=["HTTP", "TLS hello", "wrong version", "noise", "huge frame", "cut value", "unknown performative"],
)
def test_garbage_ends_that_connection_with_one_line(
    hub_service: HubService, log_lines: LogLines, sent: bytes
) -> None:
    """We close that connection, the log says once that it was the peer's fault, and others are served."""
    with _connect(hub_service) as connection:
        connection.sendall(sent)
        _read_to_end(connection)
    line = log_lines.wait_line()
    assert "peer" in line
    assert "127.0.0.1" in line
    _assert_healthy(hub_service)
    assert len(log_lines.lines) == 1, log_lines.lines


def test_vanished_clients_leave_nothing_behind(hub_service: HubService) -> None:
    """Connections that are opened, half open, or cut in the middle do not keep the service from serving."""
    for sent in (b"", b"AM", SASL_HEADER, SASL_HEADER + b"\x00\x00\x00\x20\x02\x01\x00\x00\x00"):
        with _connect(hub_service) as connection:
            connection.sendall(sent)
    half_open = _connect(hub_service)
    half_open.sendall(SASL_HEADER)
    half_open.shutdown(socket.SHUT_WR)
    _read_to_end(half_open)
    half_open.close()
    _assert_healthy(hub_service)
