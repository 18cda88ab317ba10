"""Whom the namespace deals with: by which door, and from where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Door(Enum):
    """How somebody reaches the namespace."""

    AMQP = "amqp"
    """The command line, too: it uses ``$management``."""
    HTTP = "http"
    CONSOLE = "console"
    SERVICE = "service"
    """The service itself: its settings at the start."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody who may be anybody."""

    door: Door
    address: str = ""
    """Without a port, as far as trusted proxies tell; empty where it is not known."""

    def __str__(self) -> str:
        return f"{self.address or 'an unknown address'} ({self.door.value})"


UNKNOWN_PEER: Final = Peer(Door.SERVICE)
"""Whoever does not say who they are: all of them together."""
