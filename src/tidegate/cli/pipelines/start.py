"""What ``tidegate pipeline run`` and ``replay`` share: options, and starting a declared pipeline here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.shell.connection import ServiceConnection
from tidegate.cli.shell.installed import check_installed
from tidegate.cli.shell.options import DATABASE_VARIABLE
from tidegate.cli.shell.render import Output

if TYPE_CHECKING:
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline

PipelineArgument = Annotated[
    str,
    typer.Argument(metavar="FILE.py:NAME", help="The pipeline: path/to/file.py:name or package.module:name."),
]

SparkCheckpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Spark's checkpoint directory, or a URL that Spark can write to. Default: a directory with the "
        "pipeline's name in this user's state directory.",
    ),
]

MasterOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master. Default: local, with all cores of this machine."),
]

AvailableNowOption = Annotated[
    bool, typer.Option("--available-now", "--once", help="Process all events available now, then stop.")
]

MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, metavar="N", help="Port to serve Prometheus metrics on; 0: any free port."
    ),
]


def run_declared(
    output: Output,
    declared: StreamPipeline,
    *,
    connection: ServiceConnection,
    database: str | None,
    checkpoint_dir: str | None,
    master: str | None,
    is_available_now: bool,
    metrics_at: tuple[str, int] | None,
    log_level: str = "ERROR",
    adopt: str | None = None,
    capture: Mapping[str, str] | None = None,
) -> None:
    """Run a pipeline in this process until it ends or is stopped, and show how it does.

    The parameters are those of ``PipelineRun``; database, checkpoint_dir: None are the defaults of this
    user. Raises what it does.
    """
    from tidegate.cli.pipelines.process import PipelineRun
    from tidegate.cli.pipelines.screen import PipelineScreen
    from tidegate.transport.status_files import PipelineFiles

    files = PipelineFiles.of_user(os.environ)
    screen = PipelineScreen(output)
    status = None
    try:
        status = PipelineRun(
            pipeline=declared,
            connection=connection,
            database_url=_database_url(declared, database),
            checkpoint=checkpoint_dir or str(files.checkpoint_dir(declared.name).absolute()),
            master=master,
            is_available_now=is_available_now,
            metrics_at=metrics_at,
            log_level=log_level,
            adopt=adopt,
            watch=screen.watch,
            capture=capture,
        ).run(files)
    finally:
        screen.close(status)


def load_stream_pipeline(address: str) -> StreamPipeline:
    """The declaration at an address; its file, and what lies beside it, are found by Spark's workers, too.

    Raises InvalidArgumentError, and NotFoundError where Spark is not installed.
    """
    check_installed("pyspark", "pyarrow", extras="spark")
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline, declared_pipeline
    from tidegate.sql.handlers.pipeline import Pipeline, load_declared

    place = address.rpartition(":")[0]
    # As with `python file.py`: neighbours can be imported. Workers of this machine inherit the environment.
    directory = str(Path(place).absolute().parent) if place.endswith(".py") else os.getcwd()
    sys.path.insert(0, directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
    found = load_declared(address, (StreamPipeline, Pipeline))
    assert isinstance(found, StreamPipeline | Pipeline)
    return declared_pipeline(found)


def _database_url(pipeline: StreamPipeline, given: str | None) -> str | None:
    """The database of a pipeline that writes to one, with a relative SQLite path made absolute."""
    from tidegate.model.errors import InvalidArgumentError
    from tidegate.spark.pipelines.stream_pipeline import SqlBatchSink, SqlSink
    from tidegate.sql.core.database import absolute_url

    if not isinstance(pipeline.sink, SqlSink | SqlBatchSink):
        if given is not None:
            raise InvalidArgumentError(
                f"--database was given, but the pipeline {pipeline.name} does not write to a database.",
                next_step="Omit --database.",
            )
        return None
    chosen = given or os.environ.get(DATABASE_VARIABLE)
    if not chosen:
        raise InvalidArgumentError(
            f"The pipeline {pipeline.name} writes to a table, but no database was given.",
            next_step=f"Use --database or set {DATABASE_VARIABLE}, e.g. --database "
            f"sqlite:///{pipeline.name}.db",
        )
    return absolute_url(chosen)
