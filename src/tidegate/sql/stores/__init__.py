"""Leases and checkpoints in a SQL database, for our hosts and the official SDK's."""
