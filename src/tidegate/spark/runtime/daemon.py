"""The process from which Spark forks its Python workers on one machine, with their modules imported.

Spark's own (``pyspark.daemon``) imports nothing, and each worker imports all of it again, because an import
may start a thread, which a fork loses. These modules start none but jemalloc's (pyarrow), which handles
forks; ``tests/spark/test_daemon.py`` holds that. CPU of a worker's first task: 1.25 → 0.65 s.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

from tidegate.spark.runtime.workers import end_quietly

_MODULES = (
    "pandas",
    "pyspark.worker",
    "tidegate.spark.source.processing",
    "tidegate.spark.sql_sink.writer",
)


def import_modules() -> None:
    """Import what workers need and keep it from the garbage collector, which would copy its pages.

    What is not installed is left out: only tasks that need it fail.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's; workers are as many as cores
    for name in _MODULES:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    import_modules()
    end_quietly(daemon)
    daemon.manager()
