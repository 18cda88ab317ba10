"""Every suite there is: a module here adds its own with ``SUITES``, a tuple of ``Suite``."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import tests.interop.suites as package
from tests.interop.suites.suite import Suite


@cache
def all_suites() -> dict[str, Suite]:
    """Name → suite, by name."""
    modules = (
        import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
        if found.name not in ("__main__", "catalog") and not found.name.startswith("test_")
    )
    suites: list[Suite] = [suite for module in modules for suite in getattr(module, "SUITES", ())]
    assert len({suite.name for suite in suites}) == len(suites), "two suites have one name"
    return {suite.name: suite for suite in sorted(suites, key=lambda suite: suite.name)}
