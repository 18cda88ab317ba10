"""The demo, step by step: service, events, pipeline with one crash, figures, report.

    this process                     children, each a session of its own
    ------------                     ----------------------------------
    reads the flights
    publishes them            --->   tidegate serve            (ends with the demo)
    watches SQL and kills     --->   Spark driver, first run   (SIGKILL in mid-batch)
    waits                     --->   Spark driver, second run  (runs to the end)
    checks and reports

No child is left running, even after an interrupt. The data directory and the database stay, and the next run
over both continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sqlalchemy import URL

from examples.flights import report
from examples.flights.accounting import PartitionAccount, StageRate, account_partitions
from examples.flights.crash import MidBatch
from examples.flights.data import FlightEvent, read_flights
from examples.flights.publish import Publication, publish
from examples.flights.results import dead_letters_by_partition, prepare_results
from examples.flights.scoring import flight_performance, pipeline
from examples.flights.spark_stage import PipelineRun, SparkStage
from examples.support.screen import Screen
from examples.support.service import ExampleService, running_service
from tidegate.sql import DeadLetterFilter, DeadLetters, ReasonCount

CORRECTED_PIPELINE = "examples.flights:corrected_pipeline"
"""The pipeline for redriving the dead letters."""


@dataclass(frozen=True, slots=True)
class FlightsReport:
    """The demo's result."""

    data_dir: Path
    database: URL
    """As a string it has no password."""
    partitions: tuple[PartitionAccount, ...]
    flights_expected: int
    crash: MidBatch | None
    """Where the driver was killed; None: it was not, because nothing was left to process."""
    stages: tuple[StageRate, ...]
    carriers: list[dict[str, object]]
    routes: list[dict[str, object]]
    reasons: tuple[ReasonCount, ...]
    """Of open dead letters."""

    @property
    def published(self) -> int:
        """Events in the hub."""
        return sum(account.events for account in self.partitions)

    @property
    def rows(self) -> int:
        """Rows in the result table."""
        return sum(account.rows for account in self.partitions)

    @property
    def dead_letters_open(self) -> int:
        """Dead letters that are neither redriven nor discarded."""
        return sum(account.dead_letters_open for account in self.partitions)

    @property
    def dead_letters_total(self) -> int:
        """All dead letters, whatever their status."""
        redriven = sum(account.dead_letters_redriven for account in self.partitions)
        discarded = sum(account.dead_letters_discarded for account in self.partitions)
        return self.dead_letters_open + redriven + discarded

    @property
    def crashes(self) -> int:
        """How often this run killed the driver."""
        return 0 if self.crash is None else 1

    @property
    def failures(self) -> tuple[str, ...]:
        """The figures that do not add up, one sentence each; empty if all do."""
        failures = [account.describe() for account in self.partitions if not account.is_exact]
        if self.published != self.flights_expected:
            failures.append(f"{self.published:,} events in the hub, and {self.flights_expected:,} flights")
        return tuple(failures)


def run_flights_demo(
    screen: Screen,
    on_report: Callable[[FlightsReport], None],
    *,
    data_dir: Path | None,
    database_url: str | None,
    events_per_trigger: int,
    flights_max: int | None,
) -> FlightsReport:
    """Run the whole demo; returns its result, whether or not the figures add up.

    on_report: called with the result while the service still runs. data_dir, database_url: see
    ``running_service``. flights_max: only this many of the flights; None: all of them. Raises
    ChildFailedError if the service or the pipeline ended unexpectedly, and what opening the database and
    publishing raise. Cancellation: an exception in this thread (KeyboardInterrupt) ends the children and
    propagates.
    """
    with running_service(
        "flights",
        screen,
        data_dir=data_dir,
        database_url=database_url,
        database_file="flights.db",
        redrive_pipelines=(CORRECTED_PIPELINE,),
    ) as service:
        screen.step("Reading the flights")
        flights = list(islice(read_flights(), flights_max))
        screen.step("Publishing")
        publication = _publish(service, flights, screen)
        if prepare_results(service.database, publication.event_hub_created_at_ms):
            screen.note("The database held the results of an earlier demo with another log: cleared.")
        service.database.ensure_table(flight_performance)
        screen.step("Running the Spark pipeline")
        run = SparkStage(service, events_per_trigger, screen).run(publication.events_by_partition)
        screen.step("Checking every figure")
        made = _make_report(service, publication, run)
        on_report(made)
        return made


def _publish(service: ExampleService, flights: list[FlightEvent], screen: Screen) -> Publication:
    publication = asyncio.run(publish(service.connection_string, flights, screen.progress))
    if publication.published_now < len(flights):
        there = len(flights) - publication.published_now
        screen.note(f"{there:,} of the flights were already in the hub, from an earlier run.")
    return publication


def _make_report(service: ExampleService, publication: Publication, run: PipelineRun) -> FlightsReport:
    database = service.database
    with database.read() as connection:
        rows = report.rows_by_partition(connection)
        carriers, routes = report.worst_carriers(connection), report.worst_routes(connection)
    accounts = account_partitions(publication.events_by_partition, rows, dead_letters_by_partition(database))
    return FlightsReport(
        data_dir=service.data_dir,
        database=service.database_url,
        partitions=accounts,
        flights_expected=publication.flights_expected,
        crash=run.crash,
        stages=(
            StageRate("publish", publication.published_now, publication.elapsed_s),
            StageRate("pipeline", run.events, run.elapsed_s),
        ),
        carriers=carriers,
        routes=routes,
        reasons=tuple(DeadLetters(database).counts_by_reason(DeadLetterFilter(event_hub=pipeline.event_hub))),
    )
