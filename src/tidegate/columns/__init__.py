"""Encoded events as Arrow columns, for Spark's source and for readers of record batches, and what makes any
columns of a sender readable. Needs numpy and pyarrow."""
