"""Prints the part of ``requirements.lock`` that some extras need: ``make demo`` installs no more.

    python -m tools.lock service,spark,demos > build/demo.txt

Pins and hashes are those of the lock file, so there is one list of versions. Uses the standard library only:
it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parent.parent
PROJECT: Final = "tidegate"
_EDITABLE: Final = ("editables",)
"""What hatchling asks for to install a clone."""

ENTRY: Final = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<rest>[^\n]*\n(?:[ ][^\n]*\n?)*)", re.MULTILINE
)
_VIA: Final = re.compile(r"^ +# +(?:via +)?(?P<name>[\w.-]+)(?: \((?P<place>[^)]+)\))?$", re.MULTILINE)
_REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^\]]*)\])?")


def asked_by(lock: str) -> dict[str, set[str]]:
    """Package → what requires it, by the lock file's comments; for a dependency group ``PROJECT:GROUP``."""
    found: dict[str, set[str]] = {}
    for entry in ENTRY.finditer(lock):
        found.setdefault(entry["name"], set()).update(
            via["name"] + "".join((via["place"] or "").partition(":")[1:])
            for via in _VIA.finditer(entry["rest"])
        )
    return found


def closure(asked: Mapping[str, set[str]], roots: Iterable[str]) -> set[str]:
    """``roots``, what they require, and so on."""
    found = set(roots)
    while grown := {name for name, askers in asked.items() if askers & found} - found:
        found |= grown
    return found


def part_of(lock: str, project: Mapping[str, Any], extras: Iterable[str]) -> str:
    """The entries of the lock file that a clone with these extras needs, and building it."""
    roots = {*_names(project, ["", *extras]), *_build_names(project), *_EDITABLE}
    names = closure(asked_by(lock), roots)
    return "".join(entry.group() for entry in ENTRY.finditer(lock) if entry["name"] in names)


def _names(project: Mapping[str, Any], extras: Iterable[str]) -> Iterator[str]:
    """The packages that extras declare; "" is the base."""
    declared = {"": project["project"]["dependencies"], **project["project"]["optional-dependencies"]}
    for extra in extras:
        for requirement in map(_REQUIREMENT.match, declared[extra]):
            assert requirement is not None
            if requirement["name"] == PROJECT:
                yield from _names(project, requirement["extras"].split(","))
            else:
                yield _normal(requirement["name"])


def _build_names(project: Mapping[str, Any]) -> Iterator[str]:
    for requirement in map(_REQUIREMENT.match, project["build-system"]["requires"]):
        assert requirement is not None
        yield _normal(requirement["name"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(extras: str) -> None:
    """Print the part for extras that are separated by commas."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lock = (_ROOT / "requirements.lock").read_text(encoding="utf-8")
    print(part_of(lock, project, extras.split(",")), end="")


if __name__ == "__main__":
    main(sys.argv[1])
