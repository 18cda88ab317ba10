"""Kafka beside us: a broker, and Spark's own Kafka source in the session that reads ours, of the same events.

    python -m bench.kafka [--events N] [--event-bytes N] [--rounds N] [--devices N …] [--json FILE]

Needs Maven (``bench.kafka_broker``). An event is acknowledged when it is written, not when it is on disk. A
read does not feel that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from bench.kafka_broker import KafkaBroker, KafkaMissingError, jars_of
from bench.measure import Measurement, timed
from bench.report import as_dict
from bench.spark_stages import DEVICES, PARTITIONS, READ_EVENTS, ROUNDS, fill_hub, spark_reads
from bench.stages import PROPERTIES
from bench.targets import KAFKA_READ
from tidegate.spark import spark_session
from tidegate.testing.hub import HubProcess

_JARS_SETTING: Final = "spark.jars"
_TOPIC: Final = "bench"
_progress = Console(stderr=True)


def spark_settings() -> dict[str, str]:
    """What a session needs to read from Kafka; nothing, and a line that says why, where it cannot be had."""
    try:
        jars = jars_of("source")
    except KafkaMissingError as error:
        _progress.print(f"without Kafka: {error}")
        return {}
    return {_JARS_SETTING: ",".join(str(path) for path in sorted(jars.glob("*.jar")))}


@contextmanager
def reading(
    spark: SparkSession, events: int, event_bytes: int, *, devices: int = 1
) -> Iterator[Callable[[], Measurement] | None]:
    """A broker with a topic of that many events, and what measures one read of it.

    devices: as ``stages.ingest``. None where Kafka cannot be had, which has been said then. spark: started
    with ``spark_settings``.
    """
    if not spark.sparkContext.getConf().contains(_JARS_SETTING):
        yield None
        return
    try:
        broker = KafkaBroker(PARTITIONS)
    except KafkaMissingError as error:
        _progress.print(f"without Kafka: {error}")
        yield None
        return
    with broker:
        topic = KafkaTopic(broker, events, event_bytes, devices)
        topic.fill(spark)
        yield partial(topic.read, spark)


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic with events of one body and the same properties as ours (Kafka's headers)."""

    broker: KafkaBroker
    events: int
    event_bytes: int
    devices: int

    def fill(self, spark: SparkSession) -> None:
        """Write the events, evenly over the partitions, in batches of half a megabyte."""
        device = F.concat(F.lit("d-"), (F.col("id") % self.devices + 1).cast("string"))
        values = {key: F.lit(value) for key, value in PROPERTIES.items()} | {"device": device}
        headers = [
            F.struct(F.lit(key).alias("key"), value.cast("binary").alias("value"))
            for key, value in values.items()
        ]
        rows = spark.range(0, self.events, 1, 2 * PARTITIONS).select(
            F.lit(bytearray(os.urandom(self.event_bytes))).alias("value"),
            (F.col("id") % PARTITIONS).cast("int").alias("partition"),
            F.array(*headers).alias("headers"),
        )
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
        writer = writer.option("kafka.linger.ms", "50").option("kafka.batch.size", str(500_000))
        writer.option("topic", _TOPIC).option("includeHeaders", "true").save()

    def read(self, spark: SparkSession) -> Measurement:
        """A batch read of the whole topic, all columns, to Spark's ``noop`` sink."""
        frame = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .option("subscribe", _TOPIC)
            .option("includeHeaders", "true")
            .load()
        )
        with timed(
            KAFKA_READ,
            events=self.events,
            payload_bytes=self.events * self.event_bytes,
            service_pid=self.broker.process_id,
            with_descendants=True,
        ) as measurement:
            frame.write.format("noop").mode("overwrite").save()
        return measurement


def main() -> int:
    """Measure the rounds and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=READ_EVENTS, help="in all")
    parser.add_argument("--event-bytes", type=int, default=1024, help="bytes of each event's body")
    parser.add_argument(
        "--devices",
        type=int,
        nargs="+",
        default=DEVICES,
        help="distinct values of a property: one reads events that are alike, more than events unique ones",
    )
    parser.add_argument("--rounds", type=int, default=2 * ROUNDS, help="reads of each, in turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    events = arguments.events - arguments.events % PARTITIONS
    size = arguments.event_bytes
    rounds: list[list[Measurement]] = []
    spark = spark_session("tidegate-bench-kafka", configuration=spark_settings())
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
            HubProcess(Path(folder)) as service,
        ):
            for devices in arguments.devices:
                hub = fill_hub(service, events, size, devices=devices)
                with reading(spark, events, size, devices=devices) as peer_read:
                    if peer_read is None:
                        return 1
                    rounds += spark_reads(
                        spark,
                        service,
                        hub,
                        events,
                        size,
                        peer_read=peer_read,
                        rounds=arguments.rounds,
                        devices=devices,
                    )
    finally:
        spark.stop()
    _print(rounds)
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps([[as_dict(found) for found in both] for both in rounds], indent=2)
        )
    return 0


def _print(rounds: Sequence[Sequence[Measurement]]) -> None:
    table = Table(title="Batch reads in turns", title_justify="left")
    table.add_column("ours")
    for column in ("events/s", "CPU µs/event", "Kafka's events/s", "CPU µs/event", "ratio"):
        table.add_column(column, justify="right")
    for ours, kafka in rounds:
        table.add_row(
            ours.name,
            f"{ours.events_per_s:,.0f}",
            f"{ours.cpu_us_per_event:.2f}",
            f"{kafka.events_per_s:,.0f}",
            f"{kafka.cpu_us_per_event:.2f}",
            f"{ours.baselines[KAFKA_READ]:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
