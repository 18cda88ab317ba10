"""Loads the names that a package exports when they are first used.

A package declares each of its names once, as the import that type checkers read; its order is that of the
reference page::

    if TYPE_CHECKING:
        from tidegate.sql.core.database import Database as Database

    __getattr__, __dir__, __all__ = exports_of(__name__)

Importing a package therefore costs nothing. Spark starts half a dozen Python processes per query, and most
need one module of a package: importing the source takes 0.3 s instead of 1.3 s.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable


def exports_of(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of ``package``, from its imports for type checkers."""
    source = pkgutil.get_data(package, "__init__.py")
    assert source is not None
    homes = declared_exports(ast.parse(source))

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            from tidegate.extras import not_installed

            extra = "spark" if homes[name].startswith("tidegate.spark") else None
            raise not_installed(error, f"{package}.{name}", extra) from error
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names, list(homes)


def declared_exports(package: ast.Module) -> dict[str, str]:
    """Exported name → the module that defines it, in the order of the declarations."""
    return {
        alias.name: statement.module
        for block in package.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
