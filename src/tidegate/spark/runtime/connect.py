"""Spark Connect: sessions without a JVM in this process, whose server may be on another machine.

The server plans queries, runs tasks and calls ``foreachBatch`` functions, all in Python processes of its own.
So Tidegate must be installed there, and files and databases must be the same from there.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import PySparkException

_THIS_MACHINE: Final = frozenset(("localhost", "127.0.0.1", "::1", "[::1]"))


def is_connect(session: object) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def connect_session() -> Any | None:
    """This process's session of Spark Connect; None: it has none, or Spark itself runs here."""
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None or SparkContext._active_spark_context is not None:
        return None
    try:
        return module.SparkSession.active()
    except PySparkException:
        return None


def is_server_here(session: Any) -> bool:
    """Whether the server of a session is on this machine."""
    return session.client.host in _THIS_MACHINE
