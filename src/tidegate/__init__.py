"""Tidegate: a self-hosted Event Hubs for Python, and exactly-once Spark pipelines on top of it."""

__version__ = "0.1.0"
