"""``import tidegate`` costs nothing, and gives the names of a first program when they are used."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import tomllib

import pytest
from tests.docs_support import ROOT

import tidegate


def _home(name: str) -> str:
    return tidegate._MODULES.get(name, "model.errors")


def _loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a Python that has loaded nothing yet."""
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    """No third-party module, none of the product's packages, no event loop: unused names cost nothing."""
    loaded = _loaded_by("import tidegate")
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {
        "tidegate",
        "tidegate.model",
        "tidegate.model.version",
    }
    assert "asyncio" not in loaded


@pytest.mark.parametrize("module", ["errors", "events", "position"])
def test_importing_a_part_of_the_model_imports_only_the_model(module: str) -> None:
    """Names that are loaded when they are used do not drag other packages into the pure ones."""
    loaded = _loaded_by(f"import tidegate.model.{module}")
    outside = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in outside if not name.startswith("tidegate.model")} == {"tidegate"}


def test_a_name_loads_its_own_package_and_not_those_above_it() -> None:
    """A producer's program imports neither the processor nor SQL nor Spark."""
    packages = {
        name.split(".")[1] for name in _loaded_by("from tidegate import EventHubProducer") if "." in name
    }
    assert "client" in packages
    assert packages.isdisjoint({"processor", "sql", "spark", "server", "broker"})


def test_reading_with_spark_does_not_load_sqlalchemy() -> None:
    """Spark starts half a dozen Pythons per query: SQL's modules would double what they need to start."""
    loaded = _loaded_by("import tidegate.spark.source.reader")
    assert "pyarrow" in loaded
    assert "sqlalchemy" not in loaded


@pytest.mark.parametrize("package", ["sql", "spark"])
def test_a_package_loads_each_of_its_names(package: str) -> None:
    """The table that the interpreter loads names by has the names for users, and no others."""
    module = importlib.import_module(f"tidegate.{package}")
    assert set(module._MODULE_OF) == set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert not hasattr(module, "Pipelines")


@pytest.mark.parametrize("name", tidegate.__all__)
def test_each_name_is_the_one_of_its_package(name: str) -> None:
    """The same object, documented, under both of its addresses."""
    home = importlib.import_module(f"tidegate.{_home(name)}")
    exported = getattr(tidegate, name)
    assert exported is getattr(home, name)
    assert inspect.getdoc(exported)
    assert name in dir(tidegate)


def test_type_checkers_see_the_names_that_are_loaded() -> None:
    """The imports for type checkers, the table for the interpreter and ``__all__`` say the same."""
    tree = ast.parse(inspect.getsource(tidegate))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: (node.module or "").removeprefix("tidegate.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {name: _home(name) for name in tidegate.__all__}
    assert set(tidegate._MODULES) <= set(tidegate.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """``hasattr`` and ``from tidegate import …`` behave as with any module."""
    assert not hasattr(tidegate, "EventHubProducers")
    with pytest.raises(ImportError, match="EventHubProducers"):
        exec("from tidegate import EventHubProducers")


def test_the_version_is_that_of_the_distribution() -> None:
    """What `tidegate version` says is what pip installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tidegate.__version__ == project["version"]
