"""``tidegate pipeline replay``: a declared pipeline over captured events, and then live."""

from __future__ import annotations

import os
from dataclasses import replace
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
from tidegate.cli.shell.options import (
    STORAGE_VARIABLE,
    CaFileOption,
    ConnectionStringOption,
    DatabaseOption,
    with_output,
)
from tidegate.cli.shell.render import Output

_AZURE = ("az://", "abfs://", "abfss://")


@with_output()
def replay(
    output: Output,
    pipeline: PipelineArgument,
    capture: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Capture's destination: a directory, or a URL such as az://container/folder, in the account "
            f"given by {STORAGE_VARIABLE}.",
        ),
    ],
    name_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Capture's file name format, if not the default."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The namespace in the file names, if there are several."),
    ] = None,
    starting_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Ignore files from before this time, e.g. 2026-11-20T12:00:00Z. Default: read all files.",
        ),
    ] = None,
    allow_gap: Annotated[
        bool,
        typer.Option("--allow-gap", help="Skip events that are neither in the log nor in the files."),
    ] = False,
    database: DatabaseOption = None,
    checkpoint_dir: SparkCheckpointOption = None,
    master: MasterOption = None,
    available_now: AvailableNowOption = False,
    metrics_port: MetricsPortOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Run a pipeline over captured events, then over live ones.

    Captured events replace those that retention has removed.

    It starts at the pipeline's SQL checkpoint, or with the first captured event; reads each partition from
    Capture's files up to the beginning of its log; and continues with the log like `pipeline run`. No event
    is skipped or processed twice, even if it is interrupted. If events are in neither place, it stops with an
    error that lists them. The pipeline must write rows to SQL per partition (a tidegate.sql.Pipeline, or a
    StreamPipeline with a SqlSink).

    \b
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
    run_declared(
        output,
        declared,
        connection=resolve_connection(connection_string, ca_file, os.environ),
        database=database,
        checkpoint_dir=checkpoint_dir,
        master=master,
        is_available_now=available_now,
        metrics_at=None if metrics_port is None else ("127.0.0.1", metrics_port),
        capture={name: value for name, value in chosen.items() if value is not None},
    )
