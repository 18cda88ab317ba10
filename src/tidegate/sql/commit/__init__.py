"""A partition's batches as transactions: rows, dead letters and the checkpoint together."""
