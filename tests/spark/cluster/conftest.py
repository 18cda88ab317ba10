"""One standalone cluster for all cluster tests: its executors' Python has nothing but itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.testing.spark_cluster import SparkCluster, make_executor_python


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers, with no package on their Python's path."""
    bare = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    path = os.pathsep.join((str(bare / "bin"), os.defpath))
    with SparkCluster(environment={"PATH": path, "HOME": str(bare)}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all packages but Tidegate."""
    folder = make_executor_python(tmp_path_factory.mktemp("executor-python"))
    return folder / f"python{sys.version_info.major}.{sys.version_info.minor}"
