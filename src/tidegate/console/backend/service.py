"""What the console sees of the namespace, and does to it. Implemented by ``server.console.service``."""

from __future__ import annotations

from typing import Protocol


class ServiceView(Protocol):
    """Nothing yet."""
