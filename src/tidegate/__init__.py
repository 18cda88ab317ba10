"""Tidegate: a self-hosted Event Hubs for Python, and exactly-once Spark pipelines on top of it.

What a first program needs is imported from here, and the values and errors that the packages share; the rest
from ``tidegate.client``, ``.processor``, ``.sql`` and ``.spark``. Names are loaded when they are first used,
because every process that imports anything of Tidegate, Spark's workers too, runs this module first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tidegate.model.version import VERSION

if TYPE_CHECKING:
    from tidegate.client import EventHubConsumer, EventHubProducer
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
    from tidegate.processor import DirectoryStore, EventProcessorHost, MemoryStore
    from tidegate.spark import Trigger, run_pipeline, spark_session
    from tidegate.sql import Database, Pipeline, SqlStore

__version__ = VERSION

__all__ = [
    "EventData",
    "ReceivedEvent",
    "EventContents",
    "EventPosition",
    "partition_for_key",
    "EventHubProducer",
    "EventHubConsumer",
    "EventProcessorHost",
    "MemoryStore",
    "DirectoryStore",
    "SqlStore",
    "Database",
    "Pipeline",
    "run_pipeline",
    "spark_session",
    "Trigger",
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
    "EventData": "model.events",
    "ReceivedEvent": "model.events",
    "EventContents": "model.events",
    "EventPosition": "model.position",
    "partition_for_key": "model.partition_key",
    "EventHubProducer": "client",
    "EventHubConsumer": "client",
    "EventProcessorHost": "processor",
    "MemoryStore": "processor",
    "DirectoryStore": "processor",
    "SqlStore": "sql",
    "Database": "sql",
    "Pipeline": "sql",
    "run_pipeline": "spark",
    "spark_session": "spark",
    "Trigger": "spark",
}
"""Where a name is loaded from; those that are not named are errors, of ``model.errors``."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'model.errors')}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
