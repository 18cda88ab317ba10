"""What the console sees of leases, checkpoints and dead letters."""

from __future__ import annotations

from typing import Protocol


class ProcessingView(Protocol):
    """Nothing yet."""
