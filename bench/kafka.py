"""Kafka beside us: a broker, and Spark's own Kafka source in the session that reads ours, of the same events.

    python -m bench.kafka [--events N] [--event-bytes N] [--rounds N] [--devices N …] [--json FILE]

Needs Maven, which brings both from Maven Central (``kafka.xml``) into ``build/kafka``, once. The broker has
Kafka's own defaults: an event is acknowledged when it is written, not when it is on disk. A read does not
feel that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table
from tests.support.ports import free_ports

from bench.measure import Measurement, timed
from bench.report import as_dict
from bench.spark_stages import DEVICES, PARTITIONS, READ_EVENTS, ROUNDS, fill_hub, spark_reads
from bench.stages import PROPERTIES
from bench.targets import KAFKA_READ
from tidegate.spark import spark_session
from tidegate.spark.runtime.java import find_java
from tidegate.testing.hub import HubProcess

_POM: Final = Path(__file__).with_name("kafka.xml")
_JARS: Final = Path(__file__).parents[1] / "build" / "kafka"
_JARS_SETTING: Final = "spark.jars"
_TOPIC: Final = "bench"
_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_FETCH_S_MAX: Final = 600.0
_HEAP: Final = "1g"
"""Of the broker: what Kafka's own start script gives it."""
_progress = Console(stderr=True)


class KafkaMissingError(Exception):
    """The broker and Spark's source for it cannot be had on this machine."""


def spark_settings() -> dict[str, str]:
    """What a session needs to read from Kafka; nothing, and a line that says why, where it cannot be had."""
    try:
        jars = _jars("source")
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
        broker = KafkaBroker()
    except KafkaMissingError as error:
        _progress.print(f"without Kafka: {error}")
        yield None
        return
    with broker:
        topic = KafkaTopic(broker, events, event_bytes, devices)
        topic.fill(spark)
        yield partial(topic.read, spark)


def _jars(profile: str) -> Path:
    """The folder with the jars of a profile of the POM, fetched where the POM is newer than they are."""
    folder = _JARS / profile
    fetched = folder / ".fetched"
    if fetched.exists() and fetched.stat().st_mtime > _POM.stat().st_mtime:
        return folder
    if shutil.which("mvn") is None:
        raise KafkaMissingError("no mvn on PATH, which brings Kafka (Debian: maven)")
    shutil.rmtree(folder, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(_POM), "-P", profile, "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={folder}")
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise KafkaMissingError(f"mvn did not bring Kafka in {_FETCH_S_MAX:.0f} s") from error
    if found.returncode:
        raise KafkaMissingError(f"mvn did not bring Kafka: {found.stdout.strip().splitlines()[:1]}")
    fetched.touch()
    return folder


class KafkaBroker:
    """A broker of its own on free ports of loopback; a context manager that leaves nothing behind."""

    def __init__(self) -> None:
        """Topics have PARTITIONS partitions, and come to be when they are first written to.

        Raises KafkaMissingError.
        """
        self._class_path = f"{_jars('broker')}/*"
        self._java = find_java().executable
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
        self._port, controller_port = free_ports(2)
        self._settings = self._folder / "server.properties"
        self._settings.write_text(
            f"process.roles=broker,controller\n"
            f"node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}\n"
            f"controller.listener.names=CONTROLLER\n"
            f"log.dirs={self._folder / 'log'}\n"
            f"num.partitions={PARTITIONS}\n"
            f"offsets.topic.replication.factor=1\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """As clients want it."""
        return f"127.0.0.1:{self._port}"

    @property
    def process_id(self) -> int:
        """Of the broker that runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        """Make the log and start; returns when the broker takes connections."""
        try:
            cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"
            self._run_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings))
            with (self._folder / "broker.txt").open("wb") as output:
                self._process = subprocess.Popen(
                    [*self._command(f"-Xmx{_HEAP}", f"-Xms{_HEAP}"), "kafka.Kafka", str(self._settings)],
                    stdout=output,
                    stderr=output,
                )
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, and delete the log."""
        self._stop()

    def _command(self, *options: str) -> list[str]:
        return [str(self._java), *options, "-cp", self._class_path]

    def _run_tool(self, *arguments: str) -> None:
        command = [*self._command(), *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=_START_S_MAX)
        if found.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {found.stdout}{found.stderr}")

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
                return
            except OSError:
                is_ended = self._process is not None and self._process.poll() is not None
                if is_ended or time.monotonic() > deadline:
                    output = (self._folder / "broker.txt").read_text(errors="replace")
                    raise RuntimeError(f"the Kafka broker did not start:\n{output[-2000:]}") from None
                time.sleep(0.2)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


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
