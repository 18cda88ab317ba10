"""Commands that run and watch pipelines on Spark."""
