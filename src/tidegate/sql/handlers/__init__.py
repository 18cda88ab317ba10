"""Handlers and pipelines as users write them, and running them over events."""
