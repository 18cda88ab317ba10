"""The process from which Spark forks its Python workers on one machine, with their modules imported.

Spark's own (``pyspark.daemon``) imports nothing, and each worker imports all of it again, because an import
may start a thread, which a fork loses. These modules start none but jemalloc's (pyarrow), which handles
forks; ``tests/spark/test_daemon.py`` holds that. CPU of a worker's first task: 1.25 → 0.65 s.
"""

from __future__ import annotations

import gc
import os
import socket
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

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


def end_quietly() -> None:
    """Let a worker whose JVM has hung up end silently.

    Spark cuts workers off when a query ends or has enough rows. What they had not written by then is not
    needed, but their daemon prints a traceback of BrokenPipeError for each (pyspark 4.1.4, daemon.py:
    ``worker`` raises what its last flush raised). Errors of a task do not come this way: the worker reports
    them to the JVM.
    """
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # else a traceback is printed right there
    worker = daemon.worker

    def quiet(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1  # the worker ends, as after an error

    daemon.worker = quiet


if __name__ == "__main__":
    import_modules()
    end_quietly()
    daemon.manager()
