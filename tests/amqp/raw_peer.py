"""A peer without an engine: it sends the frames that a test makes, and shows those that come."""

from __future__ import annotations

from dataclasses import replace

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import LinkAttaching
from tidegate.amqp.frames import AMQP_HEADER, FRAME_BYTES_MIN, FrameSplitter, encode_frame
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.performatives import (
    Begin,
    Flow,
    Open,
    Performative,
    decode_performative,
    encode_performative,
)


class RawPeer:
    """A client of one session that says what it is made to say, in front of a server's engine."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MIN) -> None:
        self.server = Connection(
            ConnectionConfiguration("server", properties={"about": "s" * 600}), role=Role.SERVER, now=0.0
        )
        self._splitter = FrameSplitter(frame_bytes_max=frame_bytes_max)
        self._is_started = False
        self.server.receive_data(AMQP_HEADER.encode(), now=0.0)
        self.send(Open("client", max_frame_size=frame_bytes_max))
        self.send(Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000))

    def send(self, performative: Performative) -> None:
        """Send one frame."""
        self.server.receive_data(encode_frame(0, encode_performative(performative)), now=0.0)

    def grant(self, credit: int) -> None:
        """Give the link that the server sends on credit."""
        window = Flow(incoming_window=1000, next_outgoing_id=0, outgoing_window=1)
        self.send(replace(window, handle=0, link_credit=credit))

    def received(self) -> list[Performative]:
        """What has come; a frame that is too large makes the splitter raise."""
        self._splitter.feed(b"".join(self.server.data_to_send()))
        if not self._is_started:
            self._is_started = self._splitter.next_header() is not None
        performatives = []
        while (frame := self._splitter.next_frame()) is not None:
            performatives.append(decode_performative(frame.body)[0])
        self._splitter.release()
        return performatives

    def link(self) -> ReceiverLink | SenderLink:
        """The server's end of the link that was just attached."""
        links = []
        while (event := self.server.next_event()) is not None:
            if isinstance(event, LinkAttaching):
                links.append(event.link)
        assert isinstance(links[-1], (ReceiverLink, SenderLink))
        return links[-1]
