"""``tidegate pipeline run``: a declared pipeline in this process, until it is stopped."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tidegate.cli.pipelines.start import (
    AvailableNowOption,
    MasterOption,
    MetricsPortOption,
    PipelineArgument,
    SparkCheckpointOption,
    load_stream_pipeline,
    run_declared,
)
from tidegate.cli.shell.connection import resolve_connection
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, DatabaseOption, with_output
from tidegate.cli.shell.render import Output


@with_output()
def run(
    output: Output,
    pipeline: PipelineArgument,
    database: DatabaseOption = None,
    checkpoint_dir: SparkCheckpointOption = None,
    master: MasterOption = None,
    available_now: AvailableNowOption = False,
    metrics_port: MetricsPortOption = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to serve metrics on.")
    ] = "127.0.0.1",
    spark_log: Annotated[
        str,
        typer.Option(metavar="LEVEL", help="Spark's log level: OFF, ERROR, WARN or INFO."),
    ] = "ERROR",
    adopt: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Continue once, where a SqlBatchSink's ledger stopped the query with this token.",
        ),
    ] = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Run a pipeline defined in a Python file.

    It runs until Ctrl-C, SIGTERM or `tidegate pipeline stop`.

    NAME is a tidegate.spark.StreamPipeline or a tidegate.sql.Pipeline in that file. Each micro-batch is
    reported as a line on standard error (on a terminal, one line that is updated) or, with --nl, --json or
    --csv, as a record on standard output. Spark's own log is next to the status file. When stopped, it
    finishes its micro-batch, or safely abandons it after 5 s, and exits with code 0; a second Ctrl-C ends it
    immediately. The next run continues where it stopped. A checkpoint directory that belongs to another
    pipeline, or to an event hub that was deleted and recreated, is rejected.

    \b
    Examples:
      tidegate pipeline run delays.py:pipeline --database sqlite:///delays.db
      tidegate pipeline run delays.py:pipeline --available-now --nl
      tidegate pipeline run delays.py:pipeline --master spark://host:7077 --metrics-port 9464
    """
    run_declared(
        output,
        load_stream_pipeline(pipeline),
        connection=resolve_connection(connection_string, ca_file, os.environ),
        database=database,
        checkpoint_dir=checkpoint_dir,
        master=master,
        is_available_now=available_now,
        metrics_at=None if metrics_port is None else (metrics_host, metrics_port),
        log_level=spark_log.upper(),
        adopt=adopt,
    )
