"""A whole run under faults, from an empty log and database to everything that can be checked afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.processor.faults.chaos import ChaosReport, ChaosRun, ChaosSettings
from tests.processor.faults.checker import (
    Totals,
    check_checkpoints,
    check_journal,
    check_transactional,
    read_journal_totals,
    read_totals,
)
from tests.processor.faults.surroundings import Surroundings, surroundings
from tests.processor.faults.work import (
    PARTITION_COUNT,
    Fate,
    consumer_of,
    fate_of,
    key_of,
    partition_ids,
    sink,
)

from tidegate.client import BlockingConsumer, Namespace
from tidegate.sql import audit_table
from tidegate.sql.outbox.relay import OutboxRelay
from tidegate.sql.outbox.writer import Outbox
from tidegate.testing.hub import HubProcess


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """A run, and what was found wrong afterwards."""

    report: ChaosReport
    totals: Totals
    findings: list[str]


async def run_chaos(
    settings: ChaosSettings,
    database_url: str | None,
    *,
    service: HubProcess | None = None,
    tell: Callable[[str], None] = print,
) -> ChaosResult:
    """One run under faults from an empty database and log, and everything that can be checked after it.

    service: one that was not started yet; None: of this version.
    """
    async with surroundings(database_url, seed=settings.seed, service=service) as around:
        journal = around.folder / "journal"
        run = ChaosRun(settings, around, tell=tell)
        try:
            report = await run.run()
        finally:
            run.close()
        findings = list(report.unexpected)
        if settings.is_transactional:
            findings += check_all_transactional(around, settings.events)
            totals = read_totals(around.database, around.event_hub)
            if settings.is_publishing:
                await relay_rest(around)
                findings += check_published(around, settings.events)
        else:
            findings += check_log(around, settings.events)
            findings += check_journal(journal, settings.events)
            findings += check_checkpoints(around.database, around.event_hub, settings.events)
            totals = read_journal_totals(journal)
        return ChaosResult(report, totals, findings)


def check_all_transactional(around: Surroundings, events: int) -> list[str]:
    """Everything that can be checked once hosts have processed ``events`` events in transactions."""
    own = check_transactional(around.database, around.event_hub, events)
    return [*check_log(around, events), *own, *audit(around)]


async def relay_rest(around: Surroundings) -> None:
    """What the hosts had no time for when they were stopped: the next one does it."""
    namespace = Namespace.from_connection_string(around.service.connection_string)
    last = OutboxRelay(
        Outbox(around.database), consumer_of(around.event_hub), namespace, partition_ids, lambda *_: None
    )
    await last.finish(partition_ids(), 60.0)


def check_published(around: Surroundings, events: int) -> list[str]:
    """The target has each event that became a row, once, and those of a key in order."""
    found: dict[str, list[int]] = {}
    with BlockingConsumer(around.service.connection_string, around.target_hub) as consumer:
        for ends in consumer.get_all_partition_properties():
            numbers = range(ends.next_sequence_number)
            for event in consumer.read_events(around.target_hub, ends.partition_id, numbers):
                found.setdefault(str(event.partition_key), []).append(int(event.body))
    wanted: dict[str, list[int]] = {}
    for number in range(events):
        if fate_of(number) is Fate.ROW:
            wanted.setdefault(key_of(number), []).append(number)
    findings = []
    for key in sorted(wanted.keys() | found.keys()):
        here, there = wanted.get(key, []), found.get(key, [])
        if here != there:
            counts = Counter(there)
            missing = [number for number in here if not counts[number]]
            again = [number for number, count in counts.items() if count > 1]
            findings.append(
                f"published under key {key}: {len(there)} events instead of {len(here)}; missing "
                f"{missing[:5]}, more than once {again[:5]}, in order: {there == sorted(there)}"
            )
    return findings


def check_log(around: Surroundings, events: int) -> list[str]:
    """The log itself holds each event once: else every other number would mean something else."""
    with BlockingConsumer(around.service.connection_string, around.event_hub) as consumer:
        partitions = consumer.get_all_partition_properties()
    until = events // PARTITION_COUNT
    return [
        f"partition {each.partition_id}: the log ends at {each.next_sequence_number}, not at {until}"
        for each in partitions
        if each.next_sequence_number != until
    ]


def audit(around: Surroundings) -> list[str]:
    """What ``tidegate audit`` finds."""
    with BlockingConsumer(around.service.connection_string, around.event_hub) as consumer:
        found = audit_table(around.database, consumer_of(around.event_hub), consumer, sink.name)
    if found.is_sound():
        return []
    return [f"tidegate audit: {each}" for each in (*found.partitions, *found.strays)]
