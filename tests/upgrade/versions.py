"""Earlier versions of Tidegate, out of this repository's history: their code runs beside today's.

``git archive`` gives a version's ``src``: a worktree would be registered in the repository, and stay there
after a killed run. A version runs in processes whose PYTHONPATH begins with its ``src``, with today's Python
and libraries, and without the compiled extension. So a baseline is a commit that runs with today's lock file.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest
from tests.support.absent import not_tested

from tidegate.testing.hub import HubProcess

ROOT: Final = Path(__file__).parents[2]
IS_WHOLE: Final = os.environ.get("TIDEGATE_UPGRADE") == "whole"
"""Whether every baseline and every kind of case runs (``make upgrade``), not the short selection."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A commit to upgrade from."""

    name: str
    commit: str
    has_accounts: bool
    """Whether its service keeps checkpoints of official processors."""


BASELINES: Final = (
    # The last one before tables of published events.
    Baseline("before-outbox", "d4fae5826425aca45ee1bc87f0f559b334a077a8", has_accounts=True),
    # The last one before hosts report to the service: what it keeps, today's version keeps alike.
    Baseline("before-reports", "252e71f9ea1583e379af96449b70bc3a2847ccb7", has_accounts=True),
    # The first one with the journal: the oldest with today's formats of log, control log (but for records of
    # several keys) and tables.
    Baseline("first-journal", "12d47444a2ca6c7e9d684fe8a3c2fe0516a4afe0", has_accounts=False),
)
CHOSEN: Final = BASELINES if IS_WHOLE else BASELINES[:1]


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the code that can be run."""

    name: str
    source: Path
    """The folder of the package ``tidegate``."""
    has_accounts: bool = True

    @property
    def environment(self) -> dict[str, str]:
        """What makes a Python process run this version's code, and this tree's tests."""
        return {"PYTHONPATH": os.pathsep.join((str(self.source), str(ROOT)))}

    def run(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """The outcome of ``python *words``."""
        return subprocess.run(
            [sys.executable, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
            env=os.environ | self.environment | environment,
        )


TODAY: Final = Version("today", ROOT / "src")


def check_out(baseline: Baseline, folder: Path) -> Version:
    """The baseline's code, below ``folder``; skips loudly where the history is not there."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", baseline.commit, "src"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        words = getattr(error, "stderr", b"").decode(errors="replace") or str(error)
        not_tested(
            f"Upgrades from {baseline.name} are not tested: the commit {baseline.commit[:12]} is not here "
            f"({words.strip()}). Use a complete clone: git fetch --unshallow."
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    version = Version(baseline.name, folder / "src", baseline.has_accounts)
    found = version.run("-c", "import tidegate.model.errors as errors; print(errors.__file__)")
    assert found.stdout.startswith(str(version.source)), found
    return version


class ServiceProcess(HubProcess):
    """A service that is of another version at each start."""

    def __init__(self, versions: Iterable[Version], data_dir: Path | None = None) -> None:
        """versions: in turn, again and again."""
        super().__init__(data_dir, is_http_used=True)
        self._versions = itertools.cycle(versions)
        self.version: Version | None = None
        """The one that was started last."""

    def start(self) -> Self:
        """See ``HubProcess``."""
        self.version = next(self._versions)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.version.environment.items():
                patch.setenv(name, value)
            return super().start()
