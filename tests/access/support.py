"""HTTP to a service byte by byte: what clients of libraries cannot be made to send."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tidegate.model.sas import make_sas_token

EXPIRY = 4_000_000_000
WAIT_S = 60.0

Header = tuple[str, str]


class RawHttp:
    """One connection that is kept, and opened again where the service has closed it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._socket: socket.socket | None = None
        self._received = b""

    def ask(
        self,
        method: str,
        target: str,
        headers: Sequence[Header] = (),
        body: bytes = b"",
        *,
        version: str = "1.1",
    ) -> tuple[int, bytes]:
        """Status and body of the answer. Nothing is added to the headers but the body's length."""
        lines = [f"{method} {target} HTTP/{version}"]
        lines += [f"{name}: {value}" for name, value in (*headers, ("Content-Length", str(len(body))))]
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=WAIT_S)
        self._socket.sendall("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        return self._read_answer()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._received = b""

    def _read_answer(self) -> tuple[int, bytes]:
        head = self._read_until(b"\r\n\r\n")
        fields = dict(
            line.lower().split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if line
        )
        status = int(head.split(b" ", 2)[1])
        length = 0 if status in (101, 204) else int(fields["content-length"])
        while len(self._received) < length:
            self._receive()
        body, self._received = self._received[:length], self._received[length:]
        if fields.get("connection") == "close" or status == 101:
            self.close()
        return status, body

    def _read_until(self, end: bytes) -> bytes:
        while (at := self._received.find(end)) < 0:
            self._receive()
        at += len(end)
        head, self._received = self._received[:at], self._received[at:]
        return head

    def _receive(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(65536)
        assert data, f"the connection ended: {self._received[:200]!r}"
        self._received += data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def token_for(audience: str, policy: str, key: str) -> str:
    """A token whose ``sr`` means the audience after it is decoded once."""
    return make_sas_token(audience=audience, key_name=policy, key=key, expiry=EXPIRY)


def quote_all(text: str) -> str:
    """Every character percent-encoded, also those that need it not."""
    return "".join(f"%{byte:02X}" for byte in text.encode()) if text.isascii() else quote(text, safe="")
