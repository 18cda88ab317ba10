"""Handlers and pipelines as users write them, run over events."""
