"""Two engines joined by a fake link: what one sends the other receives, in pieces of any size."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import Event, LinkAttaching
from tidegate.amqp.link import Link, ReceiverLink, SenderLink
from tidegate.amqp.session import Session

E = TypeVar("E", bound=Event)


class EnginePair:
    """A client and a server on one line; ``cut`` says how many bytes arrive at a time."""

    def __init__(
        self,
        *,
        client: ConnectionConfiguration | None = None,
        server: ConnectionConfiguration | None = None,
        cut: Callable[[], int] | None = None,
    ) -> None:
        self.now = 0.0
        self.cut = cut
        self.client = Connection(
            client or ConnectionConfiguration("client", hostname="here", sasl_mechanism="ANONYMOUS"),
            role=Role.CLIENT,
            now=0.0,
        )
        self.server = Connection(server or ConnectionConfiguration("server"), role=Role.SERVER, now=0.0)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.is_accepting = True
        """Whether the server's side accepts every link by itself."""

    def pump(self) -> None:
        """Carry bytes both ways until there are none; collect events."""
        while True:
            is_idle = not (self._carry(self.client, self.server) | self._carry(self.server, self.client))
            is_idle &= not self._collect()
            if is_idle:
                return

    def _carry(self, sender: Connection, receiver: Connection) -> bool:
        data = b"".join(sender.data_to_send())
        position = 0
        while position < len(data):
            size = self.cut() if self.cut else len(data)
            # A buffer that is used again, as the driver's is.
            buffer = bytearray(data[position : position + size])
            receiver.receive_data(memoryview(buffer), now=self.now)
            buffer[:] = b"\xee" * len(buffer)
            position += size
        return bool(data)

    def _collect(self) -> bool:
        found = False
        for connection, events in ((self.client, self.client_events), (self.server, self.server_events)):
            while (event := connection.next_event()) is not None:
                found = True
                events.append(event)
                is_new = isinstance(event, LinkAttaching) and connection is self.server
                if is_new and self.is_accepting:
                    assert isinstance(event, LinkAttaching)
                    event.link.accept()
        return found

    def take(self, kind: type[E], *, of_server: bool = False) -> list[E]:
        """Remove and return the collected events of a kind."""
        events = self.server_events if of_server else self.client_events
        taken: list[E] = [event for event in events if isinstance(event, kind)]
        events[:] = [event for event in events if not isinstance(event, kind)]
        return taken

    def open(self) -> Session:
        """A session of the client, begun on both sides."""
        self.client.open()
        session = self.client.begin_session()
        self.pump()
        return session

    def attach_receiver(self, session: Session, name: str = "in") -> tuple[ReceiverLink, SenderLink]:
        """A link on which the client receives: both ends."""
        link = session.attach_receiver(name, source="hub")
        self.pump()
        other = self.other_end(link)
        assert isinstance(other, SenderLink)
        return link, other

    def attach_sender(self, session: Session, name: str = "out") -> tuple[SenderLink, ReceiverLink]:
        """A link on which the client sends: both ends."""
        link = session.attach_sender(name, target="hub")
        self.pump()
        other = self.other_end(link)
        assert isinstance(other, ReceiverLink)
        return link, other

    def other_end(self, link: Link) -> Link:
        """The server's end of a client's link."""
        (other,) = (
            candidate
            for session in self.server.sessions
            for candidate in session.links
            if candidate.name == link.name and candidate.role is not link.role
        )
        return other


def random_cuts(seed: int, most: int = 200) -> Callable[[], int]:
    """Pieces of 1 to ``most`` bytes; the seed is printed, so that a failure can be repeated."""
    print(f"cut seed {seed}")
    chance = random.Random(seed)
    return lambda: chance.randint(1, most)
