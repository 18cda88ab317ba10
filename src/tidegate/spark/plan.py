"""What a driver sends to its writing tasks: the pipeline, the database, and the driver's claim.

Spark's data source options are text, so the plan travels as one option, pickled. It holds secrets (a database
URL, a connection string) and is one opaque word in any listing of options.
"""

from __future__ import annotations

import base64
import importlib.machinery
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark import TaskContext, cloudpickle

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.options import SourceOptions
from tidegate.spark.ownership import Claim
from tidegate.spark.session import is_on_cluster
from tidegate.sql import Pipeline

PLAN_OPTION: Final = "plan"
"""The option that holds a ``SinkPlan`` as text, of the sink and of the source that commits."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything that a writing task needs to know."""

    pipeline: Pipeline
    database_url: str = field(repr=False)
    source: SourceOptions
    """Of the stream that feeds the sink: events are read again by pointer for dead letters."""
    claim: Claim
    is_transformed: bool
    """True: rows come from a DataFrame transformation; False: encoded events, or the columns that a function
    over batches asks for, for the pipeline's handler."""
    transaction_rows_max: int
    """Rows after which a task commits what it has of a partition, and goes on."""
    transaction_bytes_max: int

    def to_text(self) -> str:
        """The plan as one option's value.

        Raises InvalidArgumentError where the handler or the table cannot be pickled.
        """
        module = sys.modules.get(getattr(self.pipeline.function, "__module__", None) or "")
        is_by_value = module is not None and not _is_importable(module)
        if is_by_value:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            pickled = _dumps((list(sys.path), is_on_cluster(), _dumps(self)))
        except Exception as exc:
            raise InvalidArgumentError(
                f"The pipeline {self.pipeline.name} cannot be sent to Spark's workers: {exc}",
                next_step="Let the handler make connections, locks and files when it is first called, "
                "instead of holding them in a global variable or a closure.",
            ) from exc
        finally:
            if is_by_value:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
        return base64.b64encode(pickled).decode()


def _dumps(value: object) -> bytes:
    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return pickled


def _is_importable(module: ModuleType) -> bool:
    """Whether a worker finds the module by its name, given this process's sys.path."""
    if module.__name__ == "__main__" or "." in module.__name__:
        return True  # __main__ is pickled by value anyway; a submodule comes with its package
    return (
        module.__name__ in sys.builtin_module_names
        or importlib.machinery.PathFinder.find_spec(module.__name__) is not None
    )


@lru_cache(maxsize=8)
def load_plan(text: str) -> SinkPlan:
    """The plan again, in a worker; the same object for the same text, so that a handler's caches live on.

    Raises InvalidArgumentError where a module of the handler is not there.
    """
    paths, is_cluster, pickled = cloudpickle.loads(base64.b64decode(text))
    if not is_cluster or TaskContext.get() is None:
        # The driver's script and its neighbours are importable there; on its machine they shall be here, too.
        # To a cluster's executors its folders mean nothing: what they hold comes with ``--py-files``.
        sys.path.extend(path for path in paths if path not in sys.path and Path(path or ".").exists())
    try:
        plan = cloudpickle.loads(pickled)
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(
            f"Spark's worker has no module {exc.name!r}, which the pipeline's handler needs.",
            next_step="Name its file to `tidegate spark package`, behind the program, and start it as that "
            "command says; or install it on every executor.",
        ) from exc
    assert isinstance(plan, SinkPlan)
    return plan
