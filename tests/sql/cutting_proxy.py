"""A proxy in front of PostgreSQL or MariaDB that cuts the line around a COMMIT."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum


class Cut(Enum):
    """When the line is cut."""

    BEFORE_COMMIT = "COMMIT does not arrive"
    AFTER_COMMIT = "COMMIT is carried out, its answer does not arrive"
    WITH_COMMIT = "COMMIT is sent on, and the line cut at once: either may be"


class CuttingProxy:
    """Forwards TCP connections; when armed, cuts the one that sends COMMIT after it wrote, once."""

    def __init__(self, target_port: int, *, on_cut: Callable[[], None] = lambda: None) -> None:
        """on_cut: called once it has cut, before the client notices."""
        self._target_port = target_port
        self._on_cut = on_cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.armed: Cut | None = None
        self.cuts = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Cut everything and wait for the threads."""
        # A listener that is only closed does not wake its accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._sockets):
            _cut(connection)
        for thread in list(self._threads):
            thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                _cut(client)
                continue
            self._sockets += [client, server]
            swallowing = threading.Event()
            for forward in (self._to_server, self._to_client):
                thread = threading.Thread(target=forward, args=(client, server, swallowing))
                self._threads.append(thread)
                thread.start()

    def _to_server(self, client: socket.socket, server: socket.socket, swallowing: threading.Event) -> None:
        has_written = False
        while data := _receive(client):
            armed = self.armed
            has_written = has_written or b"INSERT" in data or b"UPDATE" in data or b"COPY" in data
            if armed is not None and has_written and (b"COMMIT\0" in data or data.endswith(b"\x03COMMIT")):
                self.armed = None
                self.cuts += 1
                if armed is Cut.AFTER_COMMIT:
                    swallowing.set()
                if armed is not Cut.BEFORE_COMMIT:
                    with suppress(OSError):
                        server.sendall(data)
                if armed is not Cut.AFTER_COMMIT:
                    self._on_cut()
                    break
            else:
                with suppress(OSError):
                    server.sendall(data)
        if not swallowing.is_set():
            _cut(client)
            _cut(server)

    def _to_client(self, client: socket.socket, server: socket.socket, swallowing: threading.Event) -> None:
        while data := _receive(server):
            if swallowing.is_set():
                # This is the answer to COMMIT: the transaction is done, and the client never hears of it.
                self._on_cut()
                break
            with suppress(OSError):
                client.sendall(data)
        _cut(client)
        _cut(server)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
