"""Listeners that are called after each change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

_logger: Final = logging.getLogger(__name__)


class Listeners:
    """Callables, called in the order in which they were added."""

    def __init__(self, subject: str) -> None:
        """subject: what changes, for log lines."""
        self._subject = subject
        self._listeners: dict[object, Callable[[], None]] = {}

    def add(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Add a listener; returns a function that removes it, and may be called twice."""
        key = object()
        self._listeners[key] = listener
        return partial(self._remove, key)

    def call(self) -> None:
        """Call all of them; if one fails, the others are still called and the change stands."""
        for listener in list(self._listeners.values()):
            try:
                listener()
            except Exception:  # another listener may revoke access
                _logger.exception("A listener for changes of %s failed.", self._subject)

    def _remove(self, key: object) -> None:
        self._listeners.pop(key, None)
