"""Checkpoints of official processors: containers and small blobs in the shape of Azure Blob Storage, kept in
the control log. Not HTTP, and no other kind of blob, of storage or of account.
"""
