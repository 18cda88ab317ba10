"""Finds what must not be: in the tables of transactional processing, and in the journal of plain processing.

Every finding is a sentence; an empty list is what the tests want. This is an account of its own, by SQL and
by what the run knows of its events, beside ``tidegate.sql.audit.table``, which knows only the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import ColumnElement, Connection, Integer, case, cast, func, or_, select
from tests.processor.faults.work import (
    PARTITION_COUNT,
    PUT_ASIDE_ONE_IN,
    RAISED_ONE_IN,
    Fate,
    committed_calls,
    consumer_of,
    fate_of,
    partition_ids,
    sink,
)

from tidegate.sql import CheckpointReader, Database
from tidegate.sql.core.schema import dead_letter

FINDINGS_MAX: Final = 20
"""Of each kind, so that a run that went wrong altogether can still be read."""


@dataclass(frozen=True, slots=True)
class CommittedCall:
    """A handler call whose transaction was committed: a row of ``committed_calls``."""

    partition_id: str
    owner: str
    epoch: int
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What is there after a run, for the report."""

    rows: int
    """In plain processing: events that were seen."""
    dead_letters: int
    seen_again: int
    """In plain processing: how often an event was seen that had been seen before."""
    takeovers: int
    """How often a partition began anew under another epoch and came to process something."""
    owners: frozenset[str] = frozenset()
    """In transactional processing: the hosts that committed something."""


def check_transactional(database: Database, event_hub: str, events: int) -> list[str]:
    """What is wrong after ``events`` events (a multiple of PARTITION_COUNT) were processed by all hosts."""
    with database.read() as connection:
        findings = check_calls(read_calls(connection))
    return [*check_rows(database, event_hub, events), *findings]


def check_rows(database: Database, event_hub: str, events: int) -> list[str]:
    """The part of it that holds whoever processed the events: rows, dead letters and checkpoints."""
    assert events % PARTITION_COUNT == 0
    until = events // PARTITION_COUNT
    findings: list[str] = []
    with database.read() as connection:
        for partition_id in partition_ids():
            findings += _check_partition(connection, event_hub, partition_id, until)
        findings += _check_fates(connection, event_hub)
    findings += check_checkpoints(database, event_hub, events)
    return findings


def check_checkpoints(database: Database, event_hub: str, events: int) -> list[str]:
    """Each partition's checkpoint stands behind its last event."""
    until = events // PARTITION_COUNT
    checkpoints = CheckpointReader(database).read(consumer_of(event_hub))
    standing = {key: found.next_sequence_number for key, found in checkpoints.items()}
    return [
        f"partition {partition_id}: the checkpoint stands at {standing.get(partition_id)}, not at {until}"
        for partition_id in partition_ids()
        if standing.get(partition_id) != until
    ]


def check_calls(calls: Sequence[CommittedCall]) -> list[str]:
    """Along ascending sequence numbers epochs never go down, ranges never overlap, an epoch has one owner."""
    findings: list[str] = []
    owners: dict[tuple[str, int], str] = {}
    before: CommittedCall | None = None
    for call in sorted(calls, key=lambda call: (call.partition_id, call.start, call.until)):
        owner = owners.setdefault((call.partition_id, call.epoch), call.owner)
        if owner != call.owner:
            findings.append(f"partition {call.partition_id}: {owner} and {call.owner} had epoch {call.epoch}")
        if before is not None and before.partition_id == call.partition_id:
            if call.start < before.until:
                findings.append(f"two committed calls overlap: {before} and {call}")
            if call.epoch < before.epoch:
                findings.append(f"an older owner committed after a newer one: {before} and then {call}")
        before = call
    return findings[:FINDINGS_MAX]


def read_calls(connection: Connection) -> list[CommittedCall]:
    """All committed calls."""
    columns = committed_calls.c
    statement = select(columns.partition_id, columns.owner, columns.epoch, columns.start, columns.until)
    return [CommittedCall(*row) for row in connection.execute(statement)]


def read_totals(database: Database, event_hub: str) -> Totals:
    """How many rows, dead letters and takeovers there are."""
    with database.read() as connection:
        rows = connection.execute(select(func.count()).select_from(sink)).scalar_one()
        letters = connection.execute(
            select(func.count()).select_from(dead_letter).where(_of(event_hub))
        ).scalar_one()
        calls = read_calls(connection)
    epochs = {(call.partition_id, call.epoch) for call in calls}
    return Totals(rows, letters, 0, _count_takeovers(epochs), frozenset(call.owner for call in calls))


def read_journal_totals(folder: Path) -> Totals:
    """The same of plain processing."""
    epochs: set[tuple[str, int]] = set()
    seen = calls = 0
    for partition_id in partition_ids():
        path = folder / partition_id
        seen_until = 0
        for line in path.read_text().splitlines() if path.exists() else ():
            what, _, epoch, _, *values = line.split()
            if what == "seen":
                epochs.add((partition_id, int(epoch)))
                seen_until = max(seen_until, int(values[1]))
                calls += int(values[2])
        seen += seen_until
    return Totals(seen, 0, calls - seen, _count_takeovers(epochs))


def check_journal(folder: Path, events: int) -> list[str]:
    """What is wrong with what plain handlers saw: something missing, or an order that was not kept."""
    until = events // PARTITION_COUNT
    findings: list[str] = []
    for partition_id in partition_ids():
        path = folder / partition_id
        lines = path.read_text().splitlines() if path.exists() else []
        findings += check_journal_lines(partition_id, lines, until)
    return findings


def check_journal_lines(partition_id: str, lines: Iterable[str], until: int) -> list[str]:
    """One partition of ``until`` events.

    Nothing is first seen before its predecessor was. One handler instance, from one opening on, sees what
    follows its last checkpointed call, or its last call again where that one was not checkpointed.
    """
    findings: list[str] = []
    seen_until = 0
    next_start: dict[str, int] = {}
    for line in lines:
        what, _, _, instance, *values = line.split()
        if what == "seen":
            start, until_here, count = map(int, values)
            if until_here - start != count:
                findings.append(f"partition {partition_id}: {count} events from {start} to {until_here}")
            if start > seen_until:
                findings.append(f"partition {partition_id}: {seen_until} was not seen before: {line}")
            if next_start.setdefault(instance, start) != start:
                findings.append(f"partition {partition_id}: {next_start[instance]} had to be next: {line}")
            next_start[instance] = start
            seen_until = max(seen_until, until_here)
        elif what == "checkpointed":
            next_start[instance] = int(values[0])
        elif what == "open":
            next_start.pop(instance, None)
    if seen_until != until:
        findings.append(f"partition {partition_id}: {seen_until} of {until} events were seen")
    return findings[:FINDINGS_MAX]


def _count_takeovers(epochs: set[tuple[str, int]]) -> int:
    return len(epochs) - len({partition_id for partition_id, _ in epochs})


def _check_partition(connection: Connection, event_hub: str, partition_id: str, until: int) -> list[str]:
    """Rows + dead letters = events: none twice, none missing, none that is both, none from elsewhere."""
    row = sink.c
    here = row.partition_id == partition_id
    number = row.event_number
    count, distinct, low, high, misplaced = connection.execute(
        select(
            func.count(),
            func.count(row.sequence_number.distinct()),
            func.min(row.sequence_number),
            func.max(row.sequence_number),
            func.count(
                case((number != row.sequence_number * PARTITION_COUNT + int(partition_id), 1), else_=None)
            ),
        ).where(here)
    ).one()
    letter = dead_letter.c
    letters_here = (letter.partition_id == partition_id) & _of(event_hub)
    dead, dead_low, dead_high = connection.execute(
        select(func.count(), func.min(letter.sequence_number), func.max(letter.sequence_number)).where(
            letters_here
        )
    ).one()
    both = connection.execute(
        select(func.count())
        .select_from(sink.join(dead_letter, row.sequence_number == letter.sequence_number))
        .where(here, letters_here)
    ).scalar_one()
    first = min((each for each in (low, dead_low) if each is not None), default=None)
    last = max((each for each in (high, dead_high) if each is not None), default=None)
    failed = {
        f"{count - distinct} rows are there twice": count != distinct,
        f"{misplaced} rows are of other events": misplaced != 0,
        f"{both} rows are dead letters, too": both != 0,
        f"{distinct} rows and {dead} dead letters are not {until} events": distinct + dead - both != until,
        f"events from {first} to {last} are not from 0 to {until - 1}": (first, last) != (0, until - 1),
    }
    return [f"partition {partition_id}: {words}" for words, is_wrong in failed.items() if is_wrong]


def _check_fates(connection: Connection, event_hub: str) -> list[str]:
    """What had to fail is a dead letter, with its own reason, and nothing else is."""
    number = sink.c.event_number
    had_to_fail = or_(number % RAISED_ONE_IN == 0, number % PUT_ASIDE_ONE_IN == 0)
    rows = connection.execute(select(number).where(had_to_fail).limit(FINDINGS_MAX)).scalars()
    findings = [f"event {each} is a row and had to be a dead letter" for each in rows]
    letter = dead_letter.c
    event_number = letter.sequence_number * PARTITION_COUNT + cast(letter.partition_id, Integer)
    for each, error_type in connection.execute(select(event_number, letter.error_type).where(_of(event_hub))):
        fate = fate_of(each)
        if fate is Fate.ROW or (fate is Fate.RAISED) != (error_type == "PoisonError"):
            findings.append(f"event {each} is a dead letter for {error_type}, and was to be: {fate.value}")
    return findings[:FINDINGS_MAX]


def _of(event_hub: str) -> ColumnElement[bool]:
    consumer = consumer_of(event_hub)
    return (dead_letter.c.event_hub == consumer.event_hub) & (
        dead_letter.c.consumer_group == consumer.consumer_group
    )
