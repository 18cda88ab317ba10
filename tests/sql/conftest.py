"""Databases of each kind for the tests of the transactional core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sql.cutting_proxy import CuttingProxy
from tests.sql.used_databases import UsedDatabases
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer

from tidegate.sql import Database


@pytest.fixture
def database(database_url: str, used_databases: UsedDatabases) -> Iterator[Database]:
    """An open database of each kind, with the table ``flights`` in it."""
    with used_databases.opened(database_url) as database:
        yield database


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> PostgresqlServer | MariadbServer:
    """The run's server, once of each kind."""
    server: PostgresqlServer | MariadbServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def server_url(server: PostgresqlServer | MariadbServer) -> str:
    """An empty database of it."""
    return server.create_schema()


@pytest.fixture
def proxy(server: PostgresqlServer | MariadbServer) -> Iterator[CuttingProxy]:
    """A line to the server that can be cut around a COMMIT."""
    proxy = CuttingProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def proxied_url(server: PostgresqlServer | MariadbServer, server_url: str, proxy: CuttingProxy) -> str:
    """An empty database behind the proxy."""
    return server_url.replace(f":{server.port}/", f":{proxy.port}/")
