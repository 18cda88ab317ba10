"""What ``tidegate pipeline run`` and ``replay`` share: options, and starting a declared pipeline here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.shell.connection import Service
from tidegate.cli.shell.decorators import adding_argument, all_of, option
from tidegate.cli.shell.options import PORT, database_option
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import DATABASE_VARIABLE
from tidegate.model.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline

pipeline_argument = click.argument(
    "pipeline", metavar="FILE.py:NAME", help="The pipeline: path/to/file.py:name or package.module:name."
)

_run_options = all_of(
    database_option,
    option(
        "--checkpoint-dir",
        "DIR",
        "Spark's checkpoint directory, or a URL that Spark can write to. Default: a directory with the "
        "pipeline's name in this user's state directory.",
    ),
    option("--master", "URL", "Spark's master. Default: local, with all cores of this machine."),
    click.option(
        "--available-now", "--once", is_flag=True, help="Process all events available now, then stop."
    ),
    option("--metrics-port", "N", "Port to serve Prometheus metrics on; 0: any free port.", PORT),
)


def with_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a run; it takes ``RunOptions`` as its argument ``options``."""

    def make(_: click.Context, arguments: dict[str, Any]) -> RunOptions:
        names = ("database", "checkpoint_dir", "master", "available_now", "metrics_port")
        return RunOptions(*(arguments.pop(name) for name in names))

    return _run_options(adding_argument(command, "options", make))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the options of a run say."""

    database: str | None
    """None: the database of the environment."""
    checkpoint_dir: str | None
    """None: a directory of this user with the pipeline's name."""
    master: str | None
    is_available_now: bool
    metrics_port: int | None


def run_declared(
    output: Output,
    declared: StreamPipeline,
    service: Service,
    options: RunOptions,
    *,
    metrics_host: str = "127.0.0.1",
    log_level: str = "ERROR",
    adopt: str | None = None,
    capture: Mapping[str, str] | None = None,
) -> None:
    """Run a pipeline in this process until it ends or is stopped, and show its progress.

    The other parameters are those of ``PipelineRun``, and it raises the same errors.
    """
    from tidegate.cli.pipelines.process import PipelineRun
    from tidegate.cli.pipelines.screen import PipelineScreen
    from tidegate.transport.status_files import PipelineFiles

    connection = service.connection()
    files = PipelineFiles.of_user(os.environ)
    screen = PipelineScreen(output)
    status = None
    try:
        status = PipelineRun(
            pipeline=declared,
            connection=connection,
            database_url=_database_url(declared, options.database),
            checkpoint=options.checkpoint_dir or str(files.checkpoint_dir(declared.name).absolute()),
            master=options.master,
            is_available_now=options.is_available_now,
            metrics_at=None if options.metrics_port is None else (metrics_host, options.metrics_port),
            log_level=log_level,
            adopt=adopt,
            watch=screen.watch,
            capture=capture,
        ).run(files)
    finally:
        screen.close(status)


def load_stream_pipeline(address: str) -> StreamPipeline:
    """The declaration at an address; Spark's workers can import its file and the modules beside it.

    Raises InvalidArgumentError, and NotFoundError if Spark is not installed.
    """
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise NotFoundError(
                f"This command requires the package {package}, which is not installed.",
                next_step="Run `pip install 'tidegate[spark]'`; in a clone, `make demo`.",
            )
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline, declared_pipeline
    from tidegate.sql.handlers.pipeline import Pipeline, load_declared

    place = address.rpartition(":")[0]
    # As with `python file.py`: modules beside it can be imported. Local workers inherit the environment.
    directory = str(Path(place).absolute().parent) if place.endswith(".py") else os.getcwd()
    sys.path.insert(0, directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
    found = load_declared(address, (StreamPipeline, Pipeline))
    assert isinstance(found, StreamPipeline | Pipeline)
    return declared_pipeline(found)


def _database_url(pipeline: StreamPipeline, given: str | None) -> str | None:
    """The database of a pipeline that writes to one, with a relative SQLite path made absolute."""
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
