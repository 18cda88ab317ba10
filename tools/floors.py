"""Compares locked and declared versions with the floors of ``floors.toml``.

Does no I/O. ``make check`` runs it through tests/test_dependencies.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parent.parent
FLOORS_FILE: Final = ROOT / "tools" / "floors.toml"
LOCK_FILE: Final = ROOT / "requirements.lock"
PROJECT_FILE: Final = ROOT / "pyproject.toml"

_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[\w.!+-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest version of a package that may be locked or declared."""

    package: str
    version: Version
    advisory: str
    """Known vulnerabilities of lower versions: CVE and GHSA numbers."""
    reason: str
    """What an attacker could do with a lower version."""


@dataclass(frozen=True, slots=True)
class Project:
    """The declarations in pyproject.toml."""

    required: tuple[Requirement, ...]
    """Dependencies of an installation, with all extras."""
    extras: dict[str, tuple[Requirement, ...]]
    """Those of each extra, with what the extras that it names have; the base's are under ``""``."""
    development: tuple[Requirement, ...]


def read_floors(text: str) -> list[Floor]:
    """The floors of a file like ``floors.toml``. Raises KeyError if a field is missing."""
    return [
        Floor(canonicalize_name(row["package"]), Version(row["version"]), row["advisory"], row["reason"])
        for row in tomllib.loads(text)["floor"]
    ]


def read_project(text: str) -> Project:
    """The requirements in the contents of a pyproject.toml."""
    table = tomllib.loads(text)
    project, development = table["project"], table["dependency-groups"]["dev"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}

    def of(extra: str) -> Iterator[Requirement]:
        for requirement in map(Requirement, declared[extra]):
            if requirement.name == project.get("name"):
                for other in sorted(requirement.extras):
                    yield from of(other)
            else:
                yield requirement

    extras = {extra: tuple(of(extra)) for extra in declared}
    required = dict.fromkeys(requirement for extra in extras.values() for requirement in extra)
    return Project(tuple(required), extras, tuple(map(Requirement, development)))


def read_lock(text: str) -> dict[str, set[Version]]:
    """The versions of each package in a lock file; several if they depend on the Python version."""
    versions: dict[str, set[Version]] = {}
    for pin in _PIN.finditer(text):
        versions.setdefault(canonicalize_name(pin["name"]), set()).add(Version(pin["version"]))
    return versions


def floor_violations(floors: Iterable[Floor], lock: dict[str, set[Version]], project: Project) -> list[str]:
    """A sentence for each place where a lower version could be installed, and for each unused floor."""
    found: list[str] = []
    for floor in floors:
        if floor.package not in lock:
            found.append(f"{floor.package} has a floor and is not in the lock file: remove the floor.")
        found += [
            f"{floor.package} is locked at {version}, below {floor.version}: {floor.advisory}."
            for version in sorted(lock.get(floor.package, ()))
            if version < floor.version
        ]
        for requirement in (*project.required, *project.development):
            if canonicalize_name(requirement.name) == floor.package:
                lowest = lowest_of(requirement)
                if lowest is None or lowest < floor.version:
                    found.append(f"{requirement} is declared without >={floor.version}: {floor.advisory}.")
    return found


def lock_violations(lock: dict[str, set[Version]], project: Project) -> list[str]:
    """A sentence for each declared requirement that the lock file does not satisfy."""
    return [
        f"{requirement} is declared; the lock file has {', '.join(map(str, sorted(versions))) or 'none'}."
        for requirement in (*project.required, *project.development)
        if not (versions := lock.get(canonicalize_name(requirement.name), set()))
        or not all(requirement.specifier.contains(version) for version in versions)
    ]


def lowest_of(requirement: Requirement) -> Version | None:
    """The lowest version that a requirement allows, None if any."""
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    return max(bounds, default=None)
