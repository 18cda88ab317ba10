"""A whole run under faults on Spark, from an empty log and database to everything that can be checked."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processor.faults.surroundings import SERVERS
from tests.processor.faults.work import PARTITION_COUNT, sink
from tests.spark.faults.chaos import SparkChaosReport, SparkChaosRun, SparkChaosSettings, SparkSurroundings
from tests.spark.faults.checker import Totals, check_aggregates_work, check_partitions_work, read_totals
from tests.spark.faults.work import aggregates
from tests.support.spark_cluster import SparkCluster

from tidegate.sql import Database
from tidegate.testing.hub import HubProcess


@dataclass(frozen=True, slots=True)
class SparkChaosResult:
    """A run, and what was found wrong afterwards."""

    report: SparkChaosReport
    totals: Totals
    findings: list[str]


def run_chaos(
    settings: SparkChaosSettings,
    cluster: SparkCluster,
    database: str,
    *,
    tell: Callable[[str], None] = print,
) -> SparkChaosResult:
    """One run with a service and a database server of its own, which it kills; the cluster survives it.

    database: which of SERVERS.
    """
    with _surroundings(cluster, database) as around:
        run = SparkChaosRun(settings, around, tell=tell)
        try:
            report = asyncio.run(run.run())
        finally:
            run.close()
        check = {"partitions": check_partitions_work, "aggregates": check_aggregates_work}[settings.work]
        found = check(around.database, around.service.connection_string, around.event_hub, settings.events)
        totals = read_totals(around.database, settings.work)
        return SparkChaosResult(report, totals, [*report.unexpected, *found])


@contextmanager
def _surroundings(cluster: SparkCluster, database_server: str) -> Iterator[SparkSurroundings]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tidegate-spark-faults-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = SERVERS[database_server]()
        stack.enter_context(server)
        service = HubProcess()
        stack.callback(service.close)
        event_hub = service.create_hub(partition_count=PARTITION_COUNT)
        service.start()
        url = server.create_database()
        database = stack.enter_context(Database.open(url))
        database.ensure_table(sink)
        database.ensure_table(aggregates)
        yield SparkSurroundings(service, event_hub, server, database, url, cluster, folder)
