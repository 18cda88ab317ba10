"""The transactional core: rows, dead letters and the checkpoint of a batch in one SQL transaction.

What is promised: the database effects of an event happen exactly once. Its handler may run again; effects
outside the database are not covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.exports import exports_of

if TYPE_CHECKING:
    # isort: off
    from tidegate.sql.core.database import Database as Database
    from tidegate.sql.stores.checkpoints import CheckpointReader as CheckpointReader
    from tidegate.sql.core.values import Checkpoint as Checkpoint
    from tidegate.sql.core.values import ConsumerKey as ConsumerKey
    from tidegate.sql.stores.checkpoint_moves import move_checkpoint as move_checkpoint
    from tidegate.sql.stores.checkpoint_moves import CheckpointMove as CheckpointMove
    from tidegate.sql.stores.checkpoints import forget_consumer as forget_consumer
    from tidegate.sql.stores.processor_store import SqlStore as SqlStore
    from tidegate.sql.stores.group_views import read_group_view as read_group_view
    from tidegate.sql.stores.group_views import read_group_views as read_group_views
    from tidegate.sql.handlers.pipeline import Pipeline as Pipeline
    from tidegate.sql.handlers.dataclass_tables import table_of as table_of
    from tidegate.sql.handlers.pipeline import TransactionalPipeline as TransactionalPipeline
    from tidegate.sql.handlers.pipeline import AnyPipeline as AnyPipeline
    from tidegate.sql.handlers.context import TransactionMisusedError as TransactionMisusedError
    from tidegate.sql.handlers.pipeline import Handler as Handler
    from tidegate.sql.handlers.batches import ArrowHandler as ArrowHandler
    from tidegate.sql.handlers.batches import PandasHandler as PandasHandler
    from tidegate.sql.handlers.batches import BatchHandler as BatchHandler
    from tidegate.sql.handlers.batches import BatchResultError as BatchResultError
    from tidegate.sql.handlers.batches import TransformationError as TransformationError
    from tidegate.sql.core.values import Row as Row
    from tidegate.sql.handlers.pipeline import load_pipeline as load_pipeline
    from tidegate.sql.commit.batch import process_partition_batch as process_partition_batch
    from tidegate.sql.core.values import BatchResult as BatchResult
    from tidegate.sql.core.values import NewDeadLetter as NewDeadLetter
    from tidegate.sql.core.unit_of_work import UnitOfWork as UnitOfWork
    from tidegate.sql.core.unit_of_work import RowsRefusedError as RowsRefusedError
    from tidegate.sql.dead_letters.dead_letters import DeadLetters as DeadLetters
    from tidegate.sql.dead_letters.own_table import DeadLetterTable as DeadLetterTable
    from tidegate.sql.core.values import DeadLetter as DeadLetter
    from tidegate.sql.core.values import DeadLetterFilter as DeadLetterFilter
    from tidegate.sql.core.values import DeadLetterStatus as DeadLetterStatus
    from tidegate.sql.core.values import ReasonCount as ReasonCount
    from tidegate.sql.core.values import AuditEntry as AuditEntry
    from tidegate.sql.core.values import EventReader as EventReader
    from tidegate.sql.core.values import RedriveReport as RedriveReport
    from tidegate.sql.core.values import RedriveReason as RedriveReason
    from tidegate.sql.core.values import RedriveFailure as RedriveFailure
    from tidegate.sql.audit.table import audit_table as audit_table
    from tidegate.sql.audit.table import AuditedLog as AuditedLog
    from tidegate.sql.audit.audit import Audit as Audit
    from tidegate.sql.audit.audit import PartitionAudit as PartitionAudit
    from tidegate.sql.audit.audit import Finding as Finding
    from tidegate.sql.audit.audit import FindingKind as FindingKind
    from tidegate.sql.audit.audit import StrayRows as StrayRows
    from tidegate.sql.ledger.ledger import next_batch_id as next_batch_id
    from tidegate.sql.ledger.ledger import forget_query as forget_query

__getattr__, __dir__, __all__ = exports_of(__name__)
