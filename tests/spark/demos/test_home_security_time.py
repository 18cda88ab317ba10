"""Event time in the home security pipeline, on real Spark: what moves the watermark, and that nothing is lost
behind it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from examples.home_security.blocks import gather
from examples.home_security.check import failures_of, prepare_database, read_tables
from examples.home_security.checkpoint import FILE_NAME, claim_checkpoint
from examples.home_security.driver import ProgressFile
from examples.home_security.homes import BLOCKS_DEFAULT, CLOCK_ERROR_MS, EVENT_HUB, PARTITION_COUNT
from examples.home_security.pipeline import SPARK_SETTINGS, HomeSecurity, start_home_security
from examples.home_security.readings import NOT_JSON
from examples.home_security.status import read_status
from examples.home_security.verify import recompute
from pyspark.sql import SparkSession, functions

from tidegate.client import EventHubProducer
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.sql import Database
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

YEAR_2096_MS = 3_976_214_400_000
WATERMARK_DELAY_MS = 1_000


@pytest.fixture
def state_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with what keyed state needs."""
    for name, value in SPARK_SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name in SPARK_SETTINGS:
        spark.conf.unset(name)


def _motion(home: str, number: int, sent_ms: int) -> tuple[str, bytes]:
    fields = {
        "home": home,
        "sensor": "motion-hall",
        "kind": "motion",
        "number": number,
        "taken": sent_ms,
        "sent": sent_ms,
        "value": None,
    }
    return home, orjson.dumps(fields)


async def _send(connection_string: str, events: list[tuple[str, bytes]]) -> None:
    async with EventHubProducer.from_connection_string(connection_string, EVENT_HUB) as producer:
        bodies = [EventData(body) for _, body in events]
        await producer.enqueue_many(bodies, partition_keys=[home for home, _ in events])
        await producer.flush()


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.timeout(240)
def test_nothing_is_lost_behind_the_watermark(
    state_spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    """Events that are no readings tell no time, and come when the watermark has moved: they are dead letters.
    One home is seventy years ahead: every other home's readings count as before, and its own are accounted
    for."""
    now_ms = round(SystemClock().now_utc().timestamp() * 1000)
    batches = [
        [_motion(f"h{home}", 0, now_ms) for home in range(40)],
        [("h1", b"?"), ("h2", b"[")],
        [_motion("h3", 1, YEAR_2096_MS)],
        [_motion(f"h{home}", 2, now_ms + 2_000) for home in range(40)],
        [("h4", b"{"), _motion("h5", 3, now_ms + 1_000)],
    ]
    with HubService() as service, Database.open(sqlite_url) as database:
        service.create_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
        prepare_database(database)
        wanted = HomeSecurity(
            connection_string=service.connection_string,
            database_url=sqlite_url,
            checkpoint_location=tmp_path / "checkpoint",
            summaries_url=None,
            watermark_delay_s=WATERMARK_DELAY_MS / 1000,
            blocks=PARTITION_COUNT,
        )
        query = start_home_security(state_spark, wanted)
        try:
            for batch in batches:
                asyncio.run(_send(service.connection_string, batch))
                query.processAllAvailable()
            progress = ProgressFile(tmp_path / "status.json")
            progress.update(query)
        finally:
            query.stop()
        status = read_status(tmp_path / "status.json")
        assert (status["events"], status["dropped"]) == (85, 0)
        assert status["watermark_ms"] == now_ms + 2_000 - WATERMARK_DELAY_MS
        expected = recompute(service.connection_string).finish(status["watermark_ms"])
        assert sum(figures[0] for figures in expected.minutes.values()) == 81
        assert list(expected.dead_letters.values()).count(NOT_JSON) == 3
        assert failures_of(expected, read_tables(database), None) == ()
        with pytest.raises(InvalidArgumentError, match=f"in {PARTITION_COUNT} blocks.*--blocks 16"):
            start_home_security(state_spark, replace(wanted, blocks=2 * PARTITION_COUNT))


@pytest.mark.parametrize(("tasks", "blocks_max"), [(2, 16), (4, 9), (8, 5), (16, 3)])
def test_tasks_have_about_as_many_blocks_each(spark: SparkSession, tasks: int, blocks_max: int) -> None:
    """As Spark deals them out: a micro-batch lasts as long as its largest task."""
    numbers = range(BLOCKS_DEFAULT // PARTITION_COUNT)
    names = [(f"{partition}-{number}",) for partition in range(PARTITION_COUNT) for number in numbers]
    hashes = spark.createDataFrame(names, "block string").select(functions.hash("block")).collect()
    assert max(Counter(row[0] % tasks for row in hashes).values()) == blocks_max


def test_a_checkpoint_directory_keeps_its_number_of_blocks(spark: SparkSession, tmp_path: Path) -> None:
    """The same number is taken again, by path and by URL; one that says none and is Spark's is not."""
    location = tmp_path / "made"
    claim_checkpoint(spark, str(location), 64)
    claim_checkpoint(spark, location.as_uri(), 64)
    with pytest.raises(InvalidArgumentError, match="in 64 blocks of homes, not 32"):
        claim_checkpoint(spark, str(location), 32)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "metadata").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="does not record how many blocks"):
        claim_checkpoint(spark, str(earlier), 64)
    # It was made when each home's page was a file of its own: those that do not change would be missing.
    (earlier / FILE_NAME).write_text('{"blocks": 64}')
    with pytest.raises(InvalidArgumentError, match=r"earlier version.* Start again .* no summaries\."):
        claim_checkpoint(spark, str(earlier), 64)


def test_a_time_counts_up_to_that_of_the_service() -> None:
    """A minute ahead of the time at which the event was taken is trusted, a millisecond more is not; rows of
    blocks have no time."""
    enqueued_ms = YEAR_2096_MS - CLOCK_ERROR_MS

    def time_of(*sent_ms: int) -> int:
        keys, bodies = zip(*(_motion("h1", 0, time_ms) for time_ms in sent_ms), strict=True)
        columns = {
            "partition": pa.array(["0"] * len(keys)),
            "sequenceNumber": pa.array(range(len(keys)), pa.int64()),
            "offset": pa.array(["0"] * len(keys)),
            "enqueuedTime": pa.array([enqueued_ms * 1_000] * len(keys), pa.timestamp("us", tz="UTC")),
            "partitionKey": pa.array(keys),
            "body": pa.array(bodies, pa.binary()),
        }
        block, *clock = gather(pa.RecordBatch.from_pydict(columns), PARTITION_COUNT).to_pylist()
        assert (block["block"], block["sent"]) == ("0-0", None)
        (row,) = clock
        assert row["block"] is None
        assert row["readings"] is None
        assert (row["enqueued_ms"], row["events"]) == (enqueued_ms, len(sent_ms))
        sent: datetime = row["sent"]
        return round(sent.timestamp() * 1000)

    assert time_of(YEAR_2096_MS, 5) == YEAR_2096_MS
    assert time_of(YEAR_2096_MS + 1, 5) == 5
    assert time_of(YEAR_2096_MS + 1) == 0
