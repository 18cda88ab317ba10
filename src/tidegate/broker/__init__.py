"""What a namespace does, knowing no protocol: event hubs, partitions, receivers, policies and their catalog.

Faces import from here (they may not import ``tidegate.storage``); everything runs on one event loop.
"""

from tidegate.broker.authorization import ROOT_POLICY_NAME, Authorizer, Claim, Grant, SharedAccessPolicy
from tidegate.broker.event_hub import EventHub, EventHubDescription, EventHubStatistics
from tidegate.broker.namespace import Broker
from tidegate.broker.partition import Partition, PartitionRuntimeInformation
from tidegate.broker.receivers import OnStolen, ReceiverHandle
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch

__all__ = [
    "Broker",
    "EventHub",
    "EventHubDescription",
    "EventHubStatistics",
    "Partition",
    "PartitionRuntimeInformation",
    "ReceiverHandle",
    "OnStolen",
    "RecordBatch",
    "AppendResult",
    "ProducerBatch",
    "Authorizer",
    "Claim",
    "Grant",
    "SharedAccessPolicy",
    "ROOT_POLICY_NAME",
]
