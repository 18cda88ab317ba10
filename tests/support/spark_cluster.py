"""A real Spark cluster for tests: a standalone master and workers on loopback, from pip's pyspark.

    with SparkCluster() as cluster:
        spark = spark_session("test", master=cluster.master_url)

Its executors are processes of their own, which tests may kill (``executor_ids``, ``python_worker_ids``).
Ports are free ones, directories temporary, and at the end nothing is left behind. Linux only: each worker
has a loopback address of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
from examples.support.processes import kill_session, session_members
from tests.support.ports import free_ports
from tests.support.quick_spark import pyspark_home
from tests.support.servers import TemporaryServer

from tidegate.spark.runtime.java import find_java

_DAEMON_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EXECUTOR_CLASS: Final = "CoarseGrainedExecutorBackend"
_PYTHON_DAEMON: Final = "pyspark.daemon"


class SparkCluster(TemporaryServer):
    """One master, some workers. A context manager."""

    def __init__(
        self,
        *,
        workers: int = 2,
        cores_each: int = 1,
        memory_mib_each: int = 1024,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """environment: the workers' whole environment, from which executors have PATH, and so their Python.

        None: this process's, without what its Spark and its Python path have in it. Nothing runs before
        ``start`` (or ``with``).
        """
        own = {name: value for name, value in os.environ.items() if not _is_of_spark_or_python(name)}
        self._environment = dict(own if environment is None else environment)
        self._workers = workers
        self._cores_each = cores_each
        self._memory_mib_each = memory_mib_each
        super().__init__("spark-cluster")
        self._port, self._ui_port = free_ports(2)

    @property
    def master_url(self) -> str:
        """For ``--master`` and ``spark_session(master=…)``."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start all of it; returns once every worker has registered. Raises RuntimeError."""
        self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port",
                  str(self._port), "--webui-port", str(self._ui_port))  # fmt: skip
        self._wait(lambda: _is_open(self._port), "The master does not listen")
        for number in range(self._workers):
            self.start_worker(number)
        self._wait(lambda: self._alive_workers() == self._workers, "The workers did not register")

    def start_worker(self, number: int) -> None:
        """Start a worker that does not run: it registers within a second or two, nobody waits for it here."""
        # An address of its own: Spark runs a speculative attempt only on another host than the first one's.
        host = f"127.0.0.{number + 1}"
        words = ("--host", host, "--cores", str(self._cores_each))
        memory = ("--memory", f"{self._memory_mib_each}M", "--webui-port", "0")
        place = ("--work-dir", str(self._folder / f"worker-{number}"), self.master_url)
        name = "org.apache.spark.deploy.worker.Worker"
        self._start(f"worker-{number}", name, *words, *memory, *place, host=host)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and all that runs on it, as if its machine were gone; it can start again."""
        kill_session(self._processes.pop(f"worker-{number}"))

    def executor_ids(self) -> list[int]:
        """Process ids of the executors of all applications."""
        return [each.pid for each in self._running() if _runs(each, _EXECUTOR_CLASS)]

    def python_worker_ids(self) -> list[int]:
        """Process ids of the Python workers in which tasks run (not of the daemons that fork them)."""
        daemons = {each.pid: each for each in self._running() if _runs(each, _PYTHON_DAEMON)}
        return [pid for pid, each in daemons.items() if each.info["ppid"] in daemons]

    def speculation_count(self) -> int:
        """How many attempts of tasks were given up so far because another one was first."""
        count = 0
        for path in self._folder.glob("worker-*/app-*/*/stderr"):
            with path.open("rb") as lines:
                count += sum(b"another attempt succeeded" in line for line in lines)
        return count

    def stop(self) -> None:
        """Kill everything."""
        for process in self._processes.values():
            kill_session(process)
        self._processes.clear()

    def _log_files(self) -> list[Path]:
        return [*super()._log_files(), *sorted(self._folder.glob("worker-*/app-*/*/stderr"))]

    def _start(self, name: str, *words: str, host: str = "127.0.0.1") -> None:
        # Of a test run, the one whose Python modules are compiled.
        home = Path(os.environ.get("SPARK_HOME") or pyspark_home())
        environment = self._environment | find_java().environment()
        environment |= {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA_OPTIONS,
            # Executors that tests kill are no reason to end the application, however many they are.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }
        command = [str(home / "bin" / "spark-class"), *words]
        self._run(name, command, env=environment, cwd=self._folder, start_new_session=True)

    def _alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def _running(self) -> list[psutil.Process]:
        ids = {pid for process in self._processes.values() for pid in session_members(process.pid)}
        return [each for each in psutil.process_iter(["cmdline", "ppid"]) if each.pid in ids]


def _runs(process: psutil.Process, program: str) -> bool:
    return any(program in word for word in process.info["cmdline"] or ())


def make_executor_python(folder: Path) -> Path:
    """A virtual environment as executors have it: every package of this one but Tidegate itself.

    Returns its ``bin`` directory. Nothing is copied, so it costs milliseconds.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / name / "site-packages"
    for entry in pyspark_home().parent.iterdir():
        is_ours = "tidegate" in entry.name.lower() or entry.suffix in (".pth", ".egg-link")
        if not is_ours and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    return folder / "bin"


def _is_of_spark_or_python(name: str) -> bool:
    return name.startswith(("SPARK_", "PYSPARK_", "PYTHON")) or name == "VIRTUAL_ENV"


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
