"""A namespace, independent of protocols: event hubs, partitions, receivers, policies and their catalog.

The protocols import from here (they may not import ``tidegate.storage``); everything runs on one event loop.
"""

from tidegate.broker.audit import Action, Actor, AuditRecord, AuditTrail, acting_as
from tidegate.broker.authorization import (
    NEVER_EXPIRES,
    ROOT_POLICY_NAME,
    Authorizer,
    Claim,
    Grant,
    SharedAccessPolicy,
)
from tidegate.broker.event_hub import EventHub, EventHubDescription, EventHubStatistics
from tidegate.broker.namespace import Broker
from tidegate.broker.partition import Partition
from tidegate.broker.peers import UNKNOWN_PEER, Door, Peer
from tidegate.broker.policies import EMULATOR_KEY
from tidegate.broker.producers import OnProducerStolen, ProducerHandle
from tidegate.broker.publishers import PublisherActivity
from tidegate.broker.receivers import OnStolen, ReceiverHandle
from tidegate.broker.throttling import Throughput, ThroughputStatistics
from tidegate.storage.engine import LogReader
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch

__all__ = [
    "Broker",
    "EventHub",
    "EventHubDescription",
    "EventHubStatistics",
    "Partition",
    "ReceiverHandle",
    "OnStolen",
    "ProducerHandle",
    "OnProducerStolen",
    "PublisherActivity",
    "LogReader",
    "RecordBatch",
    "AppendResult",
    "ProducerBatch",
    "Authorizer",
    "Claim",
    "Grant",
    "SharedAccessPolicy",
    "NEVER_EXPIRES",
    "ROOT_POLICY_NAME",
    "EMULATOR_KEY",
    "Action",
    "Actor",
    "AuditRecord",
    "AuditTrail",
    "acting_as",
    "Door",
    "Peer",
    "UNKNOWN_PEER",
    "Throughput",
    "ThroughputStatistics",
]
