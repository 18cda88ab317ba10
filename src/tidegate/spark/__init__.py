"""Spark over Event Hubs: the data source ``eventhubs``, and pipelines whose SQL effects happen exactly once.

The only package that imports pyspark. Names are loaded when they are first used: Spark starts half a dozen
Python processes per query that import this package, and most of them need one module of it (importing the
source: 1.3 s → 0.3 s).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.spark.arrow_step import ArrowStep
    from tidegate.spark.errors import explain
    from tidegate.spark.file_sink_commits import published_files
    from tidegate.spark.ledger import LedgerResult, LedgerSink
    from tidegate.spark.mapped_stream import mapped_events
    from tidegate.spark.pipeline import Transformation, run_pipeline, sink_options
    from tidegate.spark.replay import replay_pipeline
    from tidegate.spark.session import spark_session
    from tidegate.spark.source import register
    from tidegate.spark.stream_pipeline import (
        FileSink,
        HubSink,
        HubSource,
        OnFailure,
        SqlBatchSink,
        SqlSink,
        StreamPipeline,
    )
    from tidegate.spark.stream_pipeline_start import start_stream_pipeline
    from tidegate.spark.trigger import Trigger
    from tidegate.sql.ledger_rows import LedgerTable, WriteMode

__all__ = [
    "spark_session",
    "register",
    "mapped_events",
    "run_pipeline",
    "replay_pipeline",
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
]

_MODULES = {
    "spark_session": "session",
    "register": "source",
    "mapped_events": "mapped_stream",
    "run_pipeline": "pipeline",
    "replay_pipeline": "replay",
    "sink_options": "pipeline",
    "Transformation": "pipeline",
    "Trigger": "trigger",
    "explain": "errors",
    "StreamPipeline": "stream_pipeline",
    "HubSource": "stream_pipeline",
    "SqlSink": "stream_pipeline",
    "SqlBatchSink": "stream_pipeline",
    "HubSink": "stream_pipeline",
    "FileSink": "stream_pipeline",
    "OnFailure": "stream_pipeline",
    "start_stream_pipeline": "stream_pipeline_start",
    "LedgerSink": "ledger",
    "ArrowStep": "arrow_step",
    "LedgerResult": "ledger",
    "LedgerTable": "ledger",
    "WriteMode": "ledger",
    "published_files": "file_sink_commits",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
