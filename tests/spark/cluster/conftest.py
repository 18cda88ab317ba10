"""The Python of executors that have what Tidegate needs, and not Tidegate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.spark_cluster import make_executor_python


@pytest.fixture(scope="session")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all packages but Tidegate."""
    folder = make_executor_python(tmp_path_factory.mktemp("executor-python"))
    return folder / f"python{sys.version_info.major}.{sys.version_info.minor}"
