"""Progress on standard error: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

ProgressBar: TypeAlias = Callable[[int], None]
"""Called with how many of the total are done."""


def no_bar(done: int) -> None:
    """Shows nothing: there is no total, or no terminal."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[ProgressBar]:
    """A bar that counts up to ``total`` and shows the remaining time; it disappears at the end."""
    if not sys.stderr.isatty():
        yield no_bar
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)
