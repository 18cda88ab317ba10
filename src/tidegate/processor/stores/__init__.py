"""Stores of leases and checkpoints: in memory, in a directory, in Azure Blob Storage."""
