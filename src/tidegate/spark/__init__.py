"""Spark over Event Hubs: the data source ``eventhubs``, and pipelines whose SQL effects happen exactly once.

The only package that imports pyspark. Names are loaded on first use, because Spark starts half a dozen Python
processes per query that import this package, and most of them need one module of it (importing the source:
1.3 s → 0.3 s).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.spark.file_sink.commits import published_files
    from tidegate.spark.formats import register
    from tidegate.spark.ledger.ledger import LedgerResult, LedgerSink
    from tidegate.spark.pipelines.identity import HadoopDirectory
    from tidegate.spark.pipelines.mapped_events import mapped_events
    from tidegate.spark.pipelines.pipeline import Transformation, run_pipeline, sink_options
    from tidegate.spark.pipelines.start import start_stream_pipeline
    from tidegate.spark.pipelines.stream_pipeline import (
        FileSink,
        HubSink,
        HubSource,
        OnFailure,
        SqlBatchSink,
        SqlSink,
        StreamPipeline,
    )
    from tidegate.spark.progress.listener import reported_query
    from tidegate.spark.runtime.arrow_step import ArrowStep
    from tidegate.spark.runtime.errors import explain
    from tidegate.spark.runtime.session import checkpoint_path, spark_session, task_options
    from tidegate.spark.runtime.trigger import Trigger
    from tidegate.spark.runtime.workers import freeze_loaded_modules
    from tidegate.sql.ledger.rows import LedgerTable, WriteMode

__all__ = [
    "spark_session",
    "register",
    "mapped_events",
    "task_options",
    "checkpoint_path",
    "HadoopDirectory",
    "freeze_loaded_modules",
    "run_pipeline",
    "sink_options",
    "Transformation",
    "Trigger",
    "explain",
    "LedgerSink",
    "ArrowStep",
    "LedgerTable",
    "LedgerResult",
    "WriteMode",
    "published_files",
    "StreamPipeline",
    "HubSource",
    "SqlSink",
    "SqlBatchSink",
    "HubSink",
    "FileSink",
    "OnFailure",
    "start_stream_pipeline",
    "reported_query",
]

_MODULES = {
    "formats": ("register",),
    "file_sink.commits": ("published_files",),
    "ledger.ledger": ("LedgerSink", "LedgerResult", "LedgerTable", "WriteMode"),
    "pipelines.identity": ("HadoopDirectory",),
    "pipelines.mapped_events": ("mapped_events",),
    "pipelines.pipeline": ("run_pipeline", "sink_options", "Transformation"),
    "pipelines.start": ("start_stream_pipeline",),
    "pipelines.stream_pipeline": (
        "StreamPipeline",
        "HubSource",
        "SqlSink",
        "SqlBatchSink",
        "HubSink",
        "FileSink",
        "OnFailure",
    ),
    "progress.listener": ("reported_query",),
    "runtime.arrow_step": ("ArrowStep",),
    "runtime.errors": ("explain",),
    "runtime.session": ("spark_session", "task_options", "checkpoint_path"),
    "runtime.trigger": ("Trigger",),
    "runtime.workers": ("freeze_loaded_modules",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
