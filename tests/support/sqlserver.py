"""The SQL Server of people who have one: ``TIDEGATE_SQLSERVER_URL=mssql://user:password@host:1433/master``.

With that variable, tests run on it as on the other databases. The user must be allowed to create some.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

VARIABLE: Final = "TIDEGATE_SQLSERVER_URL"
SQL_SERVERS: Final = ("mssql",) if os.environ.get(VARIABLE) else ()
"""For lists of databases: it is one, or none."""


@contextmanager
def created_database() -> Iterator[str]:
    """The URL of a new database as the docs say how to create one; dropped afterwards."""
    import sqlalchemy as sa  # the run starts without it

    from tidegate.sql.core.dialects.mssql import MssqlDialect

    url = MssqlDialect().checked(sa.make_url(os.environ[VARIABLE]))
    name = f"tidegate_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} COLLATE Latin1_General_100_BIN2_UTF8")
        for setting in ("READ_COMMITTED_SNAPSHOT", "ALLOW_SNAPSHOT_ISOLATION"):
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET {setting} ON")
        try:
            yield url.set(database=name, drivername="mssql").render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
            connection.exec_driver_sql(f"DROP DATABASE {name}")
