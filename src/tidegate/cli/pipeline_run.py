"""``tidegate pipeline run``: a declared pipeline in this process, until it is stopped."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import resolve_connection
from tidegate.cli.options import DATABASE_VARIABLE, CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.render import Output
from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.spark.stream_pipeline import StreamPipeline


@with_output()
def run(
    output: Output,
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME", help="The pipeline: path/to/file.py:name or package.module:name."
        ),
    ],
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            help="SQL database of a pipeline that writes to one, in SQLAlchemy's form. "
            f"Else {DATABASE_VARIABLE}.",
        ),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Spark's checkpoint directory, or an address that Spark can write to. Default: one of the "
            "pipeline's name in this user's state directory.",
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
    """Run a pipeline that a Python file declares, until Ctrl-C, SIGTERM or `tidegate pipeline stop`.

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
    from tidegate.cli.pipeline_process import PipelineRun
    from tidegate.cli.pipeline_screen import PipelineScreen
    from tidegate.transport.status_files import PipelineFiles

    check_installed("pyspark", "pyarrow")
    connection = resolve_connection(connection_string, ca_file, os.environ)
    declared = load_stream_pipeline(pipeline)
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
            metrics_at=None if metrics_port is None else (metrics_host, metrics_port),
            log_level=spark_log.upper(),
            adopt=adopt,
            watch=screen.watch,
        ).run(files)
    finally:
        screen.close(status)


def load_stream_pipeline(address: str) -> StreamPipeline:
    """The declaration at an address; its file, and what lies beside it, are found by Spark's workers, too.

    Raises InvalidArgumentError.
    """
    from tidegate.spark.stream_pipeline import StreamPipeline, declared_pipeline
    from tidegate.sql.pipeline import Pipeline, load_declared

    place = address.rpartition(":")[0]
    # As with `python file.py`: neighbours can be imported. Workers of this machine inherit the environment.
    directory = str(Path(place).absolute().parent) if place.endswith(".py") else os.getcwd()
    sys.path.insert(0, directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
    found = load_declared(address, (StreamPipeline, Pipeline))
    assert isinstance(found, StreamPipeline | Pipeline)
    return declared_pipeline(found)


def database_url_of(pipeline: StreamPipeline, given: str | None) -> str | None:
    """The database of a pipeline that writes to one, with a relative SQLite path made absolute."""
    from tidegate.model.errors import InvalidArgumentError
    from tidegate.spark.stream_pipeline import SqlBatchSink, SqlSink
    from tidegate.sql.database import absolute_url

    if not isinstance(pipeline.sink, SqlSink | SqlBatchSink):
        if given is not None:
            raise InvalidArgumentError(
                f"--database is given, and the pipeline {pipeline.name} writes to no database.",
                next_step="Leave it out.",
            )
        return None
    chosen = given or os.environ.get(DATABASE_VARIABLE)
    if not chosen:
        raise InvalidArgumentError(
            f"The pipeline {pipeline.name} writes to a table, and no database is named.",
            next_step=f"Give --database or {DATABASE_VARIABLE}, e.g. --database sqlite:///{pipeline.name}.db",
        )
    return absolute_url(chosen)


def check_installed(*packages: str) -> None:
    """Raises NotFoundError for a package that is not installed, with the command that installs it."""
    for name in packages:
        if find_spec(name) is None:
            raise NotFoundError(
                f"Pipelines need the package {name}, which is not installed.",
                next_step="Run `pip install 'tidegate[spark]'`.",
            )
