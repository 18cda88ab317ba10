"""The daemon of a local session forks workers that have imported their modules, and has no thread to lose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Spark's own daemon is used")


@_LINUX
def test_workers_begin_with_their_modules_imported(spark: SparkSession) -> None:
    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys  # this function is pickled without this module's globals

        for _ in batches:
            names = sorted({"pandas", "tidegate.spark.sql_sink.writer"} & sys.modules.keys())
            yield pa.RecordBatch.from_pydict({"name": names})

    rows = spark.range(1).mapInArrow(loaded, "name string").collect()
    assert [row.name for row in rows] == ["pandas", "tidegate.spark.sql_sink.writer"]


@_LINUX
@pytest.mark.spark
def test_no_module_starts_a_thread_that_a_fork_would_lose() -> None:
    program = (
        "from pathlib import Path\n"
        "from tidegate.spark.runtime.daemon import import_modules\n"
        "import_modules()\n"
        "names = [task.joinpath('comm').read_text().strip() for task in Path('/proc/self/task').iterdir()]\n"
        "print(*names)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = run.stdout.split()
    assert len(names) >= 1
    assert [name for name in names if name != "jemalloc_bg_thd" and not name.startswith("python")] == []
    assert sum(name.startswith("python") for name in names) == 1


@_LINUX
@pytest.mark.spark
@pytest.mark.programs
def test_workers_that_a_query_cuts_off_end_silently() -> None:
    """Protects the output of every program: each of them left a traceback of BrokenPipeError in it."""
    program = (
        "from tidegate.spark import spark_session\n"
        "spark = spark_session('cut')\n"
        "rows = spark.range(0, 3_000_000, 1, 4).mapInArrow(lambda batches: batches, 'id long')\n"
        "print(*(len(rows.limit(3).collect()) for _ in range(6)))\n"
        "spark.stop()\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (run.stdout, "Traceback" in run.stderr) == ("3 3 3 3 3 3\n", False), run.stderr


@pytest.mark.spark
@pytest.mark.programs
@pytest.mark.repeats
def test_a_query_that_is_stopped_in_its_function_ends_silently() -> None:
    """Protects the output of every program: the match of the function's error overflowed Java's stack."""
    program = (
        "import threading\n"
        "from tidegate.spark import spark_session\n"
        "spark, called = spark_session('stopped'), threading.Event()\n"
        "def count(rows, batch_id):\n"
        "    called.set()\n"
        "    while True:\n"
        "        rows.count()\n"
        "source = spark.readStream.format('rate').option('rowsPerSecond', 5).load()\n"
        "query = source.writeStream.foreachBatch(count).start()\n"
        "called.wait()\n"
        "query.stop()\n"
        "spark.stop()\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "StackOverflowError" not in run.stderr


@pytest.mark.spark
@pytest.mark.programs
@pytest.mark.repeats
def test_a_query_that_is_stopped_in_a_task_ends_silently(tmp_path: Path) -> None:
    """Protects the output of every program: each such task left a Java traceback and some lines of ERROR."""
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tidegate.spark import spark_session\n"
        "spark, begun = spark_session('stopped'), Path(sys.argv[1])\n"
        "def wait(batches):\n"
        "    begun.touch()\n"
        "    time.sleep(60)\n"
        "    yield from batches\n"
        "source = spark.readStream.format('rate').option('rowsPerSecond', 5).load()\n"
        "rows = source.mapInArrow(wait, source.schema)\n"
        "query = rows.writeStream.format('noop').option('checkpointLocation', sys.argv[2]).start()\n"
        "while not begun.exists():\n"
        "    time.sleep(0.1)\n"
        "query.stop()\n"
        "spark.stop()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "begun"), str(tmp_path / "checkpoint")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in run.stderr.splitlines() if "ERROR" in line or "Traceback" in line] == []


_PLANNING = """
import sys
from types import ModuleType, SimpleNamespace

def hung_up(sock, authenticated):
    raise BrokenPipeError

main = sys.modules["__main__"] = ModuleType("__main__")
main.__spec__ = SimpleNamespace(name=sys.argv[1])
main.worker = hung_up
import tidegate.spark.formats
try:
    print(main.worker(None, True))
except BrokenPipeError:
    print("raised")
raise {"hung up": BrokenPipeError, "wrong": ValueError}[sys.argv[2]]
"""


@pytest.mark.parametrize(
    ("main", "error", "code", "is_printed"),
    [
        ("pyspark.daemon", "wrong", "1", True),
        ("pyspark.sql.streaming.python_streaming_source_runner", "hung up", "raised", False),
        ("pyspark.sql.streaming.python_streaming_source_runner", "wrong", "raised", True),
        ("program", "hung up", "raised", True),
    ],
)
@pytest.mark.slow
def test_processes_in_which_spark_plans_end_silently_when_it_hangs_up(
    main: str, error: str, code: str, is_printed: bool
) -> None:
    """Protects the output of every program: Spark hangs up when a query ends, and after an idle minute."""
    command = [sys.executable, "-c", _PLANNING, main, error]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout, "Traceback" in run.stderr) == (f"{code}\n", is_printed), run.stderr
