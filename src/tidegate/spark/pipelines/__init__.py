"""Pipelines as users start them: a handler or a declared file becomes one streaming query."""
