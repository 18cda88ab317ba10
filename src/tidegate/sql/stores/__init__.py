"""Leases and checkpoints in a SQL database, for hosts of ours and of the official SDK."""
