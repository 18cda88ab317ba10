"""Databases of both kinds for the tests of the transactional core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sql.support import flights

from tidegate.sql import Database
from tidegate.testing.postgresql import PostgresqlServer, required_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """One PostgreSQL server for the whole run; skips loudly where it is not installed."""
    with required_postgresql() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/tidegate.db"


@pytest.fixture
def postgresql_url(postgresql: PostgresqlServer) -> str:
    """An empty schema in PostgreSQL: as good as a database, and made in no time."""
    return postgresql.create_schema()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database, once of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of each kind, with the table ``flights`` in it."""
    with Database.open(database_url) as database:
        database.ensure_table(flights)
        yield database
