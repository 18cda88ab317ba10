"""Databases of both kinds for the tests of the transactional core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sql.cutting_proxy import CuttingProxy
from tests.sql.support import flights
from tests.support.postgresql import PostgresqlServer

from tidegate.sql import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of each kind, with the table ``flights`` in it."""
    with Database.open(database_url) as database:
        database.ensure_table(flights)
        yield database


@pytest.fixture
def proxy(postgresql: PostgresqlServer) -> Iterator[CuttingProxy]:
    """A line to the run's PostgreSQL that can be cut around a COMMIT."""
    proxy = CuttingProxy(postgresql.port)
    yield proxy
    proxy.close()
