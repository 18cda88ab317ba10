"""How a connection is configured: its role, what its open says, and the limits that it holds the peer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidegate.amqp.limits import PeerLimits


class Role(Enum):
    """Which end of the connection this side is."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class ConnectionConfiguration:
    """What this side says in its open, and its own limits."""

    container_id: str
    hostname: str | None = None
    """Client: the host it means to talk to."""
    max_frame_size: int = 65536
    """Bytes; the largest frame that we accept. At least 512."""
    channel_max: int = 4999
    """Highest channel: one session fewer than there are sessions."""
    idle_timeout_s: float = 240.0
    """Advertised; the connection is closed after 1.25 times as long without a byte. 0: never."""
    incoming_window: int = 5000
    """Transfer frames per session; topped up by the engine at half."""
    handle_max: int = 255
    """Highest handle of a session: one fewer than there may be links."""
    message_bytes_max: int = 64 * 1024 * 1024
    """Largest incoming message on links that advertise no (or a higher) max-message-size."""
    peer_limits: PeerLimits = field(default_factory=PeerLimits)
    stranger_limits: PeerLimits | None = None
    """Instead of ``peer_limits`` until ``Connection.admit_peer``; None: the same from the start."""
    handshake_timeout_s: float = 60.0
    """From the start to both opens."""
    properties: Mapping[str, object] = field(default_factory=dict)
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    sasl_mechanism: str | None = None
    """Client: ANONYMOUS, PLAIN, …; None: no SASL at all."""
    sasl_initial_response: bytes = field(default=b"", repr=False)
    """Client."""
    sasl_mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    """Server: what it offers (the service's own list); (): clients must skip SASL."""
