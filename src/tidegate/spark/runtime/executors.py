"""What executors have to have: asked of those that are there, before a pipeline fails on them in its own way.

The question travels by value, so that it can be asked where Tidegate cannot be imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.version import VERSION
from tidegate.spark.runtime.errors import explain

MODULES_NEEDED = ("numpy", "orjson", "pyarrow", "sqlalchemy")
"""What every executor imports beside Tidegate and pyspark."""

_PACKAGE_STEP = "Make it with `tidegate spark package`, and start it as that command says."


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """What one Python worker has."""

    host: str
    python_version: str
    """``3.11``."""
    tidegate_version: str | None
    """None: not importable."""
    modules_missing: tuple[str, ...]


def check_executors(spark: SparkSession, modules: Sequence[str] = MODULES_NEEDED) -> list[ExecutorFacts]:
    """Ask the executors what they have; returns it, one entry for each kind of answer of each host.

    One small job, with about a task for each core, so it waits until there is an executor. It says nothing
    about executors that are added later.
    modules: what has to be importable. Raises InvalidArgumentError that names the host, what it has, what the
    driver has and what to do.
    """
    context = spark.sparkContext
    tasks = max(1, context.defaultParallelism)
    try:
        rows = context.parallelize(range(tasks), tasks)
        answers = set(rows.mapPartitions(_question(tuple(modules))).collect())
    except (PySparkException, Py4JError) as exc:
        raise _unstartable(exc, context.pythonExec) from exc
    facts = [ExecutorFacts(*answer) for answer in sorted(answers, key=str)]
    for fact in facts:
        _check(fact)
    return facts


_Answer = tuple[str, str, str | None, tuple[str, ...]]


def _question(modules: tuple[str, ...]):  # type: ignore[no-untyped-def]  # a closure: pickled by value
    def answer(_: Iterator[int]) -> Iterator[_Answer]:
        import importlib
        import importlib.util
        import socket
        import sys

        try:
            version = importlib.import_module("tidegate").__version__
        except ImportError:
            version = None
        python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
        missing = tuple(name for name in modules if importlib.util.find_spec(name) is None)
        yield socket.gethostname(), python_version, version, missing

    return answer


def _check(fact: ExecutorFacts) -> None:
    if fact.tidegate_version is None:
        raise InvalidArgumentError(
            f"The executor on {fact.host} cannot import tidegate.", next_step=_PACKAGE_STEP
        )
    if fact.tidegate_version != VERSION:
        raise InvalidArgumentError(
            f"The executor on {fact.host} has Tidegate {fact.tidegate_version}, and the driver {VERSION}.",
            next_step=_PACKAGE_STEP,
        )
    if fact.modules_missing:
        raise InvalidArgumentError(
            f"The executor on {fact.host} cannot import {', '.join(fact.modules_missing)}.",
            next_step="Install what `tidegate spark package` lists into the executors' Python, or send all "
            "of it with `tidegate spark package --environment`.",
        )


def _unstartable(error: Exception, python: str) -> InvalidArgumentError:
    text = str(error)
    if "PYTHON_VERSION_MISMATCH" in text:  # pyspark's worker looks before it does anything else
        versions = re.search(r"different version: ([\d.]+\d) than that in driver: ([\d.]+\d)", text)
        found = f": {versions[1]} there, and {versions[2]} here" if versions else ""
        return InvalidArgumentError(
            f"The executors' Python ({python}) is of another version than the driver's{found}.",
            next_step=f"Let PYSPARK_PYTHON name a Python {sys.version_info.major}.{sys.version_info.minor} "
            "on the executors.",
        )
    if f'Cannot run program "{python}"' in text:
        return InvalidArgumentError(
            f"The executors have no {python}.",
            next_step="Let PYSPARK_PYTHON name their Python, by a name that the driver has on its PATH, too.",
        )
    return InvalidArgumentError(f"The executors cannot run Python: {explain(error)}")
