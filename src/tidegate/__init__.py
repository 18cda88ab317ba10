"""Tidegate: a self-hosted Event Hubs for Python, and exactly-once Spark pipelines on top of it.

What a first program needs is imported from here, and the values and errors that the packages share; the rest
from ``tidegate.client``, ``.processor``, ``.sql`` and ``.spark``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.exports import exports_of
from tidegate.model import VERSION

if TYPE_CHECKING:
    # isort: off
    from tidegate.model.events import EventData as EventData
    from tidegate.model.events import ReceivedEvent as ReceivedEvent
    from tidegate.model.events import EventContents as EventContents
    from tidegate.model.position import EventPosition as EventPosition
    from tidegate.model.partition_key import partition_for_key as partition_for_key
    from tidegate.client import EventHubProducer as EventHubProducer
    from tidegate.client import EventHubConsumer as EventHubConsumer
    from tidegate.client import BlockingProducer as BlockingProducer
    from tidegate.client import BlockingConsumer as BlockingConsumer
    from tidegate.processor import EventProcessorHost as EventProcessorHost
    from tidegate.processor import EventProcessor as EventProcessor
    from tidegate.processor import EventProcessorOptions as EventProcessorOptions
    from tidegate.processor import FailurePolicy as FailurePolicy
    from tidegate.processor import FailureAction as FailureAction
    from tidegate.processor import MemoryStore as MemoryStore
    from tidegate.processor import DirectoryStore as DirectoryStore
    from tidegate.sql import SqlStore as SqlStore
    from tidegate.sql import Database as Database
    from tidegate.sql import Pipeline as Pipeline
    from tidegate.sql import TransactionalPipeline as TransactionalPipeline
    from tidegate.sql import table_of as table_of
    from tidegate.spark import run_pipeline as run_pipeline
    from tidegate.spark import spark_session as spark_session
    from tidegate.spark import Trigger as Trigger
    from tidegate.model.errors import TidegateError as TidegateError
    from tidegate.model.errors import Fault as Fault
    from tidegate.model.errors import InvalidArgumentError as InvalidArgumentError
    from tidegate.model.errors import ConnectionStringError as ConnectionStringError
    from tidegate.model.errors import NotFoundError as NotFoundError
    from tidegate.model.errors import AlreadyExistsError as AlreadyExistsError
    from tidegate.model.errors import UnauthorizedError as UnauthorizedError
    from tidegate.model.errors import EventTooLargeError as EventTooLargeError
    from tidegate.model.errors import QuotaExceededError as QuotaExceededError
    from tidegate.model.errors import ServerBusyError as ServerBusyError
    from tidegate.model.errors import ReceiverStolenError as ReceiverStolenError
    from tidegate.model.errors import BrokenError as BrokenError
    from tidegate.model.errors import OperationTimeoutError as OperationTimeoutError
    from tidegate.model.errors import DatabaseError as DatabaseError
    from tidegate.model.errors import DatabaseUnavailableError as DatabaseUnavailableError

__version__ = VERSION

__getattr__, __dir__, __all__ = exports_of(__name__)
