"""One Spark for the whole run, a hub service and databases of both kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.spark_cluster import SparkCluster

from tidegate.spark import register, spark_session

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for seconds: 7.4 → 5.7 s from start to first batch."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores and retried tasks; its log is off, for failures here are on purpose."""
    session = spark_session(
        "tests",
        cores=2,
        configuration={"spark.driver.extraJavaOptions": "-Dtidegate.tests=here"},
        java_options=QUICK_START,
        log_level="OFF",
    )
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone master and two workers for the whole run, with no package on their Python's path."""
    bare = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    path = os.pathsep.join((str(bare / "bin"), os.defpath))
    with SparkCluster(environment={"PATH": path, "HOME": str(bare)}) as cluster:
        yield cluster
