"""Starts users' pipelines: a handler or a declaration becomes one streaming query."""
