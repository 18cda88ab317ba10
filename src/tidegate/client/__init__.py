"""Clients of Event Hubs, Tidegate's or Azure's: producer, consumer, administrator, and blocking clients.

The same connection-string code works against both; Tidegate also delivers batches whole and stores each once.
All clients use asyncio; those in ``blocking`` run it in a thread.
"""

from tidegate.client.administrator import EventHubAdministrator
from tidegate.client.background import run_blocking
from tidegate.client.batching import EventDataBatch
from tidegate.client.blocking import BlockingConsumer, FetchedRange
from tidegate.client.consumer import EventHubConsumer
from tidegate.client.credentials import (
    Credential,
    EntraCredential,
    SharedKeyCredential,
    SharedSignatureCredential,
    TokenCredential,
)
from tidegate.client.entities import FailedEvents, PolicyProperties, SendFailedError, ThroughputProperties
from tidegate.client.namespace import ConnectionOptions, Namespace
from tidegate.client.producer import EventHubProducer
from tidegate.client.receiver import PartitionReceiver
from tidegate.client.repeatable import HubLayout, ProducerIdentity, RepeatableProducer, RepeatableWork
from tidegate.client.retry import RetryPolicy
from tidegate.model.hub_properties import EventHubProperties
from tidegate.model.hub_settings import HubChanges
from tidegate.model.partition_ends import PartitionEnds

__all__ = [
    "EventHubProducer",
    "EventDataBatch",
    "EventHubConsumer",
    "PartitionReceiver",
    "EventHubAdministrator",
    "BlockingConsumer",
    "FetchedRange",
    "RepeatableProducer",
    "RepeatableWork",
    "ProducerIdentity",
    "HubLayout",
    "run_blocking",
    "Namespace",
    "ConnectionOptions",
    "RetryPolicy",
    "Credential",
    "TokenCredential",
    "SharedKeyCredential",
    "SharedSignatureCredential",
    "EntraCredential",
    "HubChanges",
    "EventHubProperties",
    "PartitionEnds",
    "PolicyProperties",
    "ThroughputProperties",
    "FailedEvents",
    "SendFailedError",
]
