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
        str, typer.Option(metavar="ADDRESS", help="Address to serve metrics at.")
    ] = "127.0.0.1",
    spark_log: Annotated[
        str,
        typer.Option(metavar="LEVEL", help="What Spark writes to its log: OFF, ERROR, WARN or INFO."),
    ] = "ERROR",
    adopt: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Go on where the ledger of a SqlBatchSink refused to, once."),
    ] = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Run a pipeline that a Python file declares.

    It runs until Ctrl-C, SIGTERM or `tidegate pipeline stop`.

    The file's NAME is a tidegate.spark.StreamPipeline or a tidegate.sql.Pipeline. Each micro-batch is a line
    on standard error (on a terminal one line that is redrawn), or with --nl, --json or --csv a record on
    standard output; Spark's own log lies beside its status. Stopped, it lets its micro-batch come to an end,
    or abandons it after 5 s without harm, and ends with exit code 0; a second Ctrl-C ends it at once. Started
    again, it goes on where it was. A checkpoint directory of another pipeline, or of an event hub that was
    made anew, is refused.

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
