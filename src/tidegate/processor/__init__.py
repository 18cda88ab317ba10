"""Event Processor Host: leases, balancing, pumps and checkpoints, against Tidegate and Azure Event Hubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.exports import exports_of

if TYPE_CHECKING:
    # isort: off
    from tidegate.processor.host.host import EventProcessorHost as EventProcessorHost
    from tidegate.processor.handlers import EventProcessor as EventProcessor
    from tidegate.processor.handlers import TransactionalProcessor as TransactionalProcessor
    from tidegate.processor.handlers import PartitionContext as PartitionContext
    from tidegate.processor.handlers import TransactionContext as TransactionContext
    from tidegate.processor.handlers import CloseReason as CloseReason
    from tidegate.processor.options import EventProcessorOptions as EventProcessorOptions
    from tidegate.processor.options import PartitionManagerOptions as PartitionManagerOptions
    from tidegate.processor.policies import PositionLostPolicy as PositionLostPolicy
    from tidegate.processor.policies import FailurePolicy as FailurePolicy
    from tidegate.processor.policies import FailureAction as FailureAction
    from tidegate.processor.statistics import HostStatistics as HostStatistics
    from tidegate.processor.statistics import PartitionStatistics as PartitionStatistics
    from tidegate.processor.statistics import PartitionState as PartitionState
    from tidegate.processor.store import ProcessorStore as ProcessorStore
    from tidegate.processor.lease import LeaseManager as LeaseManager
    from tidegate.processor.checkpoint import CheckpointManager as CheckpointManager
    from tidegate.processor.dead_letters import DeadLetterManager as DeadLetterManager
    from tidegate.processor.dead_letters import FailedEvent as FailedEvent
    from tidegate.processor.dead_letters import HubDeadLetters as HubDeadLetters
    from tidegate.processor.store import TransactionalStore as TransactionalStore
    from tidegate.processor.store import PartitionTransactions as PartitionTransactions
    from tidegate.processor.store import TransactionOutcome as TransactionOutcome
    from tidegate.processor.store import PublishingStore as PublishingStore
    from tidegate.processor.store import EventRelay as EventRelay
    from tidegate.processor.store import RelayStatistics as RelayStatistics
    from tidegate.processor.stores.memory import MemoryStore as MemoryStore
    from tidegate.processor.stores.directory import DirectoryStore as DirectoryStore
    from tidegate.processor.lease import GroupKey as GroupKey
    from tidegate.processor.lease import Lease as Lease
    from tidegate.processor.lease import LeaseSnapshot as LeaseSnapshot
    from tidegate.processor.group_view import GroupView as GroupView
    from tidegate.processor.group_view import view_group as view_group
    from tidegate.processor.group_view import Lag as Lag
    from tidegate.processor.checkpoint import ProcessorCheckpoint as ProcessorCheckpoint

__getattr__, __dir__, __all__ = exports_of(__name__)
