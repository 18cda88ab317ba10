"""Configuration of a connection: its role, the contents of its open, and the limits on the peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidegate.amqp.limits import PeerLimits


class Role(Enum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class ConnectionConfiguration:
    """The contents of this side's open, and its own limits."""

    container_id: str
    hostname: str | None = None
    """Client: the host to connect to."""
    max_frame_size: int = 65536
    """Bytes; the largest frame that this side accepts. At least 512."""
    channel_max: int = 4999
    """Highest channel: one less than the number of sessions."""
    idle_timeout_s: float = 240.0
    """Advertised to the peer. The connection is closed after 1.25 times as long without a byte; 0: never."""
    incoming_window: int = 5000
    """Transfer frames per session; the engine tops it up at half."""
    handle_max: int = 255
    """Highest handle of a session: one less than the number of links."""
    message_bytes_max: int = 64 * 1024 * 1024
    """Largest incoming message on links that advertise no, or a higher, max-message-size."""
    peer_limits: PeerLimits = field(default_factory=PeerLimits)
    stranger_limits: PeerLimits | None = None
    """Replace ``peer_limits`` until ``Connection.admit_peer``; None: ``peer_limits`` hold from the start."""
    handshake_timeout_s: float = 60.0
    """From the start until both sides have sent open."""
    properties: Mapping[str, object] = field(default_factory=dict)
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    sasl_mechanism: str | None = None
    """Client: ANONYMOUS, PLAIN, …; None: no SASL."""
    sasl_initial_response: bytes = field(default=b"", repr=False)
    """Client."""
    sasl_mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    """Server: the mechanisms it offers (the service's own list); (): clients must skip SASL."""
