"""How an example reports its progress: ``screen`` draws it, tests collect it."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Receives steps, progress within a step, and notes."""

    def step(self, title: str) -> None:
        """A new step begins; the previous one is done."""
        ...

    def progress(self, done: int, total: int) -> None:
        """The current step has done ``done`` of ``total`` events."""
        ...

    def note(self, text: str) -> None:
        """Something happened that users should know."""
        ...

    def figures(self, text: str) -> None:
        """The current state, replacing the last one."""
        ...
