"""How a running query does: its batches, its lag, its metrics."""
