"""A real Spark cluster for tests: a standalone master and workers on loopback, from pip's pyspark.

    with SparkCluster() as cluster:
        spark = spark_session("test", master=cluster.master_url)

Its executors are processes of their own, which tests may kill (``executor_ids``, ``python_worker_ids``).
Ports are free ones, directories temporary, and at the end nothing is left behind. Linux only: processes are
found in /proc.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.ports import free_ports

from tidegate.model.errors import OperationTimeoutError
from tidegate.spark.runtime.java import find_java

_START_S_MAX: Final = 60.0
_POLL_S: Final = 0.05
_DAEMON_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EXECUTOR_CLASS: Final = b"CoarseGrainedExecutorBackend"
_PYTHON_DAEMON: Final = b"pyspark.daemon"


class SparkCluster:
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
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-spark-cluster-"))
        self._port, self._ui_port = free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master_url(self) -> str:
        """For ``--master`` and ``spark_session(master=…)``."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start all of it; returns once every worker has registered. Raises OperationTimeoutError."""
        self._run("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port",
                  str(self._port), "--webui-port", str(self._ui_port))  # fmt: skip
        self._wait(lambda: _is_open(self._port), "The master does not listen")
        for number in range(self._workers):
            self.start_worker(number)
        self._wait(lambda: self._alive_workers() == self._workers, "The workers did not register")
        return self

    def start_worker(self, number: int) -> None:
        """Start a worker that does not run: it registers within a second or two, nobody waits for it here."""
        # An address of its own: Spark runs a speculative attempt only on another host than the first one's.
        host = f"127.0.0.{number + 1}"
        words = ("--host", host, "--cores", str(self._cores_each))
        memory = ("--memory", f"{self._memory_mib_each}M", "--webui-port", "0")
        place = ("--work-dir", str(self._folder / f"worker-{number}"), self.master_url)
        name = "org.apache.spark.deploy.worker.Worker"
        self._run(f"worker-{number}", name, *words, *memory, *place, host=host)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and all that runs on it, as if its machine were gone; it can start again."""
        kill_session(self._processes.pop(f"worker-{number}"))

    def executor_ids(self) -> list[int]:
        """Process ids of the executors of all applications."""
        return [pid for pid in self._process_ids() if _EXECUTOR_CLASS in _command_of(pid)]

    def python_worker_ids(self) -> list[int]:
        """Process ids of the Python workers in which tasks run (not of the daemons that fork them)."""
        daemons = {pid for pid in self._process_ids() if _PYTHON_DAEMON in _command_of(pid)}
        return [pid for pid in daemons if _parent_of(pid) in daemons]

    def speculation_count(self) -> int:
        """How many attempts of tasks were given up so far because another one was first."""
        count = 0
        for path in self._folder.glob("worker-*/app-*/*/stderr"):
            with path.open("rb") as lines:
                count += sum(b"another attempt succeeded" in line for line in lines)
        return count

    def logs(self) -> str:
        """The ends of what master, workers and executors wrote, for a failure's message."""
        paths = [*sorted(self._folder.glob("*.log")), *sorted(self._folder.glob("worker-*/app-*/*/stderr"))]
        ends = [(path.relative_to(self._folder), path.read_text(errors="replace")[-2000:]) for path in paths]
        return "\n".join(f"--- {name}\n{text}" for name, text in ends[-8:])

    def close(self) -> None:
        """Kill everything and remove the folder."""
        for process in self._processes.values():
            kill_session(process)
        self._processes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, name: str, *words: str, host: str = "127.0.0.1") -> None:
        assert name not in self._processes, "it is running already"
        home = spark_home()
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
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._folder,
                start_new_session=True,
            )

    def _wait(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while not condition():
            has_ended = any(process.poll() is not None for process in self._processes.values())
            if has_ended or time.monotonic() > deadline:
                raise OperationTimeoutError(f"{failure}. {self.logs()}")
            time.sleep(_POLL_S)

    def _alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def _process_ids(self) -> Iterator[int]:
        sessions = {process.pid for process in self._processes.values()}
        return (pid for pid in _all_process_ids() if _session_of(pid) in sessions)


def spark_home() -> Path:
    """Spark's home for tests, else where pip has put Spark."""
    if "SPARK_HOME" in os.environ:
        return Path(os.environ["SPARK_HOME"])
    specification = importlib.util.find_spec("pyspark")
    assert specification is not None, "pyspark is not installed"
    assert specification.origin is not None
    return Path(specification.origin).parent


def make_executor_python(folder: Path) -> Path:
    """A virtual environment as executors have it: every package of this one but Tidegate itself.

    Returns its ``bin`` directory. Nothing is copied, so it costs milliseconds.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / name / "site-packages"
    for entry in spark_home().parent.iterdir():
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


def _all_process_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _status_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the command's name: state, parent, group, session, … ."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "-1", "-1", "-1"]


def _session_of(pid: int) -> int:
    return int(_status_of(pid)[3])


def _parent_of(pid: int) -> int:
    return int(_status_of(pid)[1])


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and all of its session: Python workers are in process groups of their own."""
    members = [pid for pid in _all_process_ids() if _session_of(pid) == leader.pid]
    for pid in {leader.pid, *members}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    leader.wait(30)
