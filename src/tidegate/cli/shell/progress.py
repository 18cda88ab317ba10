"""Progress on standard error: a bar on a terminal, nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol


class ProgressBar(Protocol):
    """Shows how far something is."""

    def update(self, done: int) -> None:
        """``done`` of the total are done."""
        ...


class _NoBar:
    def update(self, done: int) -> None:
        """Nobody watches."""


NO_BAR: Final[ProgressBar] = _NoBar()
"""For what has no total, or nobody who watches."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[ProgressBar]:
    """A bar that counts up to ``total`` and shows rate and remaining time; it vanishes at the end."""
    if not sys.stderr.isatty():
        yield NO_BAR
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        class RichBar:
            def update(self, done: int) -> None:
                progress.update(task, completed=done)

        yield RichBar()
