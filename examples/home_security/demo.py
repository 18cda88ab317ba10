"""The demo: service, generator and pipeline as processes, one crash, and every figure checked against the
log.

this process                     children, each a session of its own
------------                     ----------------------------------
watches                   --->   tidegate serve
                                 generator                  (at the requested rate)
kills once, starts again  --->   Spark driver               (SIGKILL in mid-batch)
reads the log again, checks and reports
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.home_security.check import (
    count_by,
    failures_of,
    has_earlier_run,
    prepare_places,
    read_tables,
)
from examples.home_security.generator import GeneratorPlan
from examples.home_security.homes import BLOCKS_DEFAULT, EVENT_HUB, PARTITION_COUNT, home_name
from examples.home_security.stage import Crash, LiveStage, StageRun
from examples.home_security.summaries import SummaryStore
from examples.home_security.verify import recompute
from examples.home_security.web.keys import Keys
from examples.home_security.web.server import serving
from examples.support.screen import Screen
from examples.support.service import ExampleService, running_service
from tidegate import AlreadyExistsError
from tidegate.client import EventHubAdministrator

HOME_SHOWN = 42
"""Number of the home whose page the user is shown."""
EVENTS_PER_TRIGGER = 200_000
PARTITIONS_APART_S = 3.0
"""How far apart in real time partitions may be before an alarm's timer could fire too early."""


@dataclass(frozen=True, slots=True)
class HomeSecurityReport:
    """The demo's result; the fields but ``crash`` are keys of its JSON."""

    data_dir: str
    database: str
    """URL, without its password."""
    summaries: str
    events: int
    """In the hub."""
    status_events: int
    """Events that only say that a sensor is alive."""
    readings: int
    """Counted in minutes, each once."""
    duplicates: int
    minutes: int
    """Rows of ``home_minute``."""
    homes_heard: int
    """Homes that sent anything."""
    homes: int
    """Homes that have a summary."""
    alarms: Mapping[str, int]
    """By kind."""
    dead_letters: Mapping[str, int]
    """By reason."""
    published_per_s: float
    elapsed_s: float
    """From the first event to the last commit."""
    p50_ms: float | None
    p99_ms: float | None
    """From the hub's acceptance of an event to its commit in SQL, since the driver's last start."""
    state_bytes: int
    crash: Crash | None
    failures: tuple[str, ...]
    """The figures that differ, one sentence each; empty if none does."""


def run_home_security_demo(
    screen: Screen,
    on_report: Callable[[HomeSecurityReport], None],
    *,
    plan: GeneratorPlan,
    duration_s: float,
    data_dir: Path | None,
    database_url: str | None,
    summaries_url: str | None,
    is_crash_wanted: bool,
) -> HomeSecurityReport:
    """Run the whole demo; returns its result, whether or not the figures agree.

    on_report: called with the result while the service still runs. duration_s: how long events are generated.
    data_dir, database_url: see ``running_service``. summaries_url: None is the directory ``summaries`` in the
    data directory. Raises AlreadyExistsError if the data directory has an earlier run, or the database or the
    summaries' location has data of others; MalformedPagesError for other files among the summaries of an
    earlier run; ChildFailedError if a child ended unexpectedly; and what opening the database raises.
    Cancellation: the first KeyboardInterrupt ends the generator only, and the figures so far are checked; a
    second one, and any other exception in this thread, ends the children and propagates.
    """
    with running_service(
        "home-security", screen, data_dir=data_dir, database_url=database_url, database_file="homes.db"
    ) as service:
        store = SummaryStore(summaries_url or str(service.data_dir / "summaries"))
        with serving(store.url, Keys(os.urandom(32))) as web:
            home = web.home_address(home_name(min(HOME_SHOWN, plan.homes - 1)))
            screen.note(f"The page of one home's resident, once it has sent events: {home}")
            screen.note(f"All homes, for the operator: {web.list_address}")
            # Before the hub is created: with a hub, the data directory could not be used for another attempt.
            has_earlier_run(service.database, store)
            asyncio.run(_create_hub(service.connection_string))
            if prepare_places(service.database, store):
                screen.note("Deleted the results of an earlier run.")
            screen.step(
                f"Watching {plan.homes:,} homes for {duration_s:.0f} s, which are "
                f"{duration_s * plan.speed / 60:,.1f} of their minutes: {plan.events_per_s:,.0f} events/s"
            )
            driver_options = [
                *("--summaries", store.url),
                *("--watermark-delay", str(PARTITIONS_APART_S * plan.speed)),
                *("--blocks", str(BLOCKS_DEFAULT)),
                *("--events-per-trigger", str(EVENTS_PER_TRIGGER)),
            ]
            stage = LiveStage(service, plan, duration_s, driver_options, screen)
            run = stage.run(is_crash_wanted=is_crash_wanted)
            screen.step("Recomputing every figure from the log")
            made = _report(service, store, run)
            on_report(made)
            return made


async def _create_hub(connection_string: str) -> None:
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
        try:
            await administrator.create_event_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"The data directory already has an event hub {EVENT_HUB!r}, of an earlier run.",
                next_step="Use another --data-dir, or none for a new one.",
            ) from error


def _report(service: ExampleService, store: SummaryStore, run: StageRun) -> HomeSecurityReport:
    expected = recompute(service.connection_string).finish(run.driver.get("watermark_ms", 0))
    found = read_tables(service.database)
    failures = [*failures_of(expected, found, store), *_other_failures(run, expected)]
    return HomeSecurityReport(
        data_dir=str(service.data_dir),
        database=str(service.database_url),
        summaries=store.url,
        events=expected.event_count,
        status_events=expected.status_count,
        readings=sum(figures[0] for figures in found.minutes.values()),
        duplicates=sum(figures[4] for figures in found.minutes.values()),
        minutes=len(found.minutes),
        homes_heard=expected.homes_heard,
        homes=len(expected.summaries),
        alarms=count_by(alarm.kind for alarm in found.alarms),
        dead_letters=count_by(found.dead_letters.values()),
        published_per_s=round(run.published / max(float(run.generated.get("elapsed_s", 0)), 0.001), 1),
        elapsed_s=round(run.elapsed_s, 3),
        p50_ms=run.driver.get("p50_ms"),
        p99_ms=run.driver.get("p99_ms"),
        state_bytes=int(run.driver.get("state_bytes", 0)),
        crash=run.crash,
        failures=tuple(failures),
    )


def _other_failures(run: StageRun, expected: Any) -> list[str]:
    failures: list[str] = []
    if expected.event_count != run.published:
        failures.append(f"{expected.event_count:,} events in the hub, and {run.published:,} were published")
    if run.driver.get("dropped"):
        failures.append(
            f"Spark dropped {run.driver['dropped']:,} rows as late, though rows of blocks have no event time"
        )
    return failures
