"""Tidegate: a self-hosted Event Hubs for Python, and exactly-once Spark pipelines on top of it.

The values and errors that its packages share are imported from here; clients, hosts and pipelines from
``tidegate.client``, ``.processor``, ``.sql`` and ``.spark``. Names are loaded when they are first used,
because every process that imports anything of Tidegate, Spark's workers too, runs this module first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.model.errors import (
        AlreadyExistsError,
        BrokenError,
        ConnectionStringError,
        DatabaseError,
        DatabaseUnavailableError,
        EventTooLargeError,
        Fault,
        InvalidArgumentError,
        NotFoundError,
        OperationTimeoutError,
        QuotaExceededError,
        ReceiverStolenError,
        ServerBusyError,
        TidegateError,
        UnauthorizedError,
    )
    from tidegate.model.events import EventContents, EventData, ReceivedEvent
    from tidegate.model.partition_key import partition_for_key
    from tidegate.model.position import EventPosition

__version__ = "0.1.0"

__all__ = [
    "EventData",
    "ReceivedEvent",
    "EventContents",
    "EventPosition",
    "partition_for_key",
    "TidegateError",
    "Fault",
    "InvalidArgumentError",
    "ConnectionStringError",
    "NotFoundError",
    "AlreadyExistsError",
    "UnauthorizedError",
    "EventTooLargeError",
    "QuotaExceededError",
    "ServerBusyError",
    "ReceiverStolenError",
    "BrokenError",
    "OperationTimeoutError",
    "DatabaseError",
    "DatabaseUnavailableError",
]

_MODULES = {
    "EventData": "events",
    "ReceivedEvent": "events",
    "EventContents": "events",
    "EventPosition": "position",
    "partition_for_key": "partition_key",
}
"""Modules of ``tidegate.model``; the other names are its errors."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.model.{_MODULES.get(name, 'errors')}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value
