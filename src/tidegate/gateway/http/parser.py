"""The parser of HTTP requests: h11, which gets received bytes in pieces that are cheap whatever they contain.

h11 parses a whole head or trailer at once, at some microseconds per line, and a chunk of a body costs as
much. So a piece has at most ``PIECE_LINES_MAX`` line ends and ``HEAD_BYTES_MAX`` bytes, except in a body of
known length, and h11 never holds more than a head of the largest size. A request is checked before the
application gets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import h11
import h11._readers as h11_readers

HEAD_BYTES_MAX: Final = 16 * 1024
"""Of a request's head, and of a trailer (our choice: h11's own limit, which counts only while one is
incomplete)."""

HEADERS_MAX: Final = 100
"""Headers of a request (our choice, as Apache and Java's servers have it)."""

TARGET_BYTES_MAX: Final = 8 * 1024
"""Of a request's path and query (our choice; RFC 9112 section 3 asks for 8,000 at least)."""

PARAMETERS_MAX: Final = 100
"""Of a query (our choice: pages have about 20)."""

PIECE_LINES_MAX: Final = 64
"""Line ends of a piece (our choice: 32 chunks of a body take h11 and uvicorn 0.3 ms)."""

BODY_PIECE_BYTES_MAX: Final = 256 * 1024
"""Of a piece of a body whose length is known: it is only copied."""

_HELD_PER_HEADER: Final = 300
"""Memory in bytes that a header takes in h11, uvicorn and the application, beside one and a half times its
size (measured: 280, and 1.3)."""

_LINES_MAX: Final = 2 * PIECE_LINES_MAX
"""Line ends that h11 may hold before it has an event: those of the longest head, and of the piece's rest."""

_RECEIVING: Final = (h11.IDLE, h11.SEND_BODY, h11.DONE)
LENGTHS: Final = (b"content-length", b"transfer-encoding")
_AUTHORITY_END: Final = re.compile(rb"[/?]")

# h11 0.16 divides a run of blanks before a byte that no value may have in every way: 16 KB of a head took
# 1.5 s, of a chunk's extension 0.3 s. Possessive quantifiers match the same, but for a carriage return in an
# extension. Run tests/gateway/test_parser.py before you raise h11's bound.
h11_readers.header_field_re = re.compile(h11_readers.header_field_re.pattern.replace(rb"[ \t]*", rb"[ \t]*+"))
h11_readers.chunk_header_re = re.compile(h11_readers.chunk_header_re.pattern.replace(rb";.*", rb";[^\r\n]*+"))


class RequestParser(h11.Connection):
    """The server's end of a connection. Reports the names of each request's headers as sent, because ASGI has
    them only in lower case. Converts every request target to origin form.
    """

    def __init__(
        self, on_head: Callable[[h11.Request, dict[str, str]], None], is_time_over: Callable[[], bool]
    ) -> None:
        """on_head: called with each request and the names of its headers; may ``refuse`` it. is_time_over:
        whether a slice must end.
        """
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self.refusal: tuple[int, str] | None = None
        """Status and text of the answer to what cannot be parsed; None: it is not HTTP."""
        self.head_held_bytes = 0
        """Memory that the last request's target and headers take while it runs."""
        self.is_held = False
        """Whether to begin no further request: bytes behind the last one wait."""
        self._on_head = on_head
        self._is_time_over = is_time_over
        self._received = b""
        self._start = 0
        """Where in ``_received`` the next piece starts."""
        self._is_slice_begun = False
        self._needs_data = True
        """Whether h11 can do nothing with what it has."""
        self._fed_bytes = self._fed_lines = 0
        """What h11 was given since its last event."""
        self._body_left = 0
        """Bytes to come of a body of known length."""

    @property
    def has_received(self) -> bool:
        """Whether bytes wait to be parsed."""
        return self._start < len(self._received)

    @property
    def received_bytes(self) -> int:
        """Bytes kept of what waits to be parsed."""
        return len(self._received)

    @property
    def has_rest(self) -> bool:
        """Whether bytes follow the last event."""
        return self.has_received or len(self.trailing_data[0]) > 0

    @property
    def has_work(self) -> bool:
        """Whether they can be parsed now: those behind a complete request wait for the end of its answer."""
        is_parsed = self.their_state in (h11.IDLE, h11.SEND_BODY) and not self._is_held_now
        return self.has_received and is_parsed

    @property
    def _is_held_now(self) -> bool:
        return self.is_held and self.their_state is h11.IDLE

    def begin_slice(self) -> None:
        """Parse until the time is over; one piece at least."""
        self._is_slice_begun = False

    def discard_received(self) -> None:
        """Forget the bytes that wait."""
        self._received, self._start = b"", 0

    def receive_data(self, data: bytes) -> None:
        """Add received bytes."""
        self._received = self._received[self._start :] + data if self.has_received else data
        self._start = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's; NEED_DATA as well when the slice is over, and while requests are held.

        Raises h11.RemoteProtocolError for what is not HTTP, and for a refused request.
        """
        if self._is_held_now:
            return h11.NEED_DATA
        while True:
            if self._needs_data and not self._feed():
                return h11.NEED_DATA
            event = super().next_event()
            self._needs_data = event is h11.NEED_DATA
            if event is h11.PAUSED:
                return event
            if event is not h11.NEED_DATA:
                break
        self._fed_bytes = self._fed_lines = 0
        if isinstance(event, h11.Data):
            self._body_left = max(0, self._body_left - len(event.data))
        elif isinstance(event, h11.Request):
            return self._checked(event)
        return event

    def refuse(self, status: int, text: str) -> None:
        """Raise h11.RemoteProtocolError, after which the connection ends with this answer."""
        self.refusal = (status, text)
        raise h11.RemoteProtocolError(text)

    def _feed(self) -> bool:
        """Give h11 the next piece; returns whether there was one."""
        if not self.has_received or self.their_state not in _RECEIVING:
            return False
        if self._is_slice_begun and self._is_time_over():
            return False
        self._is_slice_begun = True
        start = self._start
        body_bytes = min(self._body_left, BODY_PIECE_BYTES_MAX)
        end = start + body_bytes if body_bytes else self._end_of_lines()
        super().receive_data(self._received[start:end])
        self._start = end
        if not self.has_received:
            self.discard_received()
        return True

    def _end_of_lines(self) -> int:
        """Where the next piece ends; counts what is in it."""
        if self._fed_lines >= _LINES_MAX or self._fed_bytes >= HEAD_BYTES_MAX:
            self._refuse_head()
        received, start = self._received, self._start
        until = min(len(received), start + HEAD_BYTES_MAX - self._fed_bytes)
        end = start
        for _ in range(PIECE_LINES_MAX):
            at = received.find(b"\n", end, until)
            if at < 0:
                end = until
                break
            end = at + 1
            self._fed_lines += 1
        self._fed_bytes += end - start
        return end

    def _checked(self, request: h11.Request) -> h11.Request:
        headers = request.headers.raw_items()
        if len(headers) > HEADERS_MAX:
            self._refuse_head()
        if len(request.target) > TARGET_BYTES_MAX:
            self.refuse(414, f"The path and query have more than {TARGET_BYTES_MAX} bytes.")
        if request.target.count(b"&") >= PARAMETERS_MAX:
            self.refuse(400, f"The query has more than {PARAMETERS_MAX} parameters.")
        head_bytes = len(request.target) + sum(len(name) + len(value) for name, value in headers)
        self.head_held_bytes = _HELD_PER_HEADER * len(headers) + head_bytes * 3 // 2
        lengths = {name: value for name, value in request.headers if name in LENGTHS}
        if len(lengths) > 1:
            # h11 uses the second; a proxy in front that uses the first would see other requests than
            # we do (RFC 9112, 6.1).
            self.refuse(400, "The request has two lengths.")
        self._body_left = int(lengths.get(b"content-length", 0))
        names = (name.decode("latin-1") for name, _ in headers)
        self._on_head(request, {name.lower(): name for name in names})
        return _in_origin_form(request)

    def _refuse_head(self) -> None:
        self.refuse(
            431,
            f"The request's head or trailer has more than {HEAD_BYTES_MAX} bytes or {HEADERS_MAX} headers.",
        )


def _in_origin_form(request: h11.Request) -> h11.Request:
    """The request with ``/path`` as its target if a URI was sent, whose host replaces the Host header.

    Servers must accept such targets (RFC 9112 section 3.2.2); Java's SDKs open their WebSockets so.
    """
    scheme, separator, rest = request.target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return request
    match = _AUTHORITY_END.search(rest)
    end = len(rest) if match is None else match.start()
    authority, target = rest[:end], rest[end:]
    headers = [
        (name, authority if name.lower() == b"host" else value) for name, value in request.headers.raw_items()
    ]
    target = target if target.startswith(b"/") else b"/" + target
    return h11.Request(
        method=request.method, headers=headers, target=target, http_version=request.http_version
    )
