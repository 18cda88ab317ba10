"""What the commands of ``tidegate demo`` share."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from tidegate.cli.render import Output, Record


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind like Ctrl-C, so that the children are ended."""

    def leave(signal_number: int, _: object) -> None:
        raise typer.Exit(128 + signal_number)

    earlier = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def print_table(output: Output, title: str, records: Sequence[Record]) -> None:
    """A titled table; nothing where there are no records."""
    if not records:
        return
    if not output.is_terminal:
        output.line(f"{title}:")
    output.records(records, columns=tuple(records[0]), title=title)
    if not output.is_terminal:
        output.line("")
