"""``tidegate pipeline run``: a declared pipeline in this process, until it is stopped."""

from __future__ import annotations

import click

from tidegate.cli.pipelines.start import (
    RunOptions,
    load_stream_pipeline,
    pipeline_argument,
    run_declared,
    with_run_options,
)
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import option
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output


@click.command()
@pipeline_argument
@with_run_options
@option("--metrics-host", "ADDRESS", "Address to serve metrics on.", default="127.0.0.1")
@option("--spark-log", "LEVEL", "Spark's log level: OFF, ERROR, WARN or INFO.", default="ERROR")
@option("--adopt", "TOKEN", "Continue once, where a SqlBatchSink's ledger stopped the query with this token.")
@with_service
@with_output()
def run(
    output: Output,
    service: Service,
    options: RunOptions,
    pipeline: str,
    metrics_host: str,
    spark_log: str,
    adopt: str | None,
) -> None:
    """Run a pipeline defined in a Python file.

    It runs until Ctrl-C, SIGTERM or `tidegate pipeline stop`.

    NAME is a tidegate.spark.StreamPipeline or a tidegate.sql.Pipeline in that file. Each micro-batch is
    reported as a line on standard error (on a terminal, one line that is updated) or, with --nl, --json or
    --csv, as a record on standard output. Spark's own log is next to the status file. When stopped, it
    finishes its micro-batch, or safely abandons it after 5 s, and exits with code 0; a second Ctrl-C ends it
    immediately. The next run continues where it stopped. A checkpoint directory that belongs to another
    pipeline, or to an event hub that was deleted and recreated, is rejected.

    Examples:
      tidegate pipeline run delays.py:pipeline --database sqlite:///delays.db
      tidegate pipeline run delays.py:pipeline --available-now --nl
      tidegate pipeline run delays.py:pipeline --master spark://host:7077 --metrics-port 9464
    """
    run_declared(
        output,
        load_stream_pipeline(pipeline),
        service,
        options,
        metrics_host=metrics_host,
        log_level=spark_log.upper(),
        adopt=adopt,
    )
