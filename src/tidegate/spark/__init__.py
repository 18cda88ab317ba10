"""Spark over Event Hubs: the data source ``eventhubs``, and pipelines whose SQL effects happen exactly once.

The only package that imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.exports import exports_of

if TYPE_CHECKING:
    # isort: off
    from tidegate.spark.runtime.session import spark_session as spark_session
    from tidegate.spark.formats import register as register
    from tidegate.spark.pipelines.mapped_events import mapped_events as mapped_events
    from tidegate.spark.runtime.session import task_options as task_options
    from tidegate.spark.runtime.session import checkpoint_path as checkpoint_path
    from tidegate.spark.pipelines.identity import HadoopDirectory as HadoopDirectory
    from tidegate.spark.runtime.workers import freeze_loaded_modules as freeze_loaded_modules
    from tidegate.spark.pipelines.pipeline import run_pipeline as run_pipeline
    from tidegate.spark.pipelines.pipeline import sink_options as sink_options
    from tidegate.spark.pipelines.pipeline import Transformation as Transformation
    from tidegate.spark.runtime.trigger import Trigger as Trigger
    from tidegate.spark.runtime.errors import explain as explain
    from tidegate.spark.ledger.ledger import LedgerSink as LedgerSink
    from tidegate.spark.runtime.arrow_step import ArrowStep as ArrowStep
    from tidegate.sql.ledger.rows import LedgerTable as LedgerTable
    from tidegate.sql.ledger.commit import LedgerResult as LedgerResult
    from tidegate.sql.ledger.rows import WriteMode as WriteMode
    from tidegate.spark.file_sink.commits import published_files as published_files
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline as StreamPipeline
    from tidegate.spark.pipelines.stream_pipeline import HubSource as HubSource
    from tidegate.spark.pipelines.stream_pipeline import SqlSink as SqlSink
    from tidegate.spark.pipelines.stream_pipeline import SqlBatchSink as SqlBatchSink
    from tidegate.spark.pipelines.stream_pipeline import HubSink as HubSink
    from tidegate.spark.pipelines.stream_pipeline import FileSink as FileSink
    from tidegate.spark.pipelines.stream_pipeline import OnFailure as OnFailure
    from tidegate.spark.pipelines.start import start_stream_pipeline as start_stream_pipeline
    from tidegate.spark.progress.listener import reported_query as reported_query

__getattr__, __dir__, __all__ = exports_of(__name__)
