"""Each version of PySpark that Tidegate runs on, with and without Spark Connect: ``make spark-matrix``."""
