"""A Kafka broker of our own, and the programs that Kafka brings to measure it.

Maven brings them from Maven Central (``kafka.xml``) into ``build/kafka``, once. The broker has Kafka's own
defaults: an event is acknowledged when it is written, not when it is on disk.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.ports import free_ports

from tidegate.spark.runtime.java import find_java

_POM: Final = Path(__file__).with_name("kafka.xml")
_JARS: Final = Path(__file__).parents[1] / "build" / "kafka"
_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_FETCH_S_MAX: Final = 600.0
_TOOL_S_MAX: Final = 300.0
_HEAP: Final = "1g"
"""Of the broker: what Kafka's own start script gives it."""


class KafkaMissingError(Exception):
    """The broker and Spark's source for it cannot be had on this machine."""


def jars_of(profile: str) -> Path:
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


def kafka_version() -> str:
    """Of the broker."""
    found = re.search(r"kafka_2\.13</artifactId>\s*<version>([^<]+)", _POM.read_text())
    assert found is not None
    return found[1]


class KafkaBroker:
    """A broker of its own on free ports of loopback; a context manager that leaves nothing behind."""

    def __init__(self, partitions: int) -> None:
        """Topics have that many partitions, and come to be when they are first written to.

        Raises KafkaMissingError.
        """
        self._class_path = f"{jars_of('broker')}/*"
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
            f"num.partitions={partitions}\n"
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
            self.run_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings))
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

    def run_tool(self, *arguments: str) -> str:
        """What one of Kafka's programs, named by its class, printed."""
        command = [*self._command(), *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S_MAX)
        if found.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {found.stdout}{found.stderr}")
        return found.stdout

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
