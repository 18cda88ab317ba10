"""Fixtures for tests that need the real service, Azure Blob Storage or a database."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from tests.needs import Guard, add_markers, markers_of
from tests.support.forked import Forked, fork_services
from tests.support.quick_spark import use_quick_spark
from tests.support.sqlserver import SQL_SERVERS
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.sql.used_databases import UsedDatabases
    from tests.support.azurite import AzuriteServer
    from tests.support.blob_storage import BlobStorage
    from tests.support.mariadb import MariadbServer
    from tests.support.postgresql import PostgresqlServer
    from xdist.remote import Producer

    from tidegate.testing.hub import HubService

_guard = Guard()
_SPARK: Final = "tests/spark/"
"""Where all tests with the session ``spark`` are."""

# Where this is set, every process compiles all that it imports: 12 s of CPU in each of pytest's, and
# 0.2 s in each of the hundreds that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test depends on the speed of a machine.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def hub_service(guesses_are_free: None) -> Iterator[HubService]:
    """One real service for the whole run: AMQP and HTTP, plain and TLS, its log in a temporary place."""
    # Imported here, so that the tests of pure packages do not load the whole service.
    from tidegate.testing.hub import HubService

    with HubService(is_tls_used=True, is_http_used=True) as service:
        yield service


@pytest.fixture
def event_hub(hub_service: HubService) -> str:
    """The name of a fresh event hub with two partitions."""
    return hub_service.create_hub(partition_count=2)


@pytest.fixture(scope="session")
def guesses_are_free() -> Iterator[None]:
    """Wrong keys are answered at once from then on: for tests that ask with many of them."""
    from tidegate.broker import attempts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "FREE_FAILURES", 10**9)
        yield


@pytest.fixture
def forked_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python programs that the test starts are forked from a process that has imported what they need."""
    monkeypatch.setattr(subprocess, "Popen", Forked)


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzuriteServer]:
    """One Azure Blob Storage for the whole run; skips loudly where Azurite is not installed."""
    from tests.support.azurite import required_azurite

    with required_azurite(Path(__file__).parent / "azurite") as server:
        yield server


@pytest.fixture(params=["tidegate", "azurite"])
def blob_storage(request: pytest.FixtureRequest) -> BlobStorage:
    """Azure Blob Storage: the service's own accounts, then Azurite."""
    from tests.support.blob_storage import OwnStorage

    if request.param == "tidegate":
        return OwnStorage(request.getfixturevalue("hub_service"))
    storage: BlobStorage = request.getfixturevalue("azurite")
    return storage


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """One PostgreSQL server for the whole run; skips loudly where it is not installed."""
    from tests.support.postgresql import required_postgresql

    with required_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """One MariaDB server for the whole run; skips loudly where it is not installed."""
    from tests.support.mariadb import required_mariadb

    with required_mariadb() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/tidegate.db"


@pytest.fixture
def postgresql_url(postgresql: PostgresqlServer) -> str:
    """An empty schema in PostgreSQL: as good as a database, and made in no time."""
    return postgresql.create_schema()


@pytest.fixture
def mariadb_url(mariadb: MariadbServer) -> str:
    """An empty database in MariaDB."""
    return mariadb.create_database()


@pytest.fixture
def mssql_url() -> Iterator[str]:
    """An empty database on the SQL Server of TIDEGATE_SQLSERVER_URL."""
    from tests.support.sqlserver import created_database

    with created_database() as url:
        yield url


@pytest.fixture(scope="session")
def used_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsedDatabases]:
    """Databases that tests hand on to each other."""
    from tests.sql.used_databases import UsedDatabases

    used = UsedDatabases(tmp_path_factory.mktemp("used"))
    yield used
    used.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", *SQL_SERVERS])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database, once of each kind; for a test with ``used_databases``, one of those."""
    kind: str = request.param
    used: UsedDatabases | None = None
    if "used_databases" in request.fixturenames:
        used = request.getfixturevalue("used_databases")
    if used is not None and kind in ("postgresql", "mariadb"):
        with used.lent(request.getfixturevalue(kind)) as url:
            yield url
        return
    url = request.getfixturevalue(f"{kind}_url")
    if used is not None and kind == "sqlite":
        used.copy_sqlite(url)
    yield url


def pytest_configure() -> None:
    """Hold tests to their markers, let Spark start quickly, and undo an ignored SIGINT, which a run in the
    background inherits: the commands tested here would, too.
    """
    use_quick_spark()
    gc.disable()  # until all is imported and collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _guard.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what tests use, and put the files that use most first: the run must not end up waiting for one.

    What is merely slow is a second or so, and keeps the processors busy while others wait.
    """
    for item in items:
        add_markers(item)
    heavy_files = {item.path for item in items if markers_of(item) - {"slow"}}
    items.sort(key=lambda item: (_SPARK not in item.nodeid, item.path not in heavy_files))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesOfFewSparks | None:
    """Give each of many processes whole files; of few, each has its Java anyway."""
    return FilesOfFewSparks(config, log) if config.option.numprocesses > 2 else None


class FilesOfFewSparks(LoadFileScheduling):  # type: ignore[misc]
    """Files stay whole, and those of Spark go to few processes: a Java that begins costs 25 s of a core."""

    _SPARKS: Final = 2

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._spark_files: list[str] = []

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if not file.startswith(_SPARK):
            return file
        if file not in self._spark_files:
            self._spark_files.append(file)
        return f"Spark {self._spark_files.index(file) % self._SPARKS}"


def pytest_collection_finish() -> None:
    """Services start quickly; collections of garbage pass over imports: a fifth of the CPU of small tests."""
    fork_services()
    gc.freeze()  # without a collection: two seconds in each process, for some megabytes
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Fixtures start what the test has markers for."""
    with _guard.running(markers_of(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """So does the test."""
    with _guard.running(markers_of(item)):
        return (yield)
