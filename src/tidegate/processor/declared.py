"""Loads what a user's module declares: a host or a pipeline, by its address."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from tidegate.model.errors import InvalidArgumentError

FILE_MODULE_PREFIX: Final = "tidegate_file_"
"""Prefix of the module name under which a file is imported."""


def load_declared(address: str, kinds: tuple[type, ...], *, noun: str) -> object:
    """The instance of ``kinds`` at ``package.module:attribute`` or ``path/to/file.py:attribute``, or returned
    by the callable without arguments there.

    noun: what it is called in errors. Raises InvalidArgumentError if there is none; its cause is what the
    module raised on import.
    """
    place, separator, attribute = address.rpartition(":")
    if not separator or not place or not attribute.isidentifier():
        raise InvalidArgumentError(
            f"{address!r} does not name a {noun}.",
            next_step="Write package.module:attribute or path/to/file.py:attribute.",
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    try:
        found: object = getattr(module, attribute)
    except AttributeError:
        names = [name for name, value in vars(module).items() if isinstance(value, kinds)]
        raise InvalidArgumentError(
            f"{place} has no attribute {attribute!r}.",
            next_step=f"Its {noun}s are: {', '.join(names)}." if names else f"It defines no {noun}.",
        ) from None
    if not isinstance(found, kinds) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise InvalidArgumentError(f"{address} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds if not inspect.isabstract(kind))
        article = "an" if wanted[0] in "AEIOU" else "a"
        raise InvalidArgumentError(
            f"{address} is a {type(found).__name__}, not {article} {wanted}.",
            next_step="Name one, or a function without arguments that returns one.",
        )
    return found


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _import_error(name, error) from error
        raise InvalidArgumentError(
            f"Module {name!r} not found.",
            next_step="Check the spelling, and that it is installed or on PYTHONPATH.",
        ) from error
    except Exception as error:
        raise _import_error(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidArgumentError(f"File {str(path)!r} not found.")
    name = f"{FILE_MODULE_PREFIX}{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_error(str(path), error) from error
    return module


def _import_error(name: str, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} cannot be imported: {type(error).__name__}: {error}")
