"""Exactly-once commits of micro-batches whose rows belong to no partition."""
