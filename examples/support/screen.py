"""What users see while an example runs: steps, a progress bar and notes, all on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

_FIGURES_EVERY_S = 5.0


def visible(text: str) -> str:
    """Text for a terminal. An error or a log may quote an event, which must not control the terminal: what is
    not printable is escaped, but for ends of lines and tabs."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


class Screen:
    """Draws bars on a terminal, and plain lines elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            console=self._console,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._title = ""
        self._step_started = 0.0
        self._first: tuple[float, int] | None = None
        self._figures_told = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        self._progress.stop()
        if isinstance(error, KeyboardInterrupt):
            self.note("Interrupted. Everything has stopped; with the same --data-dir the next run continues.")

    def close(self) -> None:
        """End the last step and stop drawing; harmless twice."""
        self._finish_step()
        self._progress.stop()

    def step(self, title: str) -> None:
        """A new step begins; the previous one is done."""
        self._finish_step()
        self._title = title
        self._step_started = time.monotonic()
        self._first = None
        self._task = self._progress.add_task(title, total=None, count="")
        if not self._console.is_terminal:
            self.note(f"{title} …")

    def progress(self, done: int, total: int) -> None:
        """The current step has done ``done`` of ``total`` events."""
        now = time.monotonic()
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
        since, before = self._first
        count = f"{done:,} of {total:,}"
        if done > before:
            count += f"  {(done - before) / (now - since):,.0f} events/s"
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, count=count)

    def figures(self, text: str) -> None:
        """The current state: a line that is updated or, if that is impossible, one every few seconds."""
        assert self._task is not None
        self._progress.update(self._task, count=text)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._figures_told > _FIGURES_EVERY_S:
            self._figures_told = now
            self.note(f"  {text}")

    def note(self, text: str) -> None:
        """Something happened that users should know."""
        self._console.print(visible(text), markup=False, soft_wrap=True)

    def _finish_step(self) -> None:
        if self._task is None:
            return
        self._progress.remove_task(self._task)
        self._task = None
        self.note(f"✓ {self._title} ({time.monotonic() - self._step_started:.1f} s)")
