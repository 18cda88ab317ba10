"""Checks what executors have installed, before a pipeline fails on them with a less clear error.

The check is pickled by value, so that it works without Tidegate on the executor.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.model import VERSION
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.errors import explain

MODULES_NEEDED = ("msgspec", "numpy", "orjson", "pyarrow", "sqlalchemy")
"""What every executor imports besides Tidegate and pyspark."""

_PACKAGE_STEP = "Create a package with `tidegate spark package`, and start it as that command says."


class ExecutorFacts(NamedTuple):
    """What one Python worker has."""

    host: str
    python_version: str
    """Such as ``3.11``."""
    tidegate_version: str | None
    """None: it cannot be imported."""
    modules_missing: tuple[str, ...]


def check_executors(spark: SparkSession, modules: Sequence[str] = MODULES_NEEDED) -> list[ExecutorFacts]:
    """Ask the executors what they have; returns one entry per distinct answer of each host.

    Runs one small job with about a task per core, so it waits for an executor. Executors added later are not
    checked. modules: what must be importable. Raises InvalidArgumentError, naming the host, what it has, what
    the driver has and what to do.
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


def _question(modules: tuple[str, ...]):  # type: ignore[no-untyped-def]  # a closure: pickled by value
    def answer(_: Iterator[int]) -> Iterator[tuple[str, str, str | None, tuple[str, ...]]]:
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
            f"The executor on {fact.host} has Tidegate {fact.tidegate_version}, but the driver {VERSION}.",
            next_step=_PACKAGE_STEP,
        )
    if fact.modules_missing:
        raise InvalidArgumentError(
            f"The executor on {fact.host} cannot import {', '.join(fact.modules_missing)}.",
            next_step="Install the packages that `tidegate spark package` lists in the executors' Python, or "
            "send them with `tidegate spark package --environment`.",
        )


def _unstartable(error: Exception, python: str) -> InvalidArgumentError:
    text = str(error)
    if "PYTHON_VERSION_MISMATCH" in text:  # pyspark's worker checks this first
        versions = re.search(r"different version: ([\d.]+\d) than that in driver: ([\d.]+\d)", text)
        found = f": {versions[1]} there, {versions[2]} here" if versions else ""
        return InvalidArgumentError(
            f"The executors' Python ({python}) is not of the driver's version{found}.",
            next_step=f"Set PYSPARK_PYTHON to a Python {sys.version_info.major}.{sys.version_info.minor} "
            "of the executors.",
        )
    if f'Cannot run program "{python}"' in text:
        return InvalidArgumentError(
            f"The executors have no {python}.",
            next_step="Set PYSPARK_PYTHON to their Python, by a name that is also on the driver's PATH.",
        )
    return InvalidArgumentError(f"The executors cannot run Python: {explain(error)}")
