"""Tunnels through an HTTP proxy (CONNECT), for clients in networks where only it may connect outside.

Source: RFC 9110, section 9.3.6; Basic authentication is RFC 7617.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tidegate.model.errors import BrokenError, InvalidArgumentError

_HEAD_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """Where a proxy is, and the password that it asks for."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)
    """``user:password``."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """The proxy of ``http://[user:password@]host[:port]``; port 80 by default.

        Raises InvalidArgumentError, which does not contain the password.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or parts.scheme.lower() != "http":
            raise InvalidArgumentError(
                "The HTTP proxy is not an address that can be used.",
                next_step="Write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT.",
            )
        password = None
        if parts.username is not None:
            password = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(host, port or 80, password)

    @classmethod
    def of_environment(cls, host: str, port: int, *, is_tls_used: bool) -> Self | None:
        """The proxy that HTTPS_PROXY or HTTP_PROXY names for a WebSocket there; NO_PROXY excludes hosts.

        Raises InvalidArgumentError for one that is not an HTTP proxy.
        """
        # Imported here: clients without a WebSocket have no use for them.
        from websockets.exceptions import InvalidProxy
        from websockets.proxy import get_proxy
        from websockets.uri import parse_uri

        name = f"[{host}]" if ":" in host else host
        try:
            found = get_proxy(parse_uri(f"{'wss' if is_tls_used else 'ws'}://{name}:{port}/"))
        except InvalidProxy as error:
            raise InvalidArgumentError("The environment names a proxy that cannot be used.") from error
        return None if found is None else cls.parse(found)

    async def open_tunnel(self, host: str, port: int) -> socket.socket:
        """A socket that leads to ``host:port``.

        Raises BrokenError if the proxy cannot be reached or refuses. Cancellation: nothing stays open.
        """
        loop = asyncio.get_running_loop()
        where = f"the HTTP proxy {self.host}:{self.port}"
        try:
            kind, _, _, _, address = (await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))[
                0
            ]
            tunnel = socket.socket(kind, socket.SOCK_STREAM)
        except OSError as error:
            raise BrokenError(f"No connection to {where}: {error}.") from error
        try:
            tunnel.setblocking(False)
            await loop.sock_connect(tunnel, address)
            await loop.sock_sendall(tunnel, self._request(host, port))
            status = await _read_status(tunnel)
        except OSError as error:
            tunnel.close()
            raise BrokenError(f"No connection to {where}: {error}.") from error
        except BaseException:
            tunnel.close()
            raise
        if not status.startswith("2"):
            tunnel.close()
            what = "a user and password, or others" if status == "407" else "that it may connect there"
            raise BrokenError(
                f"No connection to {host}:{port}: {where} answered {status or 'nothing'}.",
                next_step=f"The proxy must be given {what}." if status == "407" else f"Check {what}.",
            )
        return tunnel

    def _request(self, host: str, port: int) -> bytes:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self.authorization is not None:
            lines.append(
                f"Proxy-Authorization: Basic {base64.b64encode(self.authorization.encode()).decode()}"
            )
        return "\r\n".join((*lines, "", "")).encode()


async def _read_status(tunnel: socket.socket) -> str:
    """The status code of the answer, of which nothing after its head is read; empty if it is not HTTP."""
    head = b""
    loop = asyncio.get_running_loop()
    while not head.endswith(b"\r\n\r\n"):
        # One byte at a time: what follows the head belongs to the tunnel, where the server may speak first.
        # A head has some hundred bytes, once for each connection.
        byte = await loop.sock_recv(tunnel, 1)
        head += byte
        if not byte or len(head) > _HEAD_BYTES_MAX:
            return ""
    words = head.split(b"\r\n", 1)[0].split()
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/1.") and words[1].isdigit()
    return words[1].decode() if is_http else ""
