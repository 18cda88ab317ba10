"""What a PySpark worker knows of its task, what makes pooled workers, which live between tasks, fast, and how
they end without a traceback."""

from __future__ import annotations

import gc
import os
import socket
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pyspark import TaskContext

_FREEZES_MAX = 3

_freeze_count = 0


def freeze_loaded_modules() -> None:
    """Exempt what this process has loaded from garbage collection; acts in its first few tasks.

    PySpark's worker runs a full collection after every task, which over all imported modules took 95 % of a
    small micro-batch's time (measured with PySpark 4.3).
    """
    global _freeze_count
    if _freeze_count < _FREEZES_MAX:
        _freeze_count += 1
        gc.collect()
        gc.freeze()


def end_quietly(daemon: Any) -> None:
    """Let a worker of ``daemon`` (the module ``pyspark.daemon``) whose JVM has hung up end silently.

    Spark cuts workers off when a query ends or has enough rows, and after a minute without work. What they
    had not written by then is not needed, but their daemon prints a traceback of BrokenPipeError for each
    (pyspark 4.1.4, daemon.py: ``worker`` raises what its last flush raised). Errors of a task do not come
    this way: the worker reports them to the JVM.
    """
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # else a traceback is printed right there
    worker = daemon.worker

    def quiet(sock: socket.socket, authenticated: bool) -> int:
        try:
            code: int = worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            code = 1  # the worker ends, as after an error
        return code

    daemon.worker = quiet


def end_quietly_if_planning() -> None:
    """The same for this process, if Spark plans or commits in it.

    Such workers are Spark's own daemon's, whatever ``spark.python.daemon.module`` says (Spark 4.3,
    PythonPlannerRunner), and a stream has a process in which it asks for offsets.
    """
    main: Any = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", None)
    if name == "pyspark.daemon":
        end_quietly(main)  # From the next request on, where an idle worker waits.
    elif name == "pyspark.sql.streaming.python_streaming_source_runner":
        sys.excepthook = _print_unless_hung_up


def _print_unless_hung_up(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
        sys.__excepthook__(kind, error, traceback)


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which part of which write the task of this process does; the same for all attempts of the task."""

    write: str
    """The streaming query's id, or the name of a batch query's write."""
    batch_id: int
    """The micro-batch; 0 in a batch query."""
    task: int
    """The number of the task in the micro-batch."""

    @classmethod
    def of_this_task(cls, write: str | None = None) -> TaskIdentity:
        """write: the name of a batch query's write; None: the task is one of a stream."""
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        if write is not None:
            return cls(write, 0, task)
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert query_id is not None
        assert batch_id is not None
        return cls(query_id, int(batch_id), task)
