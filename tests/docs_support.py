"""The pages of the repository, and the programs in them, for the tests that hold pages to the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tidegate.testing.hub import HubService

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def write_programs(directory: Path) -> Path:
    """Write every Python example of all pages into ``directory``, named by its first line; returns that."""
    names: set[str] = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, program in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, flags=re.DOTALL):
            assert name not in names, f"two examples are called {name}"
            names.add(name)
            (directory / name).write_text(program, encoding="utf-8")
    return directory


def build_site(configuration: Path, directory: Path) -> None:
    """Build the site that a ``mkdocs.yml`` describes, as ``make site`` does. Raises CalledProcessError."""
    words = ["build", "--strict", "--config-file", str(configuration), "-d", str(directory)]
    subprocess.run(
        [sys.executable, "-m", "mkdocs", *words],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
        capture_output=True,
        timeout=120,
    )


def environment_of(service: HubService) -> dict[str, str]:
    """The environment in which the pages' programs and commands find the service."""
    return os.environ | {"TIDEGATE_CONNECTION_STRING": service.connection_string, "PYTHONUNBUFFERED": "1"}
