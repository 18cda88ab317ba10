"""Passes a Python object from a driver to tasks as an option, which in Spark is a string."""

from __future__ import annotations

import base64
import importlib.machinery
import sys
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark import TaskContext, cloudpickle

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.session import is_on_cluster

PLAN_OPTION: Final = "plan"
"""The option with the tasks' plan. Spark redacts it in listings, because it may contain a database URL or a
connection string (``session.REDACTION_PATTERN``)."""


def pickled(value: object, function: object, *, subject: str) -> str:
    """``value`` as text.

    function: the user's function in it; if workers would not find its module, that is pickled too. subject:
    the start of the error: ``The pipeline delays``. Raises InvalidArgumentError if ``value`` cannot be
    pickled.
    """
    while isinstance(function, partial):
        function = function.func
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    is_by_value = module is not None and not _is_importable(module)
    if is_by_value:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        encoded = _dumps((list(sys.path), is_on_cluster(), _dumps(value)))
    except Exception as exc:
        raise InvalidArgumentError(
            f"{subject} cannot be sent to Spark's workers: {exc}",
            next_step="Create connections, locks and files when the function is first called, "
            "instead of holding them in a global variable or a closure.",
        ) from exc
    finally:
        if is_by_value:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return base64.b64encode(encoded).decode()


def _dumps(value: object) -> bytes:
    encoded: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return encoded


def _is_importable(module: ModuleType) -> bool:
    """Whether a worker finds the module by name, given this process's sys.path."""
    if module.__name__ == "__main__" or "." in module.__name__:
        return True  # __main__ is always pickled by value; a submodule comes with its package
    return (
        module.__name__ in sys.builtin_module_names
        or importlib.machinery.PathFinder.find_spec(module.__name__) is not None
    )


@lru_cache(maxsize=8)
def unpickled(text: str) -> object:
    """Unpickle in a worker; returns the same object for the same text, so that a function's caches survive.

    Raises InvalidArgumentError if a needed module is missing.
    """
    paths, is_cluster, encoded = cloudpickle.loads(base64.b64decode(text))
    if not is_cluster or TaskContext.get() is None:
        # Workers on the driver's machine can also import its script and the files beside it. Executors do not
        # have its folders; they get the files by ``--py-files``.
        sys.path.extend(path for path in paths if path not in sys.path and Path(path or ".").exists())
    try:
        value: object = cloudpickle.loads(encoded)
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(
            f"Spark's worker has no module {exc.name!r}, which a function of the query needs.",
            next_step="Add its file to `tidegate spark package`, after the program, and start it as that "
            "command says; or install it on every executor.",
        ) from exc
    return value
