"""A running query's progress: its batches, lag and metrics."""
