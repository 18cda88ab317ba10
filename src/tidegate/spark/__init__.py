"""Spark over Event Hubs: the data source ``eventhubs``, and pipelines whose SQL effects happen exactly once.

The only package that imports pyspark.
"""

from __future__ import annotations

from tidegate.spark.errors import explain
from tidegate.spark.pipeline import Transformation, Trigger, run_pipeline, sink_options
from tidegate.spark.session import spark_session
from tidegate.spark.source import register

__all__ = [
    "spark_session",
    "register",
    "run_pipeline",
    "sink_options",
    "Transformation",
    "Trigger",
    "explain",
]
