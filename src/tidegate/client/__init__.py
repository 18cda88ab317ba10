"""Clients of Event Hubs, Tidegate's or Azure's: producer, consumer, administrator, and blocking clients.

The same connection-string code works against both; Tidegate also delivers batches whole and stores each once.
All clients use asyncio; those in ``blocking`` run it in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.exports import exports_of

if TYPE_CHECKING:
    # isort: off
    from tidegate.client.producer import EventHubProducer as EventHubProducer
    from tidegate.client.batching import EventDataBatch as EventDataBatch
    from tidegate.client.consumer import EventHubConsumer as EventHubConsumer
    from tidegate.client.receiver import PartitionReceiver as PartitionReceiver
    from tidegate.client.event_hub_receiver import EventHubReceiver as EventHubReceiver
    from tidegate.client.administrator import EventHubAdministrator as EventHubAdministrator
    from tidegate.client.blocking.producer import BlockingProducer as BlockingProducer
    from tidegate.client.blocking.consumer import BlockingConsumer as BlockingConsumer
    from tidegate.client.blocking.consumer import FetchedRange as FetchedRange
    from tidegate.client.repeatable import RepeatableProducer as RepeatableProducer
    from tidegate.client.repeatable import RepeatableWork as RepeatableWork
    from tidegate.client.repeatable import ProducerIdentity as ProducerIdentity
    from tidegate.client.repeatable import HubLayout as HubLayout
    from tidegate.client.blocking.background import run_blocking as run_blocking
    from tidegate.client.namespace import Namespace as Namespace
    from tidegate.client.namespace import ConnectionOptions as ConnectionOptions
    from tidegate.client.retry import RetryPolicy as RetryPolicy
    from tidegate.client.credentials import Credential as Credential
    from tidegate.client.credentials import TokenCredential as TokenCredential
    from tidegate.client.credentials import SharedKeyCredential as SharedKeyCredential
    from tidegate.client.credentials import SharedSignatureCredential as SharedSignatureCredential
    from tidegate.client.credentials import EntraCredential as EntraCredential
    from tidegate.model.hub_settings import HubChanges as HubChanges
    from tidegate.model.hub_properties import EventHubProperties as EventHubProperties
    from tidegate.model.hub_properties import PartitionEnds as PartitionEnds
    from tidegate.client.entities import PolicyProperties as PolicyProperties
    from tidegate.client.entities import ThroughputProperties as ThroughputProperties
    from tidegate.client.entities import StatisticsProperties as StatisticsProperties
    from tidegate.client.entities import BackupProperties as BackupProperties
    from tidegate.client.entities import FailedEvents as FailedEvents
    from tidegate.client.entities import SendFailedError as SendFailedError

__getattr__, __dir__, __all__ = exports_of(__name__)
