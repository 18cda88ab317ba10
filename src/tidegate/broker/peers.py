"""Peers of the namespace: their protocol and address."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Door(Enum):
    """How a peer reaches the namespace."""

    AMQP = "amqp"
    """Includes the command line, which uses ``$management``."""
    HTTP = "http"
    CONSOLE = "console"
    SERVICE = "service"
    """The service itself: its settings at the start."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer, authenticated or not."""

    door: Door
    address: str = ""
    """Without a port, as trusted proxies report it; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.address or 'an unknown address'} ({self.door.value})"


UNKNOWN_PEER: Final = Peer(Door.SERVICE)
"""All callers without a known peer."""
