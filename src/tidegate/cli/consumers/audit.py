"""``tidegate audit``: whether a table holds exactly what log, checkpoints and dead letters imply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.shell.connection import FIRST_CONTACT_TIMEOUT_S, Service, with_service
from tidegate.cli.shell.decorators import flag, option
from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.options import database_option, group_option, hub_argument, with_output
from tidegate.cli.shell.render import Output, OutputFormat, attributes, columns_of, counted, remark
from tidegate.cli.shell.stores import open_database

if TYPE_CHECKING:
    from tidegate.sql import Audit, FindingKind, PartitionAudit

_ATTRIBUTES: Final = columns_of(
    "partition=partition_id start=start_sequence_number checkpoint=checkpoint_sequence_number "
    "log_end=log_until_sequence_number events rows dead_letters=dead_letters_open "
    "discarded=dead_letters_discarded gaps duplicates rows_and_dead_letters beyond_checkpoint beyond_log"
)
_COLUMNS = (*_ATTRIBUTES, "stray_rows")
_FIRST: Final = (
    "partition gaps duplicates rows dead_letters events checkpoint discarded rows_and_dead_letters "
    "beyond_checkpoint beyond_log"
)
_HEADINGS: Final = {"checkpoint": "next event"}
"""Of a table: `tidegate lag` shows a checkpoint as its last processed event."""
_FINDING_ATTRIBUTES: Final = columns_of("kind from=start_sequence_number until=until_sequence_number events")


@click.command()
@hub_argument
# No --table for the format: here it names the table, and a table is the default output.
@option("--table", "NAME", "The table to audit: table, or schema.table.", required=True)
@database_option
@group_option("The consumer group that wrote the rows.")
@option("--sequence-column", "NAME", "The column that holds the sequence number.", default="sequence_number")
@option("--partition-column", "NAME", "The column that holds the partition.", default="partition_id")
@flag("--allow-gaps", "Accept gaps: the handler drops some events on purpose.")
@flag("--allow-duplicates", "Accept duplicates: the handler returns several rows per event.")
@flag(
    "--from-first-row",
    "Start each partition at its first row or dead letter, for a consumer that did not read the log from "
    "the beginning.",
)
@option(
    "--limit",
    "N",
    "Ranges to list for each kind of finding and partition.",
    click.IntRange(min=0),
    default=100,
)
@with_service
@with_output(OutputFormat.JSON, OutputFormat.NL, OutputFormat.CSV)
def audit(
    output: Output,
    service: Service,
    hub: str,
    table: str,
    database: str | None,
    group: str,
    sequence_column: str,
    partition_column: str,
    allow_gaps: bool,
    allow_duplicates: bool,
    from_first_row: bool,
    limit: int,
) -> None:
    """Compare a table with log, checkpoints and dead letters.

    Every event before the checkpoint must have one row, or an open or discarded dead letter. The report
    lists, per partition and as half-open ranges of sequence numbers: gaps (neither row nor dead letter),
    duplicates (more than one row), rows with an open dead letter, rows and dead letters beyond the
    checkpoint, and events before the checkpoint that the log does not have yet (the log is older than the
    checkpoint). Stray rows have no sequence number, or a partition that the hub does not have. Dead letters
    that were added over HTTP do not count. --limit limits the lists, not the counts.

    The audit starts at the beginning of each partition's log, or at the table's first row if retention has
    already removed that event. If a handler returns no row for some events, use --allow-gaps. Everything is
    read from one snapshot, so pipelines can keep running. Exit code 4 if the audit finds a problem.

    Examples:
      tidegate audit flights --database sqlite:///flights.db --table flight_delay
      tidegate audit flights --database postgresql://user@host/name --table scores --json
    """
    from tidegate.cli.shell.progress import progress_bar
    from tidegate.client import RetryPolicy
    from tidegate.client.blocking.consumer import BlockingConsumer
    from tidegate.sql import ConsumerKey, FindingKind, audit_table

    connection = service.connection()
    allowed = frozenset([FindingKind.GAP] * allow_gaps + [FindingKind.DUPLICATE] * allow_duplicates)
    with (
        open_database(database) as opened,
        BlockingConsumer(
            connection.connection_string,
            hub,
            ca_file=connection.ca_file,
            retry=RetryPolicy(retries_max=2),
            timeout_s=FIRST_CONTACT_TIMEOUT_S,
        ) as consumer,
        progress_bar("Auditing", len(consumer.get_event_hub_properties().partition_ids)) as show_progress,
    ):
        found = audit_table(
            opened,
            ConsumerKey(hub, group),
            consumer,
            table,
            sequence_column=sequence_column,
            partition_column=partition_column,
            is_first_row_start=from_first_row,
            findings_max=limit,
            progress=lambda done, _: show_progress(done),
        )
    _write(output, found, f"Audit of {table}")
    remark(_summary(found))
    if not found.is_sound(allowed=allowed):
        raise CheckFailedError(
            f"The table {table} does not match: {_problems(found, allowed)}.",
            next_step="Use --json to list the ranges. docs/concepts/exactly-once.md says what is guaranteed.",
        )


def _write(output: Output, audit: Audit, title: str) -> None:
    strays = {stray.partition: stray.rows for stray in audit.strays}
    records = [_record(partition, strays.pop(partition.partition_id, 0)) for partition in audit.partitions]
    unknown: dict[str, object] = {**dict.fromkeys(_COLUMNS), "findings": []}
    records += [unknown | {"partition": name, "stray_rows": rows} for name, rows in strays.items()]
    if not output.is_table:
        output.records(records, columns=(*_COLUMNS, "findings"))
        return
    output.records(records, columns=_COLUMNS, title=title, first=_FIRST, headings=_HEADINGS)
    findings = [
        {"partition": partition.partition_id} | attributes(finding, _FINDING_ATTRIBUTES)
        for partition in audit.partitions
        for finding in partition.findings
    ]
    if findings:
        output.line("")
        output.records(findings, columns=("partition", *_FINDING_ATTRIBUTES), title="Findings")


def _record(partition: PartitionAudit, stray_rows: int) -> dict[str, object]:
    return attributes(partition, _ATTRIBUTES) | {
        "stray_rows": stray_rows,
        "findings": [attributes(finding, _FINDING_ATTRIBUTES) for finding in partition.findings],
    }


def _summary(audit: Audit) -> str:
    partitions = audit.partitions
    rows = sum(item.rows for item in partitions)
    text = (
        f"Compared {counted(sum(item.events for item in partitions), 'event')} of "
        f"{counted(len(partitions), 'partition')} with {counted(rows, 'row')} and "
        f"{counted(sum(item.dead_letters_open for item in partitions), 'open dead letter')}."
    )
    listed = sum(len(item.findings) for item in partitions)
    count = sum(item.finding_count for item in partitions)
    if listed < count:
        text += f" Listing {listed:,} of {count:,} ranges; use --limit to list more."
    return text


def _problems(audit: Audit, allowed: frozenset[FindingKind]) -> str:
    from tidegate.sql import FindingKind

    texts = {
        FindingKind.GAP: "missing",
        FindingKind.DUPLICATE: "with more than one row",
        FindingKind.ROW_AND_DEAD_LETTER: "with a row and an open dead letter",
        FindingKind.BEYOND_CHECKPOINT: "beyond the checkpoint",
        FindingKind.BEYOND_LOG: "before the checkpoint, but not yet in the log",
    }
    problems = [
        f"{counted(audit.count(kind), 'event')} {text}"
        for kind, text in texts.items()
        if kind not in allowed and audit.count(kind)
    ]
    strays = sum(stray.rows for stray in audit.strays)
    return "; ".join([*problems, f"{counted(strays, 'row')} of no event"] if strays else problems)
