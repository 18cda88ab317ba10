"""Spark over Event Hubs: the data source ``eventhubs``, and pipelines whose SQL effects happen exactly once.

The only package that imports pyspark. Names are loaded on first use: Spark starts half a dozen Python
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
    from tidegate.spark.progress.reported import reported_query
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
    "spark_session": "runtime.session",
    "register": "formats",
    "mapped_events": "pipelines.mapped_events",
    "task_options": "runtime.session",
    "checkpoint_path": "runtime.session",
    "HadoopDirectory": "pipelines.identity",
    "freeze_loaded_modules": "runtime.workers",
    "run_pipeline": "pipelines.pipeline",
    "sink_options": "pipelines.pipeline",
    "Transformation": "pipelines.pipeline",
    "Trigger": "runtime.trigger",
    "explain": "runtime.errors",
    "StreamPipeline": "pipelines.stream_pipeline",
    "HubSource": "pipelines.stream_pipeline",
    "SqlSink": "pipelines.stream_pipeline",
    "SqlBatchSink": "pipelines.stream_pipeline",
    "HubSink": "pipelines.stream_pipeline",
    "FileSink": "pipelines.stream_pipeline",
    "OnFailure": "pipelines.stream_pipeline",
    "start_stream_pipeline": "pipelines.start",
    "LedgerSink": "ledger.ledger",
    "ArrowStep": "runtime.arrow_step",
    "LedgerResult": "ledger.ledger",
    "LedgerTable": "ledger.ledger",
    "WriteMode": "ledger.ledger",
    "published_files": "file_sink.commits",
    "reported_query": "progress.reported",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
