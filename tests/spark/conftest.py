"""One Spark for the whole run, a hub service and databases of both kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidegate.spark import register, spark_session
from tidegate.testing.postgresql import PostgresqlServer, required_postgresql
from tidegate.testing.spark_cluster import SparkCluster

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
def postgresql() -> Iterator[PostgresqlServer]:
    """One PostgreSQL server for the whole run; skips loudly where it is not installed."""
    with required_postgresql() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/tidegate.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database, once of each kind."""
    if request.param == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
        return url
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.create_schema()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone master and two workers for the whole run, with no package on their Python's path."""
    bare = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    path = os.pathsep.join((str(bare / "bin"), os.defpath))
    with SparkCluster(environment={"PATH": path, "HOME": str(bare)}) as cluster:
        yield cluster
