"""A namespace, independent of protocols: event hubs, partitions, receivers, policies and their catalog.

The protocols import from here (they may not import ``tidegate.storage``); everything runs on one event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.exports import exports_of

if TYPE_CHECKING:
    # isort: off
    from tidegate.broker.namespace import Broker as Broker
    from tidegate.broker.event_hub import EventHub as EventHub
    from tidegate.broker.event_hub import EventHubDescription as EventHubDescription
    from tidegate.broker.event_hub import EventHubStatistics as EventHubStatistics
    from tidegate.broker.partition import Partition as Partition
    from tidegate.broker.receivers import ReceiverHandle as ReceiverHandle
    from tidegate.broker.receivers import OnStolen as OnStolen
    from tidegate.broker.producers import ProducerHandle as ProducerHandle
    from tidegate.broker.producers import OnProducerStolen as OnProducerStolen
    from tidegate.broker.publishers import PublisherActivity as PublisherActivity
    from tidegate.storage.engine import Backup as Backup
    from tidegate.storage.engine import BackupState as BackupState
    from tidegate.storage.engine import ControlConflictError as ControlConflictError
    from tidegate.storage.engine import ControlLog as ControlLog
    from tidegate.storage.engine import LogReader as LogReader
    from tidegate.storage.record import RecordBatch as RecordBatch
    from tidegate.storage.record import AppendResult as AppendResult
    from tidegate.storage.record import ProducerBatch as ProducerBatch
    from tidegate.broker.authorization import Authorizer as Authorizer
    from tidegate.broker.claims import Claim as Claim
    from tidegate.broker.authorization import Grant as Grant
    from tidegate.broker.authorization import SharedAccessPolicy as SharedAccessPolicy
    from tidegate.broker.authorization import NEVER_EXPIRES as NEVER_EXPIRES
    from tidegate.broker.authorization import ROOT_POLICY_NAME as ROOT_POLICY_NAME
    from tidegate.broker.policies import EMULATOR_KEY as EMULATOR_KEY
    from tidegate.broker.audit import Action as Action
    from tidegate.broker.audit import Actor as Actor
    from tidegate.broker.audit import AuditRecord as AuditRecord
    from tidegate.broker.audit import AuditTrail as AuditTrail
    from tidegate.broker.audit import acting_as as acting_as
    from tidegate.broker.audit import current_actor as current_actor
    from tidegate.broker.peers import Door as Door
    from tidegate.broker.peers import Peer as Peer
    from tidegate.broker.peers import UNKNOWN_PEER as UNKNOWN_PEER
    from tidegate.broker.blobs.groups import KeptGroup as KeptGroup
    from tidegate.broker.blobs.groups import KeptPartition as KeptPartition
    from tidegate.broker.throttling import Throughput as Throughput
    from tidegate.broker.throttling import ThroughputStatistics as ThroughputStatistics

__getattr__, __dir__, __all__ = exports_of(__name__)
