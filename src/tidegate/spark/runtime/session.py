"""Starts Spark with settings that make small micro-batches fast and retry failures.

Every setting here was measured or is needed for correctness, with the reason beside it. The user's settings
(``configuration`` and those given to ``spark-submit``) override all of them.

    where            how it is known                        what is set
    one machine      no master, or ``local…``               everything
    cluster          any other master                       what holds on every machine
    ``spark-submit`` it has already started the JVM         as for its master, except what it was given
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import PARTITIONS_MAX
from tidegate.spark.runtime.connect import connect_session, is_connect, is_server_here
from tidegate.spark.runtime.java import find_java
from tidegate.spark.runtime.versions import PYSPARK

TASK_ATTEMPTS_MAX = 4
"""Attempts per task. Plain ``local[N]`` gives each task one: a single transient error ends the query."""

CLUSTER_TASK_ATTEMPTS_MAX = 8
"""The same on a cluster, where a lost executor also costs an attempt. With Spark's four, a series of lost
executors ended a query (seen in `make chaos-spark`). Repeated attempts do not repeat effects."""

CLUSTER_TASKS_MAX: Final = PARTITIONS_MAX
"""Most tasks of a micro-batch on a cluster, unless there are more cores: whole partitions cannot occupy more.
"""

REDACTION_PATTERN = (
    "(?i)secret|password|token|access[.]?key|connection_?string|database_?url|tidegate_database"
    "|startingposition|storageoptions|^plan$"
)
"""Names of options and variables whose values Spark redacts in plans and in its UI: connection strings,
database URLs, and the plan of a source or sink, which may hold both."""

_MANY_ROWS: Final = 10_000
"""More than there are cores."""

_STACK_MB: Final = 64
"""Of each of the driver's threads (our choice: errors of 60,000 characters). Unused, it takes no memory."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

FILTER_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Without it, Spark refuses to read from a Python source that takes filters (``pushFilters``)."""

PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""What executors start unless ``PYSPARK_PYTHON`` is set: a name, because they may not have the driver's
path."""


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    cores: int | None = None,
    configuration: Mapping[str, str] | None = None,
    ui_port: int | None = None,
    log_level: str = "ERROR",
    local_checkpoints: bool | None = None,
    java_options: str = "",
    are_executors_checked: bool = True,
) -> SparkSession:
    """Start Spark, or return the session that already runs in this process.

    master: None: what ``spark-submit`` was given, else ``local[N,4]`` on this machine, with N = ``cores``.
    cores: None: as many as this process may use; on a cluster its resource manager decides. configuration:
    Spark settings that override ours; on one machine, ``spark.driver.extraJavaOptions`` are added to ours
    instead. ui_port: port of Spark's web UI; None: no UI on one machine, which also saves a second of start;
    on a cluster Spark's own settings apply. log_level: Spark's (``ERROR``, ``WARN``, …, ``OFF``).
    local_checkpoints: True if checkpoint directories are on a disk of this machine; None: unless this is a
    cluster. java_options: more options for the JVM of a local driver, such as ``-Xmx4g
    -XX:TieredStopAtLevel=1``. are_executors_checked: on a cluster, wait for an executor and check that it can
    run Tidegate.

    Raises JavaNotFoundError; InvalidArgumentError where executors lack something. Sets ``PYSPARK_PYTHON``
    and, where needed, ``JAVA_HOME`` and ``PATH`` for this process.
    """
    core_count = usable_core_count() if cores is None else cores
    submitted = _submitted_settings()
    chosen_master = master or submitted.get("spark.master") or f"local[{core_count},{TASK_ATTEMPTS_MAX}]"
    is_local = is_local_master(chosen_master)
    _set_environment(is_local=is_local)
    settings = _settings(
        core_count,
        is_local=is_local,
        ui_port=ui_port,
        local_checkpoints=is_local if local_checkpoints is None else local_checkpoints,
    )
    chosen = dict(configuration or {})
    if is_local:
        options = (_java_options(log_level), java_options, chosen.pop(_JAVA_OPTIONS, ""))
        settings[_JAVA_OPTIONS] = " ".join(filter(None, options))
    settings = {name: value for name, value in settings.items() if name not in submitted}
    settings.update(chosen)
    builder = SparkSession.builder.appName(app_name).master(chosen_master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    if not is_local and are_executors_checked:
        from tidegate.spark.runtime.executors import check_executors

        check_executors(session)
    return session


def checkpoint_path(location: str | Path) -> str:
    """A checkpoint directory in the form that Spark needs: on one machine, relative to this process's
    directory.

    Java would resolve a relative path in its own start directory, and Spark's Python workers in another. On a
    cluster, Spark's default file system resolves it.
    """
    text = str(location)
    if is_on_cluster() or urlparse(text).scheme:
        return text
    return os.path.abspath(text)


def usable_core_count() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_local_master(master: str) -> bool:
    """Whether tasks run in threads of the driver (``local-cluster`` has its own executors)."""
    return master == "local" or master.startswith("local[")


def is_on_cluster() -> bool:
    """Whether this process's Spark has executors in other processes, or is a Spark Connect server on another
    machine; also False without Spark.
    """
    context = SparkContext._active_spark_context
    if context is not None:
        return not is_local_master(context.master or "")
    session = connect_session()
    if session is None:
        return False
    return not (is_server_here(session) and is_local_master(session.conf.get("spark.master", "")))


def task_options(spark: SparkSession) -> dict[str, str]:
    """The options of the source ``eventhubs`` that set the number of tasks of a pipeline's micro-batches.

    On one machine, as many as cores. On a cluster, a small micro-batch has as many as the first executors
    have cores; a larger one has more, for executors that join later.
    """
    cores = _parallelism(spark)
    if not is_on_cluster():
        return {"eventhubs.tasksMax": str(cores)}
    return {"eventhubs.tasksMin": str(cores), "eventhubs.tasksMax": str(max(cores, CLUSTER_TASKS_MAX))}


def _parallelism(spark: SparkSession) -> int:
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    # Spark Connect does not say it, but divides a range by it.
    return spark.range(_MANY_ROWS).select(F.spark_partition_id()).distinct().count()


def refuse_sqlite_on_cluster(database_url: str) -> None:
    """Raise InvalidArgumentError for a SQLite database if executors are on other machines.

    Each executor would create its own file, with checkpoints at the start. This also applies to what only the
    driver writes, because a driver restarted on another machine would not find its file. ``local-cluster`` is
    also refused, because it stands for a cluster.
    """
    if database_url.lower().startswith("sqlite") and is_on_cluster():
        raise InvalidArgumentError(
            "SQLite is a file on one machine, but this Spark runs on a cluster or another machine: its "
            "executors, and a driver that restarts elsewhere, would each write their own.",
            next_step="Use PostgreSQL, or run on one machine (without a master, or with local[N]).",
        )


def share_python_path() -> None:
    """Let Spark's Python processes on the driver find Tidegate if this process has it from a zip.

    Executors get what ``--py-files`` names, but the process that plans a stream on the driver does not (Spark
    4.3: ``PYTHON_DATA_SOURCE_ERROR … initialize source``). Executors also get the path, which does not exist
    there and is ignored. Call this before a data source is registered.
    """
    context = SparkContext._active_spark_context
    place = Path(__file__).parents[3]
    if context is None or not place.is_file():
        return  # Spark Connect's server runs elsewhere; or installed, and so found
    paths = context.environment.get("PYTHONPATH", "")
    if str(place) not in paths.split(os.pathsep):
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (paths, str(place))))


def _submitted_settings() -> dict[str, str]:
    """The settings given to ``spark-submit``; empty if it did not start this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # starts nothing, but connects to the existing JVM
    return dict(SparkConf().getAll())


def _set_environment(*, is_local: bool) -> None:
    os.environ.update(find_java().environment())
    # Only the environment works: with spark.pyspark.python the daemon of a local session started another
    # Python ("Python worker failed to connect back").
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        return
    os.environ.setdefault("PYSPARK_PYTHON", PYTHON_NAME)
    # The JVM also starts that name on the driver, to plan streams: it has to find this Python.
    folder = str(Path(sys.executable).parent)
    found = shutil.which(PYTHON_NAME)
    if found is None or str(Path(found).parent) != folder:
        os.environ["PATH"] = os.pathsep.join((folder, os.environ.get("PATH", os.defpath)))


def _settings(
    core_count: int, *, is_local: bool, ui_port: int | None, local_checkpoints: bool
) -> dict[str, str]:
    settings = {
        # Loopback TCP between the JVM and Python suffers Nagle and delayed acknowledgements: 553 → 143 ms for
        # a small micro-batch of 16 partitions, together with the frozen garbage collector of the reader.
        "spark.python.unix.domain.socket.enabled": "true",
        FILTER_SETTING: "true",
        "spark.sql.session.timeZone": "UTC",
        # A driver killed while it wrote its first offsets leaves a temporary file, for which Spark refused
        # the checkpoint directory at every later start (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        "spark.redaction.regex": REDACTION_PATTERN,
        # Spark's own default is `url`, which other sources' options rely on.
        "spark.sql.redaction.options.regex": f"{REDACTION_PATTERN}|url",
        "spark.ui.showConsoleProgress": "false",
    }
    if ui_port is not None:
        settings |= {"spark.ui.enabled": "true", "spark.ui.port": str(ui_port)}
    elif is_local:
        settings["spark.ui.enabled"] = "false"
    if is_local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(core_count),
            "spark.default.parallelism": str(core_count),
        }
        if sys.platform == "linux":  # elsewhere system libraries may not survive a fork
            settings["spark.python.daemon.module"] = "tidegate.spark.runtime.daemon"
    else:
        settings["spark.task.maxFailures"] = str(CLUSTER_TASK_ATTEMPTS_MAX)
    if local_checkpoints:
        # The default manager forks readlink and chmod for every file: 211 → 171 ms (p99) per micro-batch.
        package = "checkpointing." if PYSPARK >= (4, 1) else ""
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
        )
    return settings


def _java_options(log_level: str) -> str:
    """Options for the driver's JVM: quiet from its first line, not only after ``setLogLevel``.

    A query that is stopped while a Python function runs matches its error with a pattern that recurses for
    each character (Spark 4.3, ``StreamExecution.PROXY_ERROR``): Java's stack of 1 MB overflowed at 3,000.
    """
    configuration_file = Path(__file__).with_name("log4j2.properties")
    quiet = f'"-Dlog4j2.configurationFile={configuration_file.as_uri()}" -Dtidegate.log.level={log_level}'
    return f"{quiet} -Xss{_STACK_MB}m"
