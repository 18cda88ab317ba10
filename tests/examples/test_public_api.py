"""Examples are what a user writes: they import what Tidegate exports, and nothing deeper."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tidegate.model import errors

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PUBLIC = ("tidegate", *(f"tidegate.{name}" for name in ("client", "processor", "sql", "spark", "testing")))
OURS = ("tests", "tools", "bench", "fuzz")


def _not_public(source: str) -> Iterator[str]:
    """What a module imports, anywhere in it, that no user of the package could rely on."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (
                alias.name
                for alias in node.names
                if alias.name.partition(".")[0] in ("tidegate", *OURS) and alias.name not in PUBLIC
            )
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] == "tidegate":
                exported = getattr(importlib.import_module(module), "__all__", ()) if module in PUBLIC else ()
                yield from (f"{module}.{alias.name}" for alias in node.names if alias.name not in exported)
            elif module.partition(".")[0] in OURS:
                yield module


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.slow
def test_an_example_imports_what_is_exported(example: Path) -> None:
    """Where an example needs more, the package exports more."""
    assert list(_not_public(example.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import tidegate.model.errors",
        "from tidegate.model.errors import NotFoundError",
        "from tidegate.sql.core.schema import checkpoint",
        "from tidegate.sql import absent",
        "from tidegate.sql import *",
        "from tidegate import model",
        "from tests.cli import support",
        "def late():\n    from tidegate.server.ready import ReadyInformation",
    ],
)
def test_a_deeper_import_is_found(line: str) -> None:
    """A module, a name that is not exported, a star, an import within a function."""
    assert len(list(_not_public(line))) == 1


def test_exported_names_are_not_found() -> None:
    """From the package itself and from those beneath it."""
    assert not list(_not_public("import tidegate\nfrom tidegate.sql import Pipeline\nimport tidegate.client"))


def test_the_package_exports_what_it_names() -> None:
    """Each name can be imported from where users are told to; the errors are those of the one tree."""
    for name in tidegate.__all__:
        value = getattr(tidegate, name)
        assert value.__name__ == name
        if isinstance(value, type) and issubclass(value, errors.TidegateError):
            assert value is getattr(errors, name)
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        tidegate.Absent  # noqa: B018
