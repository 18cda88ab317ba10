"""A program that has not been packaged, for what a cluster without Tidegate is told."""

from __future__ import annotations

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark import spark_session
from tidegate.spark.runtime.executors import check_executors
from tidegate.spark.runtime.session import refuse_sqlite_on_cluster

if __name__ == "__main__":
    spark = spark_session("refusals", are_executors_checked=False)
    try:
        check_executors(spark)
    except InvalidArgumentError as error:
        print(f"executors: {error}")
    try:
        refuse_sqlite_on_cluster("sqlite:////tmp/readings.db")
    except InvalidArgumentError as error:
        print(f"database: {error}")
    spark.stop()
