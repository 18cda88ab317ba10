"""What the server gives the console: the parts of a running service, and the settings that concern it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.model.clock import Clock


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """How a process that the console starts reaches this service."""

    connection_string: str = field(repr=False)
    ca_file: str | None
    """The certificate authority to trust; None: the line is plain."""


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """The parts of a running service. Broker and capture are used on the event loop only."""

    broker: Broker
    capture: CaptureService
    connection_count: Callable[[], int]
    """AMQP connections that are open, over all transports."""
    clock: Clock
    own_address: Callable[[], OwnAddress]
    """Raises ClosedError until the service listens."""
    data_dir: Path
    database: str | None
    """URL of leases, checkpoints and dead letters; None: the pages of consumers and dead letters say so."""
    redrive_pipelines: tuple[str, ...]
    """Those that dead letters may be redriven with."""
