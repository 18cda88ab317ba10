"""``import tidegate`` costs nothing, and gives the names of a first program when they are used."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from types import ModuleType

import pytest
from tests.docs_support import ROOT

import tidegate
from tidegate.exports import declared_exports

_GENERATED = {"tidegate._version"} if (ROOT / "src/tidegate/_version.py").exists() else set()
"""Written by a build; a checkout that was never installed has none."""
PACKAGES = ("broker", "client", "processor", "sql", "spark")


def _homes(package: ModuleType) -> dict[str, str]:
    return declared_exports(ast.parse(inspect.getsource(package)))


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
        "tidegate.exports",
        "tidegate.model",
    } | _GENERATED
    assert "asyncio" not in loaded


@pytest.mark.parametrize("module", ["errors", "events", "position"])
def test_importing_a_part_of_the_model_imports_only_the_model(module: str) -> None:
    """Names that are loaded when they are used do not drag other packages into the pure ones."""
    loaded = _loaded_by(f"import tidegate.model.{module}")
    outside = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in outside if not name.startswith("tidegate.model")} == {
        "tidegate",
        "tidegate.exports",
    } | _GENERATED


@pytest.mark.slow
def test_a_service_loads_sql_only_for_a_database() -> None:
    """SQLAlchemy takes a third of the CPU of a start, and 18 MB."""
    loaded = _loaded_by("import tidegate.server.app")
    assert not loaded & {"sqlalchemy", "tidegate.sql", "tidegate.processor", "tidegate.client"}
    # Consumer groups that official processors keep in the service are shown without one.
    assert "sqlalchemy" not in _loaded_by("import tidegate.console.consumers.groups")


@pytest.mark.slow
def test_a_name_loads_its_own_package_and_not_those_above_it() -> None:
    """A producer's program imports neither the processor nor SQL nor Spark."""
    packages = {
        name.split(".")[1] for name in _loaded_by("from tidegate import EventHubProducer") if "." in name
    }
    assert "client" in packages
    assert packages.isdisjoint({"processor", "sql", "spark", "server", "broker"})


@pytest.mark.slow
def test_reading_with_spark_does_not_load_sqlalchemy() -> None:
    """Spark starts half a dozen Pythons per query: SQL's modules would double what they need to start."""
    loaded = _loaded_by("import tidegate.spark.source.reader")
    assert "pyarrow" in loaded
    assert "sqlalchemy" not in loaded


@pytest.mark.parametrize("package", ["tidegate", *(f"tidegate.{name}" for name in PACKAGES)])
def test_each_name_is_the_one_of_its_module(package: str) -> None:
    """The same object, a documented one, under both of its addresses, once; ``dir`` has it."""
    module = importlib.import_module(package)
    homes = _homes(module)
    assert list(homes) == module.__all__
    for name, home in homes.items():
        exported = getattr(module, name)
        assert exported is getattr(importlib.import_module(home), name)
        assert inspect.getdoc(exported) or not isinstance(exported, type)  # an alias has none of its own
        assert name in dir(module)


@pytest.mark.parametrize("package", ["tidegate", *(f"tidegate.{name}" for name in PACKAGES)])
def test_type_checkers_and_the_interpreter_see_the_same_names(package: str) -> None:
    """Each import is under its own name again (PEP 484), and there is no other block of imports."""
    tree = ast.parse(inspect.getsource(importlib.import_module(package)))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        assert [alias.asname for alias in statement.names] == [alias.name for alias in statement.names]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """``hasattr`` and ``from tidegate import …`` behave as with any module."""
    assert not hasattr(tidegate, "EventHubProducers")
    with pytest.raises(ImportError, match="EventHubProducers"):
        exec("from tidegate import EventHubProducers")
