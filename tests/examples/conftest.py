"""The Spark session and the databases of the demos' tests are those of the tests of Spark."""

from __future__ import annotations

from tests.spark.conftest import postgresql, spark, sqlite_url

__all__ = ["postgresql", "spark", "sqlite_url"]
