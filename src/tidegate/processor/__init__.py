"""Event Processor Host: leases, balancing, pumps and checkpoints, against Tidegate and Azure Event Hubs."""

from tidegate.processor.checkpoint import CheckpointStore, ProcessorCheckpoint
from tidegate.processor.group_view import GroupView, Lag, view_group
from tidegate.processor.handlers import (
    CloseReason,
    EventProcessor,
    PartitionContext,
    TransactionalProcessor,
    TransactionContext,
)
from tidegate.processor.host.host import EventProcessorHost
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot, LeaseStore
from tidegate.processor.options import EventProcessorOptions, PartitionManagerOptions
from tidegate.processor.policies import FailureAction, FailurePolicy, PositionLostPolicy
from tidegate.processor.statistics import HostStatistics, PartitionState, PartitionStatistics
from tidegate.processor.store import (
    PartitionTransactions,
    ProcessorStore,
    TransactionalStore,
    TransactionOutcome,
)
from tidegate.processor.stores.directory import DirectoryStore
from tidegate.processor.stores.memory import MemoryStore

__all__ = [
    "EventProcessorHost",
    "EventProcessor",
    "TransactionalProcessor",
    "PartitionContext",
    "TransactionContext",
    "CloseReason",
    "EventProcessorOptions",
    "PartitionManagerOptions",
    "PositionLostPolicy",
    "FailurePolicy",
    "FailureAction",
    "HostStatistics",
    "PartitionStatistics",
    "PartitionState",
    "ProcessorStore",
    "LeaseStore",
    "CheckpointStore",
    "TransactionalStore",
    "PartitionTransactions",
    "TransactionOutcome",
    "MemoryStore",
    "DirectoryStore",
    "GroupKey",
    "Lease",
    "LeaseSnapshot",
    "GroupView",
    "view_group",
    "Lag",
    "ProcessorCheckpoint",
]
