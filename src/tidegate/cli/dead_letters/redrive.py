"""``tidegate dlq redrive``: process open dead letters again with a (corrected) pipeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.dead_letters.filter import with_filter
from tidegate.cli.shell.completing import complete_group
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import FILE, flag, option
from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.options import COUNT, database_option, with_output
from tidegate.cli.shell.render import Output, OutputFormat, attributes, columns_of, remark
from tidegate.cli.shell.stores import default_actor, open_database
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP

if TYPE_CHECKING:
    from tidegate.cli.shell.profiles import ServiceConnection
    from tidegate.client.blocking.consumer import BlockingConsumer
    from tidegate.server.app import TidegateServer
    from tidegate.server.ready import ReadyInformation
    from tidegate.sql import ConsumerKey, DeadLetterFilter, RedriveReport

_COUNTS: Final = columns_of("considered redriven failed waiting")
_REASON_ATTRIBUTES: Final = {**columns_of("error_type reason"), **_COUNTS}
_REPORT_ATTRIBUTES: Final = columns_of(
    "considered redriven rows failed waiting lost exhausted taken_by_others is_dry_run"
)
_FAILURE_ATTRIBUTES: Final = columns_of("error_type reason count partition=partition_id sequence_number")


class IncompleteRedriveError(TidegateError):
    """A redrive finished and left dead letters open."""


data_dir_option = option(
    "--data-dir",
    "DIR",
    "Read events from this data directory instead of a service. No running service may be using it.",
    FILE,
)


@click.command()
@option(
    "--pipeline",
    "MODULE:ATTRIBUTE",
    "The Pipeline or TransactionalPipeline to process them with: package.module:attribute or "
    "path/to/file.py:attribute.",
    required=True,
)
@database_option
@data_dir_option
@option(
    "--read-group",
    "NAME",
    "Consumer group to read events with. Hosts of any group can keep running, except on Azure: use a group "
    "without hosts there.",
    default=DEFAULT_CONSUMER_GROUP,
    shell_complete=complete_group,
)
@flag("--dry-run", "Process everything, then roll back: nothing is written.")
@option("--limit", "N", "Maximum number to redrive.", COUNT, argument="maximum")
@option("--attempts-max", "N", "Skip dead letters that have already failed N times.", COUNT, default=10)
@option("--actor", "TEXT", "The name recorded in the audit trail. Default: USER@HOST.")
@flag("--progress", "Write a line of JSON to standard error after each transaction, for programs.")
@with_filter
@with_service
@with_output()
def redrive(
    output: Output,
    service: Service,
    chosen: DeadLetterFilter,
    pipeline: str,
    database: str | None,
    data_dir: Path | None,
    read_group: str,
    dry_run: bool,
    maximum: int | None,
    attempts_max: int,
    actor: str | None,
    progress: bool,
) -> None:
    """Process open dead letters again with a corrected pipeline.

    Events are read from the dead letters' copies, or from the log, while hosts and pipelines keep running.
    The handler's rows, the dead letter's new status and the audit trail are written in one transaction,
    so a redrive can be interrupted and repeated without writing anything twice. A dead letter stays
    open if it fails again, or if an earlier event with the same partition key is still open. Only dead
    letters of the pipeline's own name, hub and consumer group are processed; --hub and --group make the
    command fail if the pipeline is for another.

    Example:
      tidegate dlq redrive --database sqlite:///flights.db --pipeline my_pipelines:flights --dry-run
    """
    from tidegate.sql import DeadLetters, Pipeline, load_pipeline

    # As with `python -m`: the current directory can be imported from.
    sys.path.insert(0, os.getcwd())
    loaded = load_pipeline(pipeline)
    consumer = loaded.consumer
    _check_consumer(consumer, chosen.event_hub, chosen.consumer_group)
    chosen = replace(chosen, event_hub=consumer.event_hub, consumer_group=consumer.consumer_group)
    with (
        open_database(database) as opened,
        event_reader(loaded.event_hub, service, data_dir, group=read_group) as reader,
    ):
        if isinstance(loaded, Pipeline) and not dry_run:
            opened.ensure_table(loaded.table)
        dead_letters = DeadLetters(opened)
        # Dead letters of another pipeline, and those that have failed too often, stay unchanged.
        open_count = dead_letters.count(replace(chosen, pipeline=loaded.name))

        def total(report: RedriveReport) -> int:
            count = open_count - report.exhausted
            return count if maximum is None else min(maximum, count)

        with _progress_lines(total) if progress else _progress_bar(total) as on_progress:
            report = dead_letters.redrive(
                loaded,
                reader,
                filter=chosen,
                maximum=maximum,
                dry_run=dry_run,
                attempts_max=attempts_max,
                progress=on_progress,
                actor=actor or default_actor(),
            )
    is_nothing_found = not (report.considered or report.exhausted or report.taken_by_others)
    if output.is_table and is_nothing_found:
        remark(f"No open dead letter of the pipeline {loaded.name} ({consumer}) matches.")
        return
    _write_report(output, report)
    _raise_if_incomplete(report)


@contextmanager
def event_reader(
    hub: str, service: Service, data_dir: Path | None, *, group: str = DEFAULT_CONSUMER_GROUP
) -> Iterator[BlockingConsumer]:
    """Reads events from the running service, or from a data directory, which this process then serves.

    It reads beside hosts of the group, where the service can that.

    Raises NotFoundError for a directory without a service's data, DirectoryInUseError if a service has it
    open, and as starting a service does.
    """
    from tidegate.client.blocking.background import run_blocking
    from tidegate.client.blocking.consumer import BlockingConsumer

    with ExitStack() as stack:
        if data_dir is None:
            where: ServiceConnection | ReadyInformation = service.connection()
        else:
            server = _server_of(data_dir)
            where = run_blocking(server.start)
            stack.callback(lambda: run_blocking(server.close))
        reader = BlockingConsumer(
            where.connection_string, hub, consumer_group=group, ca_file=where.ca_file, is_peeking=True
        )
        yield stack.enter_context(reader)


def _server_of(data_dir: Path) -> TidegateServer:
    """A service for the log of an existing data directory, on a free port of loopback."""
    from tidegate.server.app import TidegateServer
    from tidegate.server.settings import ServerSettings

    if not (data_dir / "control.log").is_file():
        raise NotFoundError(
            f"{data_dir} is not a service's data directory.",
            next_step="Use the directory that `tidegate serve --data-dir` or an example used.",
        )
    return TidegateServer(ServerSettings(data_dir=data_dir, amqp_port=0, http_port=None))


@contextmanager
def _progress_bar(total: Callable[[RedriveReport], int]) -> Iterator[Callable[[RedriveReport], None]]:
    from tidegate.cli.shell.progress import progress_bar
    from tidegate.sql import RedriveReport

    whole = total(RedriveReport())
    with progress_bar("Redriving", whole) as show:
        # How many have failed too often is only known on the way: they count as done.
        yield lambda report: show(report.considered + whole - total(report))


@contextmanager
def _progress_lines(total: Callable[[RedriveReport], int]) -> Iterator[Callable[[RedriveReport], None]]:
    import orjson

    def write(report: RedriveReport) -> None:
        counts = attributes(report, _COUNTS) | {"total": total(report)}
        remark(orjson.dumps({"progress": counts}).decode())

    yield write


def _check_consumer(consumer: ConsumerKey, hub: str | None, group: str | None) -> None:
    """Raises InvalidArgumentError for a pipeline of another hub or consumer group than the options name."""
    from tidegate.sql import ConsumerKey

    named = ConsumerKey(hub or consumer.event_hub, group or consumer.consumer_group)
    if named != consumer:
        raise InvalidArgumentError(
            # It does not name the other: the console shows this error to a policy of one hub.
            f"The pipeline is for another event hub or consumer group, not for {named}.",
            next_step="Use the pipeline that owns these dead letters, or omit --hub and --group.",
        )


def _write_report(output: Output, report: RedriveReport) -> None:
    counts = attributes(report, _REPORT_ATTRIBUTES) | {"lost": len(report.lost)}
    title = "Redrive (dry run: nothing was written)" if report.is_dry_run else "Redrive"
    if output.is_table:
        output.record(counts, title=title)
        if report.by_reason:
            output.line("")
            output.objects(report.by_reason, _REASON_ATTRIBUTES, title="By previous reason")
        if report.failures:
            output.line("")
            title = "New failures, with the first event of each"
            output.objects(report.failures, _FAILURE_ATTRIBUTES, title=title)
    elif output.format is OutputFormat.CSV:
        output.record(counts)
    else:
        reasons = [attributes(each, _REASON_ATTRIBUTES) for each in report.by_reason]
        failures = [attributes(each, _FAILURE_ATTRIBUTES) for each in report.failures]
        output.record({**counts, "by_reason": reasons, "failures": failures})


def _raise_if_incomplete(report: RedriveReport) -> None:
    problems = {
        "failed again": report.failed,
        "are no longer in the log and have no copy": len(report.lost),
        "wait behind an earlier event of their partition key": report.waiting,
        "were skipped because they had failed too often": report.exhausted,
    }
    found = [f"{count:,} {problem}" for problem, count in problems.items() if count]
    if not found:
        return
    text = f"{'; '.join(found)}. They stay open."
    if report.is_dry_run:
        raise CheckFailedError(f"In this dry run {text}", next_step="Fix the pipeline first.")
    raise IncompleteRedriveError(text, next_step="See `tidegate dlq list --by-reason`.")
