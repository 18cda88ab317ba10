"""AMQP as an attacker speaks it: frames made once and sent often, and answers that are only counted."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, NamedTuple, Self

from bench.floods.attack import AUDIENCE, Attack, Line, source_of
from tidegate.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
from tidegate.amqp.message import Properties, encode_message
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Rejected,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)
from tidegate.amqp.sasl import ANONYMOUS, SaslInit, encode_sasl
from tidegate.amqp.types import Symbol
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request

CBS_LINKS: Final = 2
WINDOW: Final = 0x7FFF_FFFF
_READ_BYTES: Final = 262_144
_ATTACH, _TRANSFER = 0x12, 0x14
_PIECE_BYTES: Final = 65_000
_MARK: Final = 0x7B1D_5C3E
"""Stands for a delivery's number in frames that are not numbered yet."""

SASL: Final = SASL_HEADER.encode() + encode_frame(0, encode_sasl(SaslInit(ANONYMOUS)), SASL_FRAME)
BEFORE_OPEN: Final = SASL + AMQP_HEADER.encode()


def frame(performative: Performative, channel: int = 0, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return encode_frame(channel, encode_performative(performative) + payload)


OPENED: Final = BEFORE_OPEN + frame(Open("flood", hostname="localhost", max_frame_size=65536))
"""Everything up to and with the open."""


def begin(channel: int = 0) -> bytes:
    """A session with windows that never close."""
    return frame(Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW), channel)


def attach_sender(address: str, handle: int = 0, channel: int = 0, *, padding_bytes: int = 0) -> bytes:
    """A link that sends to ``address``. padding_bytes: of properties that mean nothing."""
    name = f"s-{channel}-{handle}-{uuid.uuid4().hex[:8]}"
    source, target = Source(name), Target(address)
    attach = Attach(name, handle, ROLE_SENDER, source=source, target=target, initial_delivery_count=0)
    if padding_bytes:
        attach = replace(attach, properties={Symbol("padding"): bytes(padding_bytes)})
    return frame(attach, channel)


def attach_receiver(address: str, handle: int = 0, channel: int = 0, *, credit: int = 0) -> bytes:
    """A link that receives from ``address``, and its credit."""
    name = f"r-{channel}-{handle}-{uuid.uuid4().hex[:8]}"
    attach = Attach(name, handle, ROLE_RECEIVER, source=Source(address), target=Target(name))
    return frame(attach, channel) + (flow(handle, channel, credit=credit) if credit else b"")


def flow(
    handle: int | None = None, channel: int = 0, *, credit: int | None = None, echo: bool = False
) -> bytes:
    """A flow that keeps the windows open."""
    windows = Flow(
        next_incoming_id=0,
        incoming_window=WINDOW,
        next_outgoing_id=0,
        outgoing_window=WINDOW,
        handle=handle,
        delivery_count=None if handle is None else 0,
        link_credit=credit,
        echo=echo,
    )
    return frame(windows, channel)


def put_token(token: str, delivery_id: int = 0, audience: str = AUDIENCE) -> bytes:
    """A put-token behind ``CBS``."""
    request = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
    properties = Properties(message_id=f"m-{delivery_id}", reply_to="cbs-replies")
    message = encode_message(replace(request, properties=properties))
    tag = delivery_id.to_bytes(4, "big")
    return frame(Transfer(0, delivery_id, tag, 0, settled=True), payload=message)


CBS: Final = begin() + attach_sender("$cbs", 0) + attach_receiver("$cbs", 1, credit=1_000_000)
"""A session on channel 0 with both links to ``$cbs``: handle 0 sends, 1 receives."""


def delivery(handle: int, payload: bytes, message_format: int = 0, channel: int = 0) -> Template:
    """A delivery in as many frames as it takes, to be numbered by ``numbered``."""
    pieces = [payload[at : at + _PIECE_BYTES] for at in range(0, len(payload), _PIECE_BYTES)]
    frames = []
    for index, piece in enumerate(pieces):
        number = _MARK if index == 0 else None
        tag = None if number is None else number.to_bytes(4, "big")
        more = index < len(pieces) - 1
        frames.append(frame(Transfer(handle, number, tag, message_format, more=more), channel, piece))
    front, middle, back = b"".join(frames).split(_MARK.to_bytes(4, "big"))
    return Template(front, middle, back, len(frames))


def half_message(handle: int, size_bytes: int, channel: int = 0) -> bytes:
    """The frames of a delivery of about that many bytes that goes on and never does; its id is the handle."""
    first = b"\x00\x53\x75\xb0" + (1 << 20).to_bytes(4, "big")
    begun = frame(Transfer(handle, handle, b"%d" % handle, 0, more=True), channel, first)
    rest = frame(Transfer(handle, more=True), channel, bytes(_PIECE_BYTES))
    return begun + rest * (size_bytes // _PIECE_BYTES)


class Template(NamedTuple):
    """The frames of a delivery around its id and its tag."""

    front: bytes
    middle: bytes
    back: bytes
    frames: int

    def numbered(self, first: int, count: int = 1) -> bytes:
        """So many deliveries, numbered from ``first`` on."""
        front, middle, back, _ = self
        numbers = (number.to_bytes(4, "big") for number in range(first, first + count))
        return b"".join(front + number + middle + number + back for number in numbers)


def on_channel(frames: bytes, channel: int) -> bytes:
    """The same frames for another session."""
    moved, at = bytearray(frames), 0
    while at < len(frames):
        moved[at + 6 : at + 8] = channel.to_bytes(2, "big")
        at += int.from_bytes(frames[at : at + 4], "big")
    return bytes(moved)


class AmqpPeer:
    """A connection of an attacker that reads what comes back, and counts it."""

    def __init__(self, attack: Attack, line: Line) -> None:
        self._attack = attack
        self._line = line
        self._counts: Counter[str] = Counter()
        self._is_over = False
        self._our_channels: dict[int, int] = {}
        """By the channel that the service uses for the session."""
        self._changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, attack: Attack, number: int = 0, *, first: bytes = OPENED, has_token: bool = False
    ) -> AsyncIterator[Self]:
        """Connect and say ``first``. has_token: and authorize for the hub, in a session on channel 0.

        number: attackers come from as many addresses as ``SOURCES``, in turns.
        """
        connecting = attack.connected(attack.target.amqp, source=source_of(number))
        async with connecting as line, TaskOwner("peer") as tasks:
            peer = cls(attack, line)
            tasks.start(peer._read(), name="answers")
            await peer.send(first)
            if has_token:
                await peer.send(CBS)
                await peer.wait(attached=CBS_LINKS)
                await peer.send(put_token(attack.target.token()))
                await peer.wait(transfers=1)
            yield peer

    async def send(self, data: bytes) -> None:
        """Write as fast as the service reads. Raises EOFError once it has hung up."""
        await self._line.send(data)

    async def wait(self, **counts: int) -> None:
        """Wait until there were so many ``opens``, ``attached`` links, ``transfers``, deliveries ``settled``.

        ``window``: transfers that the service takes on channel 1, from the first on. None: for ever. Raises
        EOFError once the service has hung up.
        """
        while not counts or any(self._counts[name] < count for name, count in counts.items()):
            if self._is_over:
                raise EOFError
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        waiting = b""
        with suppress(OSError):
            while data := await self._line.reader.read(_READ_BYTES):
                waiting = self._take(waiting + data)
                self._changed.set()
        self._is_over = True
        self._line.abort()
        self._changed.set()

    def _take(self, data: bytes) -> bytes:
        """Count whole frames; returns what is left over."""
        at = 0
        while len(data) - at >= 8:
            size, _, kind, channel = struct.unpack_from(">IBBH", data, at)
            if data[at : at + 4] == b"AMQP":
                size = 8
            elif len(data) - at < size:
                break
            elif size > 11 and kind == 0:
                self._note(data[at + 10], data[at + 8 : at + size], channel)
            at += size
        return data[at:]

    def _note(self, code: int, body: bytes, channel: int) -> None:
        self._counts["attached"] += code == _ATTACH
        self._counts["transfers"] += code == _TRANSFER
        if code in (_ATTACH, _TRANSFER):
            return
        performative, _ = decode_performative(body)
        channel = self._our_channels.get(channel, channel)
        match performative:
            case Open():
                self._counts["opens"] += 1
            case Begin(remote_channel=int(ours), incoming_window=window):
                self._our_channels[channel] = ours
                if ours == 1:
                    self._counts["window"] = window
            case Flow(next_incoming_id=int(number), incoming_window=window) if channel == 1:
                self._counts["window"] = number + window
            case Disposition(first=first, last=last, state=state):
                count = (first if last is None else last) - first + 1
                self._counts["settled"] += count
                error = state.error if isinstance(state, Rejected) else None
                self._attack.tally["accepted" if error is None else str(error.condition)] += count
            case Detach(error=Error() as error) | End(error=Error() as error) | Close(error=Error() as error):
                self._attack.tally[str(error.condition)] += 1
