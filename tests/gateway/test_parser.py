"""What parsing requests costs per slice, whatever a peer sends: counted in calls, not in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import h11
import pytest
from tests.support.calls import calls_of

from tidegate.gateway.http.parser import HEAD_BYTES_MAX, PIECE_LINES_MAX, RequestParser

_CALLS_MAX = 6_000
"""Python calls of one slice: a millisecond or two."""

_READ_BYTES = 64_000
_HEAD = b"POST /hub/messages HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_HOSTILE = {
    "chunks of a byte": _CHUNKED + b"1\r\na\r\n" * 10_000,
    "chunks behind another request": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + _CHUNKED + b"1\r\na\r\n" * 10_000,
    "headers": _HEAD + b"a:\r\n" * 15_000 + b"\r\n",
    "folded lines": _HEAD + b"b: c\r\n" + b" a\r\n" * 15_000 + b"\r\n",
    "a trailer": _CHUNKED + b"0\r\n" + b"a:\r\n" * 15_000 + b"\r\n",
    "a trailer behind chunks": _CHUNKED + b"1\r\na\r\n" * 200 + b"0\r\n" + b"a:\r\n" * 15_000 + b"\r\n",
    "a head that does not end": _HEAD + b"a:\r\n" * 15_000,
    "parameters": b"GET /?" + b"a&" * 30_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a header": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: " + b"," * 60_000 + b"\r\n\r\n",
    "headers behind a body": _HEAD
    + b"Content-Length: 9\r\n\r\n123456789"
    + _HEAD
    + b"a:\r\n" * 15_000
    + b"\r\n",
    "requests": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2_000,
}


class _Server:
    """A parser whose slices end at the first opportunity, driven as uvicorn does; each request is answered
    when it is complete.
    """

    def __init__(self, *, is_time_over: Callable[[], bool] = lambda: True) -> None:
        self.requests: list[h11.Request] = []
        self.body = bytearray()
        self.ends = 0
        self.parser = RequestParser(lambda request, names: self.requests.append(request), is_time_over)

    def slices(self, data: bytes) -> Iterator[int]:
        """Parse received bytes; yields the number of calls of each slice."""
        self.parser.receive_data(data)
        has_work = True
        while has_work:
            self.parser.begin_slice()
            yield calls_of(self._handle_events)
            has_work = self.parser.has_work
            if self.parser.their_state is h11.DONE:
                self._answer()
                has_work = self.parser.has_rest

    def _handle_events(self) -> None:
        while (event := self.parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Data):
                self.body += event.data
            self.ends += isinstance(event, h11.EndOfMessage)

    def _answer(self) -> None:
        self.parser.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        self.parser.send(h11.EndOfMessage())
        self.parser.start_next_cycle()


@pytest.mark.slow
@pytest.mark.parametrize("read_bytes", [_READ_BYTES, 1_000])
@pytest.mark.parametrize("name", _HOSTILE)
def test_no_slice_is_long(name: str, read_bytes: int) -> None:
    """Protects the event loop: a slice parses a piece, also if h11 would see much more as one event."""
    server, calls_max = _Server(), 0
    data = _HOSTILE[name]
    try:
        for start in range(0, len(data), read_bytes):
            for calls in server.slices(data[start : start + read_bytes]):
                calls_max = max(calls_max, calls)
    except h11.RemoteProtocolError:
        assert server.parser.refusal is not None
        assert server.parser.refusal[0] == 431
    else:
        assert name in ("chunks of a byte", "chunks behind another request", "requests")
    assert calls_max <= _CALLS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("read_bytes", [1, 7, 1_000, _READ_BYTES])
@pytest.mark.parametrize("is_over", [False, True])
def test_requests_are_whole_however_they_are_cut(read_bytes: int, is_over: bool) -> None:
    """Protects honest requests: pieces and slices lose, repeat and mix no byte of several on a connection."""
    body = b"line\nline\r\n\r\n" * 40
    sized = _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(b"%x\r\n%b\r\n" % (size, body[:size]) for size in (1, 2, 100, len(body)))
    chunked = _CHUNKED + chunks + b"0\r\nb: c\r\n\r\n"
    data = (sized + chunked + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") * 3
    server = _Server(is_time_over=lambda: is_over)
    for start in range(0, len(data), read_bytes):
        for _ in server.slices(data[start : start + read_bytes]):
            pass
    assert [request.method for request in server.requests] == [b"POST", b"POST", b"GET"] * 3
    assert server.body == (body + body[:1] + body[:2] + body[:100] + body) * 3
    assert server.ends == 9


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 100, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nb: " + b"c" * HEAD_BYTES_MAX + b"\r\n", 431),
        (b"GET /" + b"a" * 8_192 + b" HTTP/1.1\r\nHost: a\r\n", 414),
        (b"GET /?" + b"a&" * 100 + b" HTTP/1.1\r\nHost: a\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 99, None),
        (b"GET / HTTP/1.1\r\nHost: a\r\nb: " + b"c" * (HEAD_BYTES_MAX - 50) + b"\r\n", None),
        (b"GET /" + b"a" * 8_190 + b" HTTP/1.1\r\nHost: a\r\n", None),
        (b"GET /?" + b"a&" * 99 + b" HTTP/1.1\r\nHost: a\r\n", None),
    ],
)
def test_the_largest_head(head: bytes, status: int | None) -> None:
    """A head above a limit is refused with the reason, and does not reach the application."""
    server = _Server(is_time_over=lambda: False)
    if status is None:
        assert list(server.slices(head + b"\r\n"))
        assert len(server.requests) == 1
        return
    with pytest.raises(h11.RemoteProtocolError):
        list(server.slices(head + b"\r\n"))
    assert server.parser.refusal is not None
    assert server.parser.refusal[0] == status
    assert server.requests == []


def test_a_body_of_known_length_is_not_cut_at_its_lines() -> None:
    """Protects the cost of ordinary requests: their body is one event for each read."""
    server = _Server(is_time_over=lambda: False)
    body = b"\n" * 200_000
    head = _HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    assert max(server.slices(head + body)) < 200 + 20 * PIECE_LINES_MAX
    assert server.body == body


_BLANKS = b" " * 15_000


@pytest.mark.parametrize(
    "head",
    [
        _HEAD + b"X:" + _BLANKS + b"\x00\r\n\r\n",
        _HEAD + b"X: " + (b" " * 100 + b"a") * 140 + b"\x0b\r\n\r\n",
        _CHUNKED + b"0\r\nX:" + _BLANKS + b"\x00\r\n\r\n",
        _CHUNKED + b"5;" + _BLANKS + b"\nx\r\n",
    ],
    ids=["header", "words", "trailer", "chunk"],
)
def test_blanks_take_no_longer_than_letters(head: bytes) -> None:
    """h11's own patterns took 300 to 5,000 times as long, in one step. The least of five, with a margin."""
    usual = _HEAD + b"X: " + b"a" * 15_000 + b"\r\n\r\n"
    costs = [min(_seconds_to_refuse(each) for _ in range(5)) for each in (head, usual[:-4] + b"\x00\r\n\r\n")]
    assert costs[0] < 50 * costs[1]


def _seconds_to_refuse(data: bytes) -> float:
    parser = RequestParser(lambda request, names: None, lambda: False)
    parser.receive_data(data)
    began = time.thread_time()
    try:
        while parser.next_event() is not h11.NEED_DATA:
            pass
    except h11.RemoteProtocolError:
        return time.thread_time() - began
    pytest.fail("it was not refused")


def test_what_h11_accepts_is_unchanged() -> None:
    """Blanks around values, folded lines, and extensions of chunks."""
    server = _Server()
    data = _CHUNKED[:-2] + b"Y: \t a  b \t\r\nZ:\r\nW: c\r\n  d\r\n\r\n"
    for _ in server.slices(data + b'5;a=b;  c="d e" \r\nhello\r\n0 \r\nT:  e f  \r\n\r\n'):
        pass
    assert server.body == b"hello"
    assert dict(server.requests[0].headers) | {b"host": b"", b"transfer-encoding": b""} == {
        b"host": b"",
        b"transfer-encoding": b"",
        b"y": b"a  b",
        b"z": b"",
        b"w": b"c d",
    }
