"""Running the command that ``tidegate spark package`` prints, as a user would who pastes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.spark.conftest import QUICK_START
from tests.support.spark_cluster import SparkCluster

PROGRAMS: Final = Path(__file__).parent / "programs"

_SMALL: Final = {
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.ui.enabled": "false",
}
"""So that a cluster fits into a test; none of it is needed."""


def make_package(*words: str, output: Path, cluster: SparkCluster) -> str:
    """Run ``tidegate spark package``; the command that it says to use next."""
    made = subprocess.run(
        [
            *(sys.executable, "-m", "tidegate.cli", "spark", "package", *words),
            *("--output", str(output), "--master", cluster.master_url),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert Path(made.stdout.strip()).is_file()
    return made.stderr.rpartition("Next:\n")[2].strip()


def submit(
    command: str, directory: Path, environment: Mapping[str, str], **settings: str
) -> subprocess.Popen[bytes]:
    """Start a printed command with a shell, in a directory of its own and a session of its own.

    settings: Spark's, with ``__`` for dots. What it writes goes to ``submit.log`` in the directory.
    """
    all_settings = _SMALL | {name.replace("__", "."): value for name, value in settings.items()}
    options = " ".join(f"--conf '{name}={value}'" for name, value in all_settings.items())
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK_"))}
    with (directory / "submit.log").open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", command.replace("spark-submit", f"spark-submit {options}", 1)],
            cwd=directory,
            env={**own, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def log_of(directory: Path) -> str:
    """The end of what a submitted program and Spark wrote."""
    return (directory / "submit.log").read_text(errors="replace")[-6000:]
