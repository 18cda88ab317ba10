"""The transactional core: rows, dead letters and the checkpoint of a batch in one SQL transaction.

What is promised: the database effects of an event happen exactly once. Its handler may run again; effects
outside the database are not covered. Names are loaded on first use: Spark's Python processes import values
from here, and SQLAlchemy takes them half a second of CPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.sql.audit.audit import Audit, Finding, FindingKind, PartitionAudit, StrayRows
    from tidegate.sql.audit.table import AuditedLog, audit_table
    from tidegate.sql.commit.batch import process_partition_batch
    from tidegate.sql.core.database import Database
    from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
    from tidegate.sql.core.values import (
        AuditEntry,
        BatchResult,
        Checkpoint,
        ConsumerKey,
        DeadLetter,
        DeadLetterFilter,
        DeadLetterStatus,
        EventReader,
        NewDeadLetter,
        ReasonCount,
        RedriveFailure,
        RedriveReason,
        RedriveReport,
        Row,
    )
    from tidegate.sql.dead_letters.dead_letters import DeadLetters
    from tidegate.sql.handlers.batches import (
        ArrowHandler,
        BatchHandler,
        BatchResultError,
        PandasHandler,
        TransformationError,
    )
    from tidegate.sql.handlers.context import TransactionMisusedError
    from tidegate.sql.handlers.pipeline import (
        AnyPipeline,
        Handler,
        Pipeline,
        TransactionalPipeline,
        load_pipeline,
    )
    from tidegate.sql.ledger.ledger import forget_query, next_batch_id
    from tidegate.sql.stores.checkpoint_moves import CheckpointMove, move_checkpoint
    from tidegate.sql.stores.checkpoints import CheckpointReader, forget_consumer
    from tidegate.sql.stores.group_views import read_group_view, read_group_views
    from tidegate.sql.stores.processor_store import SqlStore

__all__ = [
    "Database",
    "CheckpointReader",
    "Checkpoint",
    "ConsumerKey",
    "move_checkpoint",
    "CheckpointMove",
    "forget_consumer",
    "SqlStore",
    "read_group_view",
    "read_group_views",
    "Pipeline",
    "TransactionalPipeline",
    "AnyPipeline",
    "TransactionMisusedError",
    "Handler",
    "ArrowHandler",
    "PandasHandler",
    "BatchHandler",
    "BatchResultError",
    "TransformationError",
    "Row",
    "load_pipeline",
    "process_partition_batch",
    "BatchResult",
    "NewDeadLetter",
    "UnitOfWork",
    "RowsRefusedError",
    "DeadLetters",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterStatus",
    "ReasonCount",
    "AuditEntry",
    "EventReader",
    "RedriveReport",
    "RedriveReason",
    "RedriveFailure",
    "audit_table",
    "AuditedLog",
    "Audit",
    "PartitionAudit",
    "Finding",
    "FindingKind",
    "StrayRows",
    "next_batch_id",
    "forget_query",
]

_MODULES = {
    "core.database": ("Database",),
    "stores.checkpoints": ("CheckpointReader", "forget_consumer"),
    "core.values": (
        "Checkpoint",
        "ConsumerKey",
        "Row",
        "BatchResult",
        "NewDeadLetter",
        "DeadLetter",
        "DeadLetterFilter",
        "DeadLetterStatus",
        "ReasonCount",
        "AuditEntry",
        "EventReader",
        "RedriveReport",
        "RedriveReason",
        "RedriveFailure",
    ),
    "stores.checkpoint_moves": ("move_checkpoint", "CheckpointMove"),
    "stores.processor_store": ("SqlStore",),
    "stores.group_views": ("read_group_view", "read_group_views"),
    "handlers.pipeline": ("Pipeline", "TransactionalPipeline", "AnyPipeline", "Handler", "load_pipeline"),
    "handlers.context": ("TransactionMisusedError",),
    "handlers.batches": (
        "ArrowHandler",
        "PandasHandler",
        "BatchHandler",
        "BatchResultError",
        "TransformationError",
    ),
    "commit.batch": ("process_partition_batch",),
    "core.unit_of_work": ("UnitOfWork", "RowsRefusedError"),
    "dead_letters.dead_letters": ("DeadLetters",),
    "audit.table": ("audit_table", "AuditedLog"),
    "audit.audit": ("Audit", "PartitionAudit", "Finding", "FindingKind", "StrayRows"),
    "ledger.ledger": ("next_batch_id", "forget_query"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
