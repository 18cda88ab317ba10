"""``/pipelines``: Spark pipelines that report on this machine."""
