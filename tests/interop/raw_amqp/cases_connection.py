"""Headers, SASL, open and close, sessions."""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from tests.interop.raw_amqp.codec import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    END,
    ERROR,
    FLOW,
    INIT,
    MECHANISMS,
    NULL,
    OPEN,
    OUTCOME,
    TRUE,
    binary,
    described,
    frame,
    list_of,
    symbol,
    text,
    uint,
    ushort,
)
from tests.interop.raw_amqp.peer import AMQP_HEADER, SASL_HEADER, Given, Peer, equal, source, target
from tests.interop.raw_amqp.run import Cases

EMPTY: Final = frame(0, b"")


def header_is_answered_with(sent: bytes, given: Given) -> None:
    """The service names the header that it wants, and ends."""
    peer = Peer.raw(given)
    peer.send(sent)
    equal(peer.read_bytes(8), SASL_HEADER)
    peer.check_ended()


def header_without_sasl(given: Given) -> None:
    """A peer may go without, and has no rights until it has given a token."""
    peer = Peer.raw(given)
    peer.exchange_headers()
    peer.open()
    peer.begin()
    peer.attach_receiver(given.partition)
    equal(peer.refused().condition, "amqp:unauthorized-access")


def header_in_pieces(given: Given) -> None:
    """Bytes may come one by one."""
    peer = Peer.raw(given)
    for byte in SASL_HEADER:
        peer.send(bytes([byte]))
    equal(peer.read_bytes(8), SASL_HEADER)
    equal(peer.read().code, MECHANISMS)


def header_after_sasl_is_answered_with_amqp(sent: bytes, given: Given) -> None:
    """As before SASL, with the header that is due."""
    peer = Peer.raw(given)
    equal(peer.sasl("ANONYMOUS"), 0)
    peer.send(sent)
    equal(peer.read_bytes(8), AMQP_HEADER)


def mechanisms(given: Given) -> None:
    """The official Python client wants an array with ANONYMOUS in it."""
    peer = Peer.raw(given)
    peer.send(SASL_HEADER)
    peer.read_bytes(8)
    equal(set(peer.read(MECHANISMS).field(0)), {"MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"})


def sasl_ends_with(mechanism: str, response: bytes, code: int, given: Given) -> None:
    """0: go on; 1: not you."""
    equal(Peer.raw(given).sasl(mechanism, response), code)


def plain_with_key(identity: str, given: Given) -> None:
    """SASL PLAIN with a policy's name and key, with and without an identity to act as."""
    peer = Peer.raw(given)
    equal(peer.sasl("PLAIN", binary(f"{identity}\0{given.policy}\0{given.key}".encode())), 0)


def pipelined_start(given: Given) -> None:
    """Everything up to begin may be sent before any answer (part 2 section 2.4.1)."""
    peer = Peer.raw(given)
    init = frame(0, described(INIT, symbol("ANONYMOUS"), NULL), kind=1)
    begin = described(BEGIN, NULL, uint(0), uint(10), uint(10))
    peer.send(SASL_HEADER + init + AMQP_HEADER + frame(0, described(OPEN, text("raw"))) + frame(0, begin))
    equal(peer.read_bytes(8), SASL_HEADER)
    peer.read(OUTCOME)
    equal(peer.read_bytes(8), AMQP_HEADER)
    peer.read(BEGIN)


def amqp_frame_in_sasl(given: Given) -> None:
    """Nothing but SASL frames belongs there."""
    peer = Peer.raw(given)
    peer.send(SASL_HEADER + frame(0, described(OPEN, text("raw"))))
    peer.read_bytes(8)
    peer.read(MECHANISMS)
    peer.check_ended()


def open_is_answered(fields: dict[str, bytes], given: Given) -> None:
    """With the limits that the service has, and the connection works."""
    peer = Peer.opened(given, **fields)
    peer.check_alive()


def open_limits(given: Given) -> None:
    """What Event Hubs announces."""
    peer = Peer.anonymous(given)
    peer.open()
    equal(peer.read(OPEN).fields[2:5], (65536, 4999, 240000))


def open_is_closed_with(fields: dict[str, bytes], condition: str, given: Given) -> None:
    """The service opens and closes: an error needs an open connection (part 2 section 2.4.3)."""
    peer = Peer.anonymous(given)
    peer.open(**fields)
    peer.read(OPEN)
    equal(peer.read(CLOSE).condition, condition)
    peer.check_ended()


def opened_is_closed_with(sent: bytes, condition: str, given: Given) -> None:
    """On an open connection without sessions."""
    peer = Peer.opened(given)
    peer.send(sent)
    equal(peer.read(CLOSE).condition, condition)
    peer.check_ended()


def begun_is_closed_with(sent: bytes, condition: str, given: Given) -> None:
    """On an open connection with a session on channel 0."""
    peer = Peer.begun(given)
    peer.send(sent)
    equal(peer.read(CLOSE).condition, condition)
    peer.check_ended()


def begun_goes_on_after(sent: bytes, given: Given) -> None:
    """It is allowed, and changes nothing."""
    peer = Peer.begun(given)
    peer.send(sent)
    peer.check_alive()


def frame_before_open(given: Given) -> None:
    """A begin without an open."""
    peer = Peer.anonymous(given)
    peer.begin()
    if peer.read(OPEN, CLOSE).code == OPEN:
        assert peer.read(CLOSE).condition is not None
    peer.check_ended()


def close_is_answered(error: bytes, given: Given) -> None:
    """With a close, after which the service ends the stream."""
    peer = Peer.begun(given)
    peer.perform(CLOSE, error)
    assert peer.read(CLOSE).condition is None
    peer.check_ended()


def nothing_counts_after_close(given: Given) -> None:
    """What a peer sends behind its close is dropped."""
    peer = Peer.begun(given)
    peer.send(frame(0, described(CLOSE)) + frame(7, described(END)) + EMPTY)
    assert peer.read(CLOSE).condition is None


def keeps_quiet_peer_alive(given: Given) -> None:
    """An empty frame at least every idle-time-out, here within a second and without our asking."""
    peer = Peer.opened(given, idle=uint(1000))
    equal(peer.read().code, -1)
    equal(peer.read().code, -1)


def sessions_up_to_channel_max(given: Given) -> None:
    """The service answers on channels within the client's limit, and refuses a session beyond it."""
    peer = Peer.opened(given, channel_max=ushort(1))
    for channel in (0, 1):
        peer.begin(channel=channel)
        answer = peer.read(BEGIN)
        equal((answer.field(0), answer.channel <= 1), (channel, True))
    peer.begin(channel=2)
    assert peer.read(CLOSE).condition is not None


def channel_is_used_again(given: Given) -> None:
    """After both ends."""
    peer = Peer.begun(given)
    for _ in range(3):
        peer.perform(END)
        assert peer.read(END).condition is None
        peer.begin()
        equal(peer.read(BEGIN).field(0), 0)


def end_is_answered(error: bytes, given: Given) -> None:
    """The connection goes on."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition)
    peer.attached()
    peer.perform(END, error)
    assert peer.read(END).condition is None
    peer.check_alive()


def begin_windows(given: Given) -> None:
    """What Event Hubs announces, in eight fields: the official Python client reads them by position."""
    peer = Peer.opened(given)
    peer.begin(channel=3)
    answer = peer.read(BEGIN)
    equal((len(answer.fields), answer.field(0), answer.field(2), answer.field(4)), (8, 3, 5000, 255))


def handle_above_ours(given: Given) -> None:
    """The handle-max of the service's begin holds for the client."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition, handle=256)
    equal(peer.read(CLOSE).condition, "amqp:connection:framing-error")


def handle_max_of_client(given: Given) -> None:
    """The service has no handle for a second link where the client allows one."""
    peer = Peer.opened(given)
    peer.begin(handle_max=uint(0))
    peer.read(BEGIN)
    peer.attach_receiver(given.partition)
    peer.attached()
    peer.attach_receiver(given.partition)
    equal(peer.read(END).condition, "amqp:resource-limit-exceeded")


def _begin(channel: int, *fields: bytes) -> bytes:
    return frame(channel, described(BEGIN, *fields or (NULL, uint(0), uint(10), uint(10))))


_ATTACH_UNBEGUN = frame(
    5, described(ATTACH, text("l"), uint(0), TRUE, NULL, NULL, source("hub"), target("raw"))
)
_TOO_LARGE = struct.pack(">IBBH", 65537, 2, 0, 0) + bytes(100)
_FAILED = described(ERROR, symbol("raw:failed"), text("It failed."))
_FRAMING = "amqp:connection:framing-error"

CASES: Cases = {
    **{
        f"header {name}": partial(header_is_answered_with, sent)
        for name, sent in {
            "TLS": b"AMQP\x02\x01\x00\x00",
            "unknown protocol id": b"AMQP\x07\x01\x00\x00",
            "AMQP 0-9-1": b"AMQP\x00\x00\x09\x01",
            "SASL of another version": b"AMQP\x03\x01\x01\x00",
            "HTTP": b"GET / HTTP/1.1\r\n\r\n",
        }.items()
    },
    "header AMQP without SASL": header_without_sasl,
    "header in pieces": header_in_pieces,
    "header SASL again": partial(header_after_sasl_is_answered_with_amqp, SASL_HEADER),
    "header AMQP 2 after SASL": partial(header_after_sasl_is_answered_with_amqp, b"AMQP\x00\x02\x00\x00"),
    "sasl mechanisms": mechanisms,
    "sasl ANONYMOUS": partial(sasl_ends_with, "ANONYMOUS", NULL, 0),
    "sasl ANONYMOUS with a trace": partial(sasl_ends_with, "ANONYMOUS", binary(b"\0me"), 0),
    "sasl MSSBCBS": partial(sasl_ends_with, "MSSBCBS", NULL, 0),
    "sasl EXTERNAL": partial(sasl_ends_with, "EXTERNAL", NULL, 0),
    "sasl PLAIN": partial(plain_with_key, ""),
    "sasl PLAIN with an identity": partial(plain_with_key, "me"),
    "sasl PLAIN wrong key": partial(sasl_ends_with, "PLAIN", binary(b"\0me\0wrong"), 1),
    "sasl PLAIN garbled": partial(sasl_ends_with, "PLAIN", binary(b"me"), 1),
    "sasl PLAIN without a response": partial(sasl_ends_with, "PLAIN", NULL, 1),
    "sasl unknown mechanism": partial(sasl_ends_with, "SCRAM-SHA-256", binary(b"n,,n=me"), 1),
    "sasl lower case": partial(sasl_ends_with, "anonymous", NULL, 1),
    "sasl pipelined": pipelined_start,
    "sasl interrupted by an open": amqp_frame_in_sasl,
    "open limits": open_limits,
    "open with the smallest frames": partial(open_is_answered, {"max_frame": uint(512)}),
    "open with unlimited frames": partial(open_is_answered, {"max_frame": uint(2**32 - 1)}),
    "open without a frame size": partial(open_is_answered, {"max_frame": NULL}),
    "open with no idle time-out": partial(open_is_answered, {"idle": uint(0)}),
    "open with the longest idle time-out": partial(open_is_answered, {"idle": uint(2**32 - 1)}),
    "open with frames of 511 bytes": partial(open_is_closed_with, {"max_frame": uint(511)}, _FRAMING),
    "open with frames of 0 bytes": partial(open_is_closed_with, {"max_frame": uint(0)}, _FRAMING),
    "open twice": partial(
        opened_is_closed_with, frame(0, described(OPEN, text("raw"))), "amqp:illegal-state"
    ),
    "open missing": frame_before_open,
    "idle time-out of a second": keeps_quiet_peer_alive,
    "frame empty": partial(begun_goes_on_after, EMPTY * 3),
    "frame empty on an unknown channel": partial(begun_goes_on_after, frame(77, b"")),
    "frame with an extended header": partial(
        begun_goes_on_after, frame(0, described(FLOW, uint(1), *[uint(5)] * 3), extended_header=bytes(8))
    ),
    "frame too large": partial(begun_is_closed_with, _TOO_LARGE, _FRAMING),
    "frame smaller than its header": partial(begun_is_closed_with, b"\0\0\0\7\2\0\0\0", _FRAMING),
    "frame with its data outside": partial(begun_is_closed_with, b"\0\0\0\x08\x03\0\0\0", _FRAMING),
    "frame of SASL": partial(begun_is_closed_with, frame(0, described(FLOW), kind=1), _FRAMING),
    "performative unknown": partial(begun_is_closed_with, frame(0, described(0x19)), "amqp:decode-error"),
    "performative not described": partial(begun_is_closed_with, frame(0, list_of()), "amqp:decode-error"),
    "performative cut off": partial(
        begun_is_closed_with, frame(0, b"\0\x53\x12\xd0\0\0"), "amqp:decode-error"
    ),
    "performative with a wrong type": partial(
        begun_is_closed_with, frame(0, described(FLOW, text("five"))), "amqp:decode-error"
    ),
    "close": partial(close_is_answered, NULL),
    "close with an error": partial(close_is_answered, _FAILED),
    "close and more": nothing_counts_after_close,
    "begin windows": begin_windows,
    "begin twice": partial(begun_is_closed_with, _begin(0), "amqp:illegal-state"),
    "begin that answers nothing": partial(
        begun_is_closed_with, _begin(1, ushort(40), uint(0), uint(1), uint(1)), "amqp:illegal-state"
    ),
    "begin without windows": partial(begun_is_closed_with, _begin(1, NULL), "amqp:decode-error"),
    "begin up to channel-max": sessions_up_to_channel_max,
    "channel used again": channel_is_used_again,
    "channel unknown": partial(begun_is_closed_with, _ATTACH_UNBEGUN, "amqp:illegal-state"),
    "end": partial(end_is_answered, NULL),
    "end with an error": partial(end_is_answered, _FAILED),
    "end on an unknown channel": partial(
        begun_is_closed_with, frame(6, described(END)), "amqp:illegal-state"
    ),
    "detach on an unknown channel": partial(
        begun_is_closed_with, frame(6, described(DETACH, uint(0), TRUE)), "amqp:illegal-state"
    ),
    "handle above handle-max": handle_above_ours,
    "handle-max of the client": handle_max_of_client,
}
