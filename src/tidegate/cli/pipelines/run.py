"""``tidegate pipeline run`` and ``replay``: a declared pipeline, until it is stopped or done."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.pipelines.declared import (
    load_declared_pipeline,
    pipeline_argument,
    require_spark,
)
from tidegate.cli.pipelines.shadow import begin_replay, on_spark, shadow_of, shadow_option
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import adding_argument, all_of, flag, option
from tidegate.cli.shell.options import PORT, database_option, with_output
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import DATABASE_VARIABLE, STORAGE_VARIABLE, database_url, open_database
from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline

_AZURE = ("az://", "abfs://", "abfss://")

_run_options = all_of(
    database_option,
    option(
        "--checkpoint-dir",
        "DIR",
        "Spark's checkpoint directory, or a URL that Spark can write to. Default: a directory with the "
        "pipeline's name in this user's state directory.",
    ),
    option("--master", "URL", "Spark's master. Default: local, with all cores of this machine."),
    flag("--available-now", "Process all events available now, then stop."),
    option(
        "--restarts",
        "N",
        "Most restarts in a row after errors that may pass: the service, the database or a worker was away "
        "for too long. A finished micro-batch resets the count; 0: never restart.",
        click.IntRange(min=0),
        default=5,
        show_default=True,
    ),
    option("--metrics-port", "N", "Port to serve Prometheus metrics on; 0: any free port.", PORT),
)


def _with_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a run; it takes ``RunOptions`` as its argument ``options``."""

    def make(_: click.Context, arguments: dict[str, Any]) -> RunOptions:
        names = ("database", "checkpoint_dir", "master", "available_now", "restarts", "metrics_port")
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
    restarts_max: int
    metrics_port: int | None


@click.command()
@pipeline_argument
@_with_run_options
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
    _run_declared(
        output,
        load_stream_pipeline(pipeline),
        service,
        options,
        metrics_host=metrics_host,
        log_level=spark_log.upper(),
        adopt=adopt,
    )


@click.command()
@pipeline_argument
@option(
    "--capture",
    "PATH",
    "Capture's destination: a directory, or a URL such as az://container/folder, in the account "
    f"given by {STORAGE_VARIABLE}. Required without --shadow.",
)
@shadow_option("Replay into this shadow of the pipeline, up to the live pipeline's checkpoint, and end.")
@option("--name-format", "FORMAT", "Capture's file name format, if not the default.")
@option("--namespace", "NAME", "The namespace in the file names, if there are several.")
@option(
    "--from",
    "TIME",
    "Ignore files from before this time, e.g. 2026-11-20T12:00:00Z. Default: read all files.",
    argument="starting_time",
)
@flag("--allow-gaps", "Skip events that are neither in the log nor in the files.")
@_with_run_options
@with_service
@with_output()
def replay(
    output: Output,
    service: Service,
    options: RunOptions,
    pipeline: str,
    capture: str | None,
    shadow: str | None,
    name_format: str | None,
    namespace: str | None,
    starting_time: str | None,
    allow_gaps: bool,
) -> None:
    """Run a pipeline over past events, or its next version into a shadow.

    Without --shadow, captured events replace those that retention has removed.

    It starts at the pipeline's SQL checkpoint, or with the first captured event; reads each partition from
    Capture's files up to the beginning of its log; and continues with the log like `pipeline run`. No event
    is skipped or processed twice, even if it is interrupted. If events are in neither place, it stops with an
    error that lists them. The pipeline must write rows to SQL per partition (a tidegate.sql.Pipeline, or a
    StreamPipeline with a SqlSink).

    With --shadow, the file's version of the pipeline writes to a table, checkpoints and dead letters of its
    own, while the live one runs on: from the beginning of the log, or of Capture, up to the live checkpoint.
    Compare the two with `pipeline diff`, then `pipeline swap` or `pipeline drop`. A pipeline with a handler
    needs no Spark for that, unless --capture is given. Run it again to catch up.

    Examples:
      tidegate pipeline replay delays.py:pipeline --capture /var/lib/capture --database sqlite:///delays.db
      tidegate pipeline replay delays.py:pipeline --capture az://archive/telemetry --available-now
      tidegate pipeline replay delays_v2.py:pipeline --shadow v2 --database sqlite:///delays.db
    """
    if shadow is None and capture is None:
        raise InvalidArgumentError(
            "Neither --capture nor --shadow was given.",
            next_step="Use `tidegate pipeline run` to run a pipeline over the log.",
        )
    declared = load_declared_pipeline(pipeline) if shadow else load_stream_pipeline(pipeline)
    declared = replace(declared, source=replace(declared.source, fail_on_data_loss=not allow_gaps))
    if shadow is not None:
        made = shadow_of(declared, shadow)
        with open_database(options.database) as database:
            is_done = begin_replay(database, made, declared, service, has_capture=capture is not None)
        if is_done:
            return
        declared, options = on_spark(declared, made), replace(options, is_available_now=True)
    chosen = {
        "path": capture,
        "nameFormat": name_format,
        "namespace": namespace,
        "startingTime": starting_time,
        "storageConnectionString": os.environ.get(STORAGE_VARIABLE)
        if capture is not None and capture.startswith(_AZURE)
        else None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    _run_declared(output, declared, service, options, capture=given if capture is not None else None)


def _run_declared(
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
            restarts_max=options.restarts_max,
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
    require_spark()
    return load_declared_pipeline(address)


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
    chosen = database_url(given)
    if not chosen:
        raise InvalidArgumentError(
            f"The pipeline {pipeline.name} writes to a table, but no database was given.",
            next_step=f"Use --database, {DATABASE_VARIABLE} or a profile, e.g. --database "
            f"sqlite:///{pipeline.name}.db",
        )
    return absolute_url(chosen)
