"""What the commands of ``tidegate demo`` share."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Protocol, TypeVar

import typer

from tidegate.cli.shell.exit_codes import CheckFailedError
from tidegate.cli.shell.render import Output, OutputFormat, Record


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


class Report(Protocol):
    """What every demo comes to."""

    @property
    def failures(self) -> Sequence[str]:
        """What does not hold; empty: every figure does."""
        ...


R = TypeVar("R", bound=Report)


def tell(
    output: Output, report: R, *, summary: Callable[[R], Record], draw: Callable[[Output, R], None]
) -> None:
    """Show a report as one JSON object or as tables."""
    if output.format is OutputFormat.JSON:
        output.record(summary(report))
    else:
        draw(output, report)


def check(report: Report) -> None:
    """Raise CheckFailedError where figures do not hold."""
    if report.failures:
        raise CheckFailedError("The figures do not hold: " + "; ".join(report.failures) + ".")


KeepServing = Annotated[
    bool,
    typer.Option("--keep-serving", help="Leave service and console up at the end, until Ctrl-C."),
]


def wait_for_interrupt(note: Callable[[str], None]) -> None:
    """Return on Ctrl-C."""
    note("The service is left up, with its data directory: look at it in the browser. Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def print_table(output: Output, title: str, records: Sequence[Record]) -> None:
    """A titled table; nothing where there are no records."""
    if not records:
        return
    if not output.is_terminal:
        output.line(f"{title}:")
    output.records(records, columns=tuple(records[0]), title=title)
    if not output.is_terminal:
        output.line("")
