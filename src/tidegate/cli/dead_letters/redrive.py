"""``tidegate dlq redrive``: open dead letters through a (corrected) pipeline again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.dead_letters.filter import (
    ErrorTypeFilter,
    GroupFilter,
    HubFilter,
    NumberFilter,
    PartitionFilter,
    ReasonFilter,
    ReasonIsFilter,
    SinceFilter,
    StatusChoice,
    UntilFilter,
    chosen_filter,
)
from tidegate.cli.shell.connection import resolve_connection
from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.options import (
    CaFileOption,
    ConnectionStringOption,
    DatabaseOption,
    with_output,
)
from tidegate.cli.shell.render import Output, OutputFormat
from tidegate.cli.shell.stores import default_actor, open_database
from tidegate.model.errors import InvalidArgumentError, TidegateError

if TYPE_CHECKING:
    from tidegate.client.blocking import BlockingConsumer
    from tidegate.sql import ConsumerKey, RedriveReport

_REASON_COLUMNS = ("error_type", "reason", "considered", "redriven", "failed", "waiting")
_COUNTS = ("considered", "redriven", "failed", "waiting")
_FAILURE_COLUMNS = ("error_type", "reason", "count", "partition", "sequence_number")


class IncompleteRedriveError(TidegateError):
    """A redrive came to its end and left dead letters open."""


DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Read events from this data directory instead of a service. No running service may be using it.",
    ),
]


@with_output()
def redrive(
    output: Output,
    pipeline: Annotated[
        str,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="The Pipeline or TransactionalPipeline to process them with: package.module:attribute or "
            "path/to/file.py:attribute.",
        ),
    ],
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Process everything, then roll back: nothing is written.")
    ] = False,
    max_: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Maximum number to redrive.")
    ] = None,
    attempts_max: Annotated[
        int, typer.Option(min=1, metavar="N", help="Skip dead letters that have already failed N times.")
    ] = 10,
    actor: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The name recorded in the audit trail. Default: USER@HOST."),
    ] = None,
    progress: Annotated[
        bool,
        typer.Option(
            "--progress", help="Write a line of JSON to standard error after each transaction, for programs."
        ),
    ] = False,
    hub: HubFilter = None,
    group: GroupFilter = None,
    partition: PartitionFilter = None,
    error_type: ErrorTypeFilter = None,
    reason: ReasonFilter = None,
    reason_is: ReasonIsFilter = None,
    sequence_number: NumberFilter = None,
    failed_since: SinceFilter = None,
    failed_until: UntilFilter = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Process open dead letters again with a corrected pipeline.

    Events are read from the log. The handler's rows, the dead letter's new status and the audit trail are
    written in one transaction, so a redrive can be interrupted and repeated without writing anything twice. A
    dead letter stays open if it fails again, or if an earlier event with the same partition key is still
    open. Only dead letters of the pipeline's own name, hub and consumer group are processed; --hub and
    --group make the command fail if the pipeline is for another.

    \b
    Example:
      tidegate dlq redrive --database sqlite:///flights.db --pipeline my_pipelines:flights --dry-run
    """
    from tidegate.sql import DeadLetters, Pipeline, load_pipeline

    # As with `python -m`: a user's module lies where the user stands.
    sys.path.insert(0, os.getcwd())
    loaded = load_pipeline(pipeline)
    _check_consumer(loaded.consumer, hub, group)
    consumer = loaded.consumer
    chosen = chosen_filter(
        consumer.event_hub,
        consumer.consumer_group,
        partition,
        error_type,
        reason,
        reason_is,
        StatusChoice.OPEN,
        sequence_number,
        failed_since,
        failed_until,
    )
    with (
        open_database(database) as opened,
        event_reader(loaded.event_hub, data_dir, connection_string, ca_file) as reader,
    ):
        if isinstance(loaded, Pipeline) and not dry_run:
            opened.ensure_table(loaded.table)
        dead_letters = DeadLetters(opened)
        # Those of a pipeline of another name stay what they are, as those that were tried too often do.
        open_count = dead_letters.count(replace(chosen, pipeline=loaded.name))

        def total(report: RedriveReport) -> int:
            count = open_count - report.exhausted
            return count if max_ is None else min(max_, count)

        with _progress_lines(total) if progress else _progress_bar(total) as on_progress:
            report = dead_letters.redrive(
                loaded,
                reader,
                filter=chosen,
                maximum=max_,
                dry_run=dry_run,
                attempts_max=attempts_max,
                progress=on_progress,
                actor=actor or default_actor(),
            )
    if output.is_table and _found_nothing(report):
        sys.stderr.write(f"No open dead letter of the pipeline {loaded.name} ({consumer}) matches.\n")
        return
    _write_report(output, report)
    _raise_if_incomplete(report)


@contextmanager
def event_reader(
    hub: str, data_dir: Path | None, connection_string: str | None, ca_file: Path | None
) -> Iterator[BlockingConsumer]:
    """What reads events back: from a data directory with a service of its own, or from a running service."""
    from contextlib import ExitStack

    from tidegate.cli.service.embedded import embedded_service
    from tidegate.client.blocking import BlockingConsumer

    with ExitStack() as stack:
        if data_dir is not None:
            ready = stack.enter_context(embedded_service(data_dir))
            text, ca_text = ready.connection_string, ready.ca_file
        else:
            connection = resolve_connection(connection_string, ca_file, os.environ)
            text, ca_text = connection.connection_string, connection.ca_file
        yield stack.enter_context(BlockingConsumer(text, hub, ca_file=ca_text))


@contextmanager
def _progress_bar(total: Callable[[RedriveReport], int]) -> Iterator[Callable[[RedriveReport], None]]:
    from tidegate.cli.shell.progress import progress_bar
    from tidegate.sql import RedriveReport

    whole = total(RedriveReport())
    with progress_bar("Redriving", whole) as bar:
        # What was tried too often is only known on the way: it is passed over.
        yield lambda report: bar.update(report.considered + whole - total(report))


@contextmanager
def _progress_lines(total: Callable[[RedriveReport], int]) -> Iterator[Callable[[RedriveReport], None]]:
    import orjson

    def write(report: RedriveReport) -> None:
        counts = {name: getattr(report, name) for name in _COUNTS}
        sys.stderr.write(orjson.dumps({"progress": {**counts, "total": total(report)}}).decode() + "\n")
        sys.stderr.flush()

    yield write


def _check_consumer(consumer: ConsumerKey, hub: str | None, group: str | None) -> None:
    """Raises InvalidArgumentError for a pipeline of another hub or consumer group than was said."""
    from tidegate.sql import ConsumerKey

    said = ConsumerKey(hub or consumer.event_hub, group or consumer.consumer_group)
    if said != consumer:
        raise InvalidArgumentError(
            # It does not say for which: the console shows it to a policy of one hub.
            f"The pipeline is for another event hub or consumer group, not for {said}.",
            next_step="Use the pipeline that owns these dead letters, or omit --hub and --group.",
        )


def _found_nothing(report: RedriveReport) -> bool:
    """Whether no dead letter was even looked at, by this redrive or by another one meanwhile."""
    return not (report.considered or report.exhausted or report.taken_by_others)


def _write_report(output: Output, report: RedriveReport) -> None:
    counts = {
        "considered": report.considered,
        "redriven": report.redriven,
        "rows": report.rows,
        "failed": report.failed,
        "waiting": report.waiting,
        "lost": len(report.lost),
        "exhausted": report.exhausted,
        "taken_by_others": report.taken_by_others,
        "is_dry_run": report.is_dry_run,
    }
    reasons = [{name: getattr(each, name) for name in _REASON_COLUMNS} for each in report.by_reason]
    failures = [
        {
            "error_type": each.error_type,
            "reason": each.reason,
            "count": each.count,
            "partition": each.partition_id,
            "sequence_number": each.sequence_number,
        }
        for each in report.failures
    ]
    title = "Redrive (dry run: nothing was written)" if report.is_dry_run else "Redrive"
    if output.is_table:
        output.record(counts, title=title)
        if reasons:
            output.line("")
            output.records(reasons, columns=_REASON_COLUMNS, title="By previous reason")
        if failures:
            output.line("")
            output.records(
                failures, columns=_FAILURE_COLUMNS, title="New failures, with the first event of each"
            )
    elif output.format is OutputFormat.CSV:
        output.record(counts)
    else:
        output.record({**counts, "by_reason": reasons, "failures": failures})


def _raise_if_incomplete(report: RedriveReport) -> None:
    problems = []
    if report.failed:
        problems.append(f"{report.failed:,} failed again")
    if report.lost:
        problems.append(f"{len(report.lost):,} are no longer in the log and have no copy")
    if report.waiting:
        problems.append(f"{report.waiting:,} wait behind an earlier event of their partition key")
    if report.exhausted:
        problems.append(f"{report.exhausted:,} were skipped because they had failed too often")
    if not problems:
        return
    text = f"{'; '.join(problems)}. They stay open."
    if report.is_dry_run:
        raise CheckFailedError(f"In this dry run {text}", next_step="Fix the pipeline first.")
    raise IncompleteRedriveError(text, next_step="See `tidegate dlq list --by-reason`.")
