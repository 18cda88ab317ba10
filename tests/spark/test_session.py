"""The JVM of a local session gets every option that it was given, and ours."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from tests.spark.conftest import QUICK_START


def test_options_for_the_jvm_join_each_other(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._jvm
    assert gateway.java.lang.System.getProperty("tidegate.tests") == "here"
    assert gateway.java.lang.System.getProperty("tidegate.log.level") == "OFF"
    arguments = list(gateway.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(QUICK_START.split()) <= set(arguments)
