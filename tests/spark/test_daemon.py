"""The daemon of a local session forks workers that have imported their modules, and has no thread to lose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

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
