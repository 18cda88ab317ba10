"""What the console's views are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.model.clock import Clock
from tidegate.server.ready import ReadyInformation
from tidegate.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """The parts of a running service. Broker, capture and AMQP face are used on the event loop only."""

    broker: Broker
    capture: CaptureService
    amqp: AmqpGateway
    settings: ServerSettings
    clock: Clock
    ready: Callable[[], ReadyInformation]
    """Where the service listens; raises ClosedError until it does."""
