"""A seed for each fault test, and a database of each kind."""

from __future__ import annotations

import pytest
from tests.processor.faults.surroundings import chosen_seed
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer


@pytest.fixture
def seed() -> int:
    """Printed, and taken from TIDEGATE_SEED where that is set."""
    return chosen_seed()


@pytest.fixture
def postgresql_url(postgresql: PostgresqlServer) -> str:
    """An empty database."""
    return postgresql.create_database()


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    """An empty database on a server of each kind."""
    server: PostgresqlServer | MariadbServer = request.getfixturevalue(request.param)
    return server.create_database()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """What ``surroundings`` takes: None for SQLite, else the server's URL."""
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
