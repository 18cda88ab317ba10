"""What the service counts for its metrics where no metrics are served, too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """AMQP connections over all transports."""

    opened: int
    """Since the service started."""
    active: int


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Of the file system with the data directory, in bytes."""

    free: int
    """For the service's user."""
    total: int
