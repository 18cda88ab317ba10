"""A Python object as the value of an option, which is how a driver sends anything to the tasks of a source or
sink: Spark's options are text.
"""

from __future__ import annotations

import base64
import importlib.machinery
import sys
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark import TaskContext, cloudpickle

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.session import is_on_cluster

PLAN_OPTION: Final = "plan"
"""The option that holds what tasks are told: one opaque word, which Spark hides in listings of options, for
it may hold a database's URL or a connection string (``session.REDACTION_PATTERN``)."""


def pickled(value: object, function: object, *, subject: str) -> str:
    """``value`` as text.

    function: the user's, that it holds; one from a module which a worker would not find travels with its
    module. subject: what cannot be sent, if it cannot, as an error begins: ``The pipeline delays``.
    Raises InvalidArgumentError where ``value`` cannot be pickled.
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
            next_step="Let the function make connections, locks and files when it is first called, "
            "instead of holding them in a global variable or a closure.",
        ) from exc
    finally:
        if is_by_value:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return base64.b64encode(encoded).decode()


def plan_and_options(
    options: Mapping[str, str], format_name: str, *, next_step: str
) -> tuple[str, dict[str, str]]:
    """The plan, and the other options, of a format that only Tidegate makes.

    Raises InvalidArgumentError, which says what to use instead (``next_step``), where there is no plan.
    """
    plan = options.get(PLAN_OPTION)
    if plan is None:
        raise InvalidArgumentError(f"The format {format_name} cannot be read by itself.", next_step=next_step)
    return plan, {name: value for name, value in options.items() if name != PLAN_OPTION}


def _dumps(value: object) -> bytes:
    encoded: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return encoded


def _is_importable(module: ModuleType) -> bool:
    """Whether a worker finds the module by its name, given this process's sys.path."""
    if module.__name__ == "__main__" or "." in module.__name__:
        return True  # __main__ is pickled by value anyway; a submodule comes with its package
    return (
        module.__name__ in sys.builtin_module_names
        or importlib.machinery.PathFinder.find_spec(module.__name__) is not None
    )


@lru_cache(maxsize=8)
def unpickled(text: str) -> object:
    """The object again, in a worker; the same one for the same text, so that a function's caches live on.

    Raises InvalidArgumentError where a module that it needs is not there.
    """
    paths, is_cluster, encoded = cloudpickle.loads(base64.b64decode(text))
    if not is_cluster or TaskContext.get() is None:
        # The driver's script and its neighbours are importable there; on its machine they shall be here, too.
        # To a cluster's executors its folders mean nothing: what they hold comes with ``--py-files``.
        sys.path.extend(path for path in paths if path not in sys.path and Path(path or ".").exists())
    try:
        value: object = cloudpickle.loads(encoded)
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(
            f"Spark's worker has no module {exc.name!r}, which a function of the query needs.",
            next_step="Name its file to `tidegate spark package`, behind the program, and start it as that "
            "command says; or install it on every executor.",
        ) from exc
    return value
