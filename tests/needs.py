"""What a test uses beyond Python and a folder: markers, set from its fixtures and folder, held while it runs.

`make quick` leaves out every test with one of these markers, so a missing marker costs everybody minutes.
Hence a test that starts a JVM, PostgreSQL, MariaDB, Chromium or Azurite, or that connects with an official
SDK, fails unless it carries a marker. One that has any is left out already and is not watched. What child
processes start is held for Spark alone, by an environment in which pyspark does not find its home.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePath
from types import FrameType
from typing import Final

import pytest

MARKERS: Final = frozenset(
    {"spark", "postgresql", "mariadb", "browser", "azurite", "sdk", "faults", "programs", "slow"}
)
"""Those that `make quick` leaves out; pyproject.toml says what each means."""

_OF_FIXTURE: Final = {
    "azurite": "azurite",
    "chromium": "browser",
    "javascript": "sdk",
    "mariadb": "mariadb",
    "postgresql": "postgresql",
    "spark": "spark",
    "spark_cluster": "spark",
}
_OF_FOLDER: Final = {
    "tests/interop": "sdk",
    "tests/processor/faults": "faults",
    "tests/spark/faults": "faults",
    "tests/upgrade": "faults",
}
_SLOW_OF_THE_KIT: Final = {
    "test_a_hosts_name_has_one_live_instance",
    "test_a_lease_runs_out_by_the_stores_clock",
    "test_a_random_walk_agrees_with_the_model",
    "test_an_offer_counts_from_the_release",
}
"""Tests of tidegate.testing, which has no markers of ours, that wait for leases to run out, or take long."""
_OF_PROGRAM: Final = {
    "chromium": {"browser"},
    "go": {"sdk"},
    "initdb": {"postgresql"},
    "java": {"spark", "sdk"},
    "mariadb-install-db": {"mariadb"},
    "mariadbd": {"mariadb"},
    "mvn": {"sdk"},
    "postgres": {"postgresql"},
    "spark-submit": {"spark"},
}
"""Markers of which a test needs one to start the program."""
_SDK_PATHS: Final = ("/site-packages/azure/eventhub/_pyamqp/", "/site-packages/azure/servicebus/")
_ROOT: Final = Path(__file__).parents[1]


def add_markers(item: pytest.Item) -> None:
    """Mark what the item's fixtures, its parameters that name a server, its folder and its name say."""
    wanted = {_OF_FIXTURE[name] for name in getattr(item, "fixturenames", ()) if name in _OF_FIXTURE}
    parameters = getattr(item, "callspec", None)
    if parameters is not None:
        wanted |= {
            server for server in ("postgresql", "mariadb", "azurite") if server in parameters.params.values()
        }
    wanted |= _markers_of_folder(item.path.parent)
    if getattr(item, "originalname", "") in _SLOW_OF_THE_KIT:
        wanted.add("slow")
    for name in sorted(wanted):
        item.add_marker(name)


@cache
def _markers_of_folder(path: Path) -> frozenset[str]:
    folder = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else ""
    return frozenset(marker for place, marker in _OF_FOLDER.items() if f"{folder}/".startswith(f"{place}/"))


PRODUCT: Final = [pytest.mark.programs, pytest.mark.repeats]
"""Of parameters that combine what other tests have in pairs: neither `make test` nor CI has them."""
MORE_SEEDS: Final = [pytest.mark.faults, pytest.mark.repeats]
"""Of seeds beyond the first, which `make test` has."""


def some_have(argument: str, chosen: Sequence[str], others: Sequence[str]) -> pytest.MarkDecorator:
    """Of a fixture's values, `make test` has the chosen ones, as tests beside this one have the others."""
    values = [*chosen, *(pytest.param(other, marks=PRODUCT) for other in others)]
    return pytest.mark.parametrize(argument, values, indirect=True)


def ci_has(argument: str, chosen: str, *others: str) -> pytest.MarkDecorator:
    """Of a fixture's values, CI has the chosen one alone; for tests of ``faults`` or ``programs``."""
    values = [chosen, *(pytest.param(other, marks=pytest.mark.repeats) for other in others)]
    return pytest.mark.parametrize(argument, values, indirect=True)


def markers_of(item: pytest.Item) -> frozenset[str]:
    """Those of MARKERS that the item carries."""
    return frozenset(marker.name for marker in item.iter_markers() if marker.name in MARKERS)


def missing_marker(markers: frozenset[str], program: str, arguments: Iterable[str]) -> str | None:
    """The marker that a test lacks to start a program; None: nothing is missing."""
    name, line = PurePath(program).name, " ".join(arguments)
    wanted = _OF_PROGRAM.get(name, set())
    if name == "java" and "-version" in line:
        return None  # which Java there is
    if name == "node":
        wanted = {"azurite" if "azurite" in line else "browser" if "playwright" in line else "sdk"}
    if not wanted or wanted & markers:
        return None
    return min(wanted)


class Guard:
    """Refuses what the running test has no marker for."""

    def __init__(self) -> None:
        self._markers: frozenset[str] | None = None
        self._refused: list[str] = []

    def install(self) -> None:
        """See every program that is started and every connection made; an audit hook stays for good."""
        sys.addaudithook(self._audit)

    @contextmanager
    def running(self, markers: frozenset[str]) -> Iterator[None]:
        """Watch a test without markers, and fail it where something was refused and swallowed."""
        if markers:
            yield
            return
        home = os.environ.get("SPARK_HOME")
        os.environ["SPARK_HOME"] = "/this test has no marker spark"
        self._markers, self._refused = markers, []
        try:
            yield
        finally:
            self._markers = None
            os.environ.pop("SPARK_HOME", None)
            if home is not None:
                os.environ["SPARK_HOME"] = home
        if self._refused:
            pytest.fail("; ".join(self._refused), pytrace=False)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        markers = self._markers
        if markers is None:
            return
        if event == "subprocess.Popen":
            words = arguments[1]
            line = [str(word) for word in words] if isinstance(words, list | tuple) else [str(words)]
            missing = missing_marker(markers, str(arguments[0] or line[0]), line)
            if missing is not None:
                self._refuse(f"starts {line[0]}", missing)
        elif event == "socket.connect" and "sdk" not in markers and _is_called_by_sdk(sys._getframe(1)):
            self._refuse("connects with an official SDK", "sdk")

    def _refuse(self, act: str, marker: str) -> None:
        self._refused.append(f"a test without the marker {marker} {act}")
        raise RuntimeError(self._refused[-1])


def _is_called_by_sdk(frame: FrameType | None) -> bool:
    while frame is not None:
        if any(path in frame.f_code.co_filename for path in _SDK_PATHS):
            return True
        frame = frame.f_back
    return False
