"""The parts of a running service, and its settings, that the server passes to the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.model.clock import Clock


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """The service's address for processes that the console starts."""

    connection_string: str = field(repr=False)
    ca_file: str | None
    """The certificate authority to trust; None without TLS."""


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
    root_strings: Callable[[], Sequence[str]]
    """The root policy's connection strings, one for each way to connect. Raises ClosedError as above."""
    data_dir: Path
    databases: Sequence[str]
    """URLs of the databases of leases, checkpoints and dead letters; empty: dead letters have no page."""
    redrive_pipelines: tuple[str, ...]
    """The pipelines that may redrive dead letters."""
