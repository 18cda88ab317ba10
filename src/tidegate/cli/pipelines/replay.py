"""``tidegate pipeline replay``: a declared pipeline over captured events, and then live."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from tidegate.cli.pipelines.start import (
    RunOptions,
    load_stream_pipeline,
    pipeline_argument,
    run_declared,
    with_run_options,
)
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import flag, option
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import STORAGE_VARIABLE

_AZURE = ("az://", "abfs://", "abfss://")


@click.command()
@pipeline_argument
@option(
    "--capture",
    "PATH",
    "Capture's destination: a directory, or a URL such as az://container/folder, in the account "
    f"given by {STORAGE_VARIABLE}.",
    required=True,
)
@option("--name-format", "FORMAT", "Capture's file name format, if not the default.")
@option("--namespace", "NAME", "The namespace in the file names, if there are several.")
@option(
    "--starting-time",
    "TIME",
    "Ignore files from before this time, e.g. 2026-11-20T12:00:00Z. Default: read all files.",
)
@flag("--allow-gap", "Skip events that are neither in the log nor in the files.")
@with_run_options
@with_service
@with_output()
def replay(
    output: Output,
    service: Service,
    options: RunOptions,
    pipeline: str,
    capture: str,
    name_format: str | None,
    namespace: str | None,
    starting_time: str | None,
    allow_gap: bool,
) -> None:
    """Run a pipeline over captured events, then over live ones.

    Captured events replace those that retention has removed.

    It starts at the pipeline's SQL checkpoint, or with the first captured event; reads each partition from
    Capture's files up to the beginning of its log; and continues with the log like `pipeline run`. No event
    is skipped or processed twice, even if it is interrupted. If events are in neither place, it stops with an
    error that lists them. The pipeline must write rows to SQL per partition (a tidegate.sql.Pipeline, or a
    StreamPipeline with a SqlSink).

    Examples:
      tidegate pipeline replay delays.py:pipeline --capture /var/lib/capture --database sqlite:///delays.db
      tidegate pipeline replay delays.py:pipeline --capture az://archive/telemetry --available-now
    """
    declared = load_stream_pipeline(pipeline)
    declared = replace(declared, source=replace(declared.source, fail_on_data_loss=not allow_gap))
    chosen = {
        "path": capture,
        "nameFormat": name_format,
        "namespace": namespace,
        "startingTime": starting_time,
        "storageConnectionString": os.environ.get(STORAGE_VARIABLE) if capture.startswith(_AZURE) else None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    run_declared(output, declared, service, options, capture=given)
