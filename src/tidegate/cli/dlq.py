"""``tidegate dlq``: look at dead letters, run them again, or close them for good."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import resolve_connection
from tidegate.cli.dlq_filter import (
    ErrorTypeFilter,
    GroupFilter,
    HubFilter,
    NumberFilter,
    PartitionFilter,
    ReasonFilter,
    SinceFilter,
    StatusChoice,
    UntilFilter,
    chosen_filter,
)
from tidegate.cli.exit_codes import CheckFailedError
from tidegate.cli.options import (
    CaFileOption,
    ConnectionStringOption,
    DatabaseOption,
    with_output,
)
from tidegate.cli.render import Output, OutputFormat
from tidegate.cli.stores import open_database
from tidegate.model.errors import TidegateError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP

if TYPE_CHECKING:
    from tidegate.client.blocking import BlockingConsumer
    from tidegate.model.events import ReceivedEvent
    from tidegate.sql import DeadLetter, RedriveReport

dlq_app = typer.Typer(help="Look at dead letters, run them again, or close them.", no_args_is_help=True)


class IncompleteRedriveError(TidegateError):
    """A redrive came to its end and left dead letters open."""


DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Read events from this directory, not from a service; no running service may have it open.",
    ),
]

_LIST_COLUMNS = (
    "event_hub",
    "partition",
    "sequence_number",
    "key",
    "status",
    "attempts",
    "error_type",
    "reason",
    "last_failed_at",
)
_REASON_COLUMNS = ("error_type", "reason", "considered", "redriven", "failed", "waiting")
_COUNT_COLUMNS = ("error_type", "reason", "count", "first_failed_at", "last_failed_at")


@dlq_app.command("list")
@with_output()
def list_dead_letters(
    output: Output,
    database: DatabaseOption = None,
    status: Annotated[StatusChoice, typer.Option(help="Which ones.")] = StatusChoice.OPEN,
    by_reason: Annotated[
        bool, typer.Option("--by-reason", help="How many there are of each error and reason.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show this many at most.")] = 100,
    hub: HubFilter = None,
    group: GroupFilter = None,
    partition: PartitionFilter = None,
    error_type: ErrorTypeFilter = None,
    reason: ReasonFilter = None,
    sequence_number: NumberFilter = None,
    failed_since: SinceFilter = None,
    failed_until: UntilFilter = None,
) -> None:
    """List dead letters, open ones unless told otherwise.

    \b
    Examples:
      tidegate dlq list --database sqlite:///flights.db
      tidegate dlq list --database postgresql://user@host/name --by-reason --json
    """
    from tidegate.sql import DeadLetters

    chosen = chosen_filter(
        hub, group, partition, error_type, reason, status, sequence_number, failed_since, failed_until
    )
    with open_database(database) as opened:
        dead_letters = DeadLetters(opened)
        if by_reason:
            counts = dead_letters.counts_by_reason(chosen)[:limit]
            output.records(
                ({name: getattr(item, name) for name in _COUNT_COLUMNS} for item in counts),
                columns=_COUNT_COLUMNS,
                title="Dead letters by reason",
            )
            return
        found = dead_letters.list(chosen, limit=limit)
        count = len(found) if len(found) < limit else dead_letters.count(chosen)
    output.records((_list_record(item) for item in found), columns=_LIST_COLUMNS, title="Dead letters")
    if count > len(found):
        sys.stderr.write(
            f"Showing {len(found):,} of {count:,}: --limit shows more, --by-reason counts them.\n"
        )


@dlq_app.command("show")
@with_output()
def show(
    output: Output,
    hub: Annotated[str, typer.Argument(metavar="HUB", help="The event hub.")],
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="The partition.")],
    sequence_number: Annotated[
        int, typer.Argument(metavar="SEQUENCE_NUMBER", help="The event's sequence number.")
    ],
    database: DatabaseOption = None,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="The consumer group that put it aside.")
    ] = DEFAULT_CONSUMER_GROUP,
    event: Annotated[
        bool,
        typer.Option("--event", help="Also read the event itself back from the log, else from its copy."),
    ] = False,
    data_dir: DataDirOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show one dead letter with its traceback, and the event if asked.

    The event comes from the log; where that no longer holds it, or cannot be reached, from the copy that the
    dead letter keeps, if it keeps one.

    \b
    Example:
      tidegate dlq show flights 0 4711 --database sqlite:///flights.db
    """
    from tidegate.cli.tail import event_record
    from tidegate.sql import ConsumerKey, DeadLetters

    with open_database(database) as opened:
        letter = DeadLetters(opened).show(ConsumerKey(hub, group), partition, sequence_number)
    record = dict(_list_record(letter))
    record |= {
        "consumer_group": letter.consumer_group,
        "pipeline": letter.pipeline,
        "offset": letter.offset,
        "first_failed_at": letter.first_failed_at,
        "is_payload_copied": letter.payload is not None,
        "traceback": letter.traceback,
    }
    if event:
        contents = event_record(_event_of(letter, data_dir, connection_string, ca_file))
        record |= {name: contents[name] for name in ("properties", "body", "body_base64")}
    output.record(record, title="Dead letter")


@dlq_app.command("history")
@with_output()
def history(
    output: Output,
    hub: Annotated[str, typer.Argument(metavar="HUB", help="The event hub.")],
    partition: Annotated[
        str | None, typer.Argument(metavar="[PARTITION]", help="The partition; else all.")
    ] = None,
    sequence_number: Annotated[
        int | None, typer.Argument(metavar="[SEQUENCE_NUMBER]", help="The event's sequence number; else all.")
    ] = None,
    database: DatabaseOption = None,
    group: Annotated[str, typer.Option(metavar="NAME", help="The consumer group.")] = DEFAULT_CONSUMER_GROUP,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show this many at most.")] = 100,
) -> None:
    """Show who redrove or discarded which dead letters, the latest first.

    \b
    Example:
      tidegate dlq history flights --database sqlite:///flights.db
    """
    from tidegate.sql import ConsumerKey, DeadLetters

    with open_database(database) as opened:
        entries = DeadLetters(opened).audit(ConsumerKey(hub, group), partition, sequence_number, limit=limit)
    output.records(
        (
            {
                "at": entry.at,
                "partition": entry.partition_id,
                "sequence_number": entry.sequence_number,
                "action": entry.action,
                "actor": entry.actor,
                "detail": entry.detail,
            }
            for entry in entries
        ),
        columns=("at", "partition", "sequence_number", "action", "actor", "detail"),
        title="What was done to dead letters",
    )


@dlq_app.command("redrive")
@with_output()
def redrive(
    output: Output,
    pipeline: Annotated[
        str,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="The Pipeline or TransactionalPipeline to run them through: package.module:attribute or "
            "path/to/file.py:attribute.",
        ),
    ],
    database: DatabaseOption = None,
    data_dir: DataDirOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do all of it, and roll it back: nothing is written.")
    ] = False,
    max_: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Take this many at most.")
    ] = None,
    attempts_max: Annotated[
        int, typer.Option(min=1, metavar="N", help="Leave those alone that have failed so often.")
    ] = 10,
    partition: PartitionFilter = None,
    error_type: ErrorTypeFilter = None,
    reason: ReasonFilter = None,
    sequence_number: NumberFilter = None,
    failed_since: SinceFilter = None,
    failed_until: UntilFilter = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Run open dead letters through a (corrected) pipeline again.

    Events are read back from the log. What the handler writes, the dead letter's new status and the audit
    trail are one transaction, so it may be interrupted and repeated: nothing is written twice. What fails
    again stays open, and so does what waits behind an earlier event of its partition key.

    \b
    Example:
      tidegate dlq redrive --database sqlite:///flights.db --pipeline my_pipelines:flights --dry-run
    """
    from tidegate.sql import DeadLetters, Pipeline, load_pipeline

    # As with `python -m`: a user's module lies where the user stands.
    sys.path.insert(0, os.getcwd())
    loaded = load_pipeline(pipeline)
    chosen = chosen_filter(
        None,
        None,
        partition,
        error_type,
        reason,
        StatusChoice.OPEN,
        sequence_number,
        failed_since,
        failed_until,
    )
    with (
        open_database(database) as opened,
        _event_reader(loaded.event_hub, data_dir, connection_string, ca_file) as reader,
    ):
        if isinstance(loaded, Pipeline) and not dry_run:
            opened.ensure_table(loaded.table)
        dead_letters = DeadLetters(opened)
        with _redrive_progress(dead_letters.count(chosen), max_) as on_progress:
            report = dead_letters.redrive(
                loaded,
                reader,
                filter=chosen,
                maximum=max_,
                dry_run=dry_run,
                attempts_max=attempts_max,
                progress=on_progress,
            )
    _write_report(output, report)
    _raise_if_incomplete(report)


@dlq_app.command("discard")
def discard(
    because: Annotated[str, typer.Option(metavar="TEXT", help="Why; the audit trail keeps it.")],
    database: DatabaseOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; on anything but a terminal it never asks.")
    ] = False,
    hub: HubFilter = None,
    group: GroupFilter = None,
    partition: PartitionFilter = None,
    error_type: ErrorTypeFilter = None,
    reason: ReasonFilter = None,
    sequence_number: NumberFilter = None,
    failed_since: SinceFilter = None,
    failed_until: UntilFilter = None,
) -> None:
    """Close open dead letters for good, without running them.

    \b
    Example:
      tidegate dlq discard --database sqlite:///flights.db --reason diverted --because "not our flights"
    """
    from tidegate.sql import DeadLetters

    chosen = chosen_filter(
        hub,
        group,
        partition,
        error_type,
        reason,
        StatusChoice.OPEN,
        sequence_number,
        failed_since,
        failed_until,
    )
    with open_database(database) as opened:
        dead_letters = DeadLetters(opened)
        if dry_run:
            sys.stderr.write(f"Would discard {dead_letters.count(chosen):,} dead letters.\n")
            return
        if not yes and sys.stdin.isatty():
            typer.confirm(f"Discard {dead_letters.count(chosen):,} dead letters?", abort=True, err=True)
        count = dead_letters.discard(chosen, reason=because)
    sys.stderr.write(f"Discarded {count:,} dead letters.\n")


@contextmanager
def _event_reader(
    hub: str, data_dir: Path | None, connection_string: str | None, ca_file: Path | None
) -> Iterator[BlockingConsumer]:
    """What reads events back: from a data directory with a service of its own, or from a running service."""
    from contextlib import ExitStack

    from tidegate.cli.embedded import embedded_service
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
def _redrive_progress(open_count: int, maximum: int | None) -> Iterator[Callable[[RedriveReport], None]]:
    from tidegate.cli.progress import progress_bar

    total = open_count if maximum is None else min(open_count, maximum)
    with progress_bar("Redriving", total) as bar:

        def show_progress(report: RedriveReport) -> None:
            bar.update(report.considered)

        yield show_progress


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
    title = "Redrive (dry run: nothing was written)" if report.is_dry_run else "Redrive"
    if output.is_table:
        output.record(counts, title=title)
        if reasons:
            output.line("")
            output.records(reasons, columns=_REASON_COLUMNS, title="By the reason they had before")
    elif output.format is OutputFormat.CSV:
        output.record(counts)
    else:
        output.record({**counts, "by_reason": reasons})


def _event_of(
    letter: DeadLetter, data_dir: Path | None, connection_string: str | None, ca_file: Path | None
) -> ReceivedEvent:
    """The event from the log; from its copy where the log cannot be asked. Raises TidegateError."""
    from tidegate.sql.read_back import event_of_copy, find_event

    try:
        with _event_reader(letter.event_hub, data_dir, connection_string, ca_file) as reader:
            return find_event(letter, reader)
    except TidegateError as error:
        copy = event_of_copy(letter)
        if copy is None:
            raise
        sys.stderr.write(f"This is the copy that the dead letter keeps: {error}\n")
        return copy


def _raise_if_incomplete(report: RedriveReport) -> None:
    problems = []
    if report.failed:
        problems.append(f"{report.failed:,} failed again")
    if report.lost:
        problems.append(f"{len(report.lost):,} are no longer in the log and were not copied")
    if report.waiting:
        problems.append(f"{report.waiting:,} wait behind an earlier event of their partition key")
    if report.exhausted:
        problems.append(f"{report.exhausted:,} had failed too often to be tried")
    if not problems:
        return
    text = f"{'; '.join(problems)}. They stay open."
    if report.is_dry_run:
        raise CheckFailedError(f"In this dry run {text}", next_step="Correct the pipeline first.")
    raise IncompleteRedriveError(text, next_step="See `tidegate dlq list --by-reason`.")


def _list_record(letter: DeadLetter) -> dict[str, object]:
    return {
        "event_hub": letter.event_hub,
        "partition": letter.partition_id,
        "sequence_number": letter.sequence_number,
        "key": letter.partition_key,
        "status": letter.status.value,
        "attempts": letter.attempts,
        "error_type": letter.error_type,
        "reason": letter.reason,
        "last_failed_at": letter.last_failed_at,
    }
