"""Encoded events as Arrow columns, for Spark's source and for readers of record batches. Needs numpy and
pyarrow."""
