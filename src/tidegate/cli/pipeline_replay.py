"""``tidegate pipeline replay``: a declared pipeline over captured events, and then live."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tidegate.cli.connection import resolve_connection
from tidegate.cli.options import (
    DATABASE_VARIABLE,
    STORAGE_VARIABLE,
    CaFileOption,
    ConnectionStringOption,
    with_output,
)
from tidegate.cli.pipeline_run import check_installed, database_url_of, load_stream_pipeline
from tidegate.cli.render import Output

_AZURE = ("az://", "abfs://", "abfss://")


@with_output()
def replay(
    output: Output,
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME", help="The pipeline: path/to/file.py:name or package.module:name."
        ),
    ],
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
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            help=f"SQL database to write to, in SQLAlchemy's form. Else {DATABASE_VARIABLE}.",
        ),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Spark's checkpoint directory, as for `pipeline run`, which may go on with it.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark's master. Default: all cores of this machine, no cluster."),
    ] = None,
    available_now: Annotated[
        bool,
        typer.Option("--available-now", "--once", help="Process what is there now, then end."),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="Serve metrics for Prometheus there; 0: any port."),
    ] = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Run a pipeline over captured events for what retention has dropped, and then go on live.

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
    from dataclasses import replace

    from tidegate.cli.pipeline_process import PipelineRun
    from tidegate.cli.pipeline_screen import PipelineScreen
    from tidegate.transport.status_files import PipelineFiles

    check_installed("pyspark", "pyarrow")
    connection = resolve_connection(connection_string, ca_file, os.environ)
    declared = load_stream_pipeline(pipeline)
    declared = replace(declared, source=replace(declared.source, fail_on_data_loss=not allow_gap))
    chosen = {
        "path": capture,
        "nameFormat": name_format,
        "namespace": namespace,
        "startingTime": starting_time,
        "storageConnectionString": os.environ.get(STORAGE_VARIABLE) if capture.startswith(_AZURE) else None,
    }
    files = PipelineFiles.of_user(os.environ)
    screen = PipelineScreen(output)
    status = None
    try:
        status = PipelineRun(
            pipeline=declared,
            connection=connection,
            database_url=database_url_of(declared, database),
            checkpoint=checkpoint_dir or str(files.checkpoint_dir(declared.name).absolute()),
            master=master,
            is_available_now=available_now,
            metrics_at=None if metrics_port is None else ("127.0.0.1", metrics_port),
            log_level="ERROR",
            adopt=None,
            watch=screen.watch,
            capture={name: value for name, value in chosen.items() if value is not None},
        ).run(files)
    finally:
        screen.close(status)
