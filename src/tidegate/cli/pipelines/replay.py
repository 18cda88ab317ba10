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
            help="Where Capture writes: a directory, or a URL such as az://container/folder, whose account "
            f"{STORAGE_VARIABLE} names.",
        ),
    ],
    name_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Capture's naming format, where it is not the default one."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The namespace in the files' names, where there are several."),
    ] = None,
    starting_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Look at no files of before, e.g. 2026-11-20T12:00:00Z. Default: at all."
        ),
    ] = None,
    allow_gap: Annotated[
        bool,
        typer.Option("--allow-gap", help="Pass over events that are neither in the log nor in the files."),
    ] = False,
    database: DatabaseOption = None,
    checkpoint_dir: SparkCheckpointOption = None,
    master: MasterOption = None,
    available_now: AvailableNowOption = False,
    metrics_port: MetricsPortOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Run a pipeline over captured events, then go on live.

    Captured events stand in for what retention has dropped.

    It begins where the pipeline's SQL checkpoint stands, or with the first captured event, reads each
    partition from Capture's files up to where its log begins, and goes on in the log like `pipeline run`:
    no event is left out and none comes twice, whatever ends it in between. Events that are in neither end it
    with an error that names them. The pipeline writes rows to SQL per partition (a tidegate.sql.Pipeline, or
    a StreamPipeline with a SqlSink).

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
