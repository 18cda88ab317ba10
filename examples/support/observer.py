"""How an example tells what it is doing: ``screen`` draws it, tests collect it."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Is told about steps, progress within a step, and things worth a sentence."""

    def step(self, title: str) -> None:
        """A new step begins; the one before it is done."""
        ...

    def progress(self, done: int, total: int) -> None:
        """The current step has done ``done`` of ``total`` events."""
        ...

    def note(self, text: str) -> None:
        """Something happened that people want to know."""
        ...

    def figures(self, text: str) -> None:
        """How things stand now, in place of what was told before."""
        ...
