"""The command line of an example: options, exit codes, signals, tables and JSON.

code    meaning
0       done, and every figure adds up
1       it failed
2       invalid usage
3       the service or the database could not be reached
4       a figure does not add up
128+N   ended by signal N (130: Ctrl-C; 141: the reader of its output went away)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.support.screen import Screen, visible
from examples.support.service import DATABASE_VARIABLE, tidegate_program
from tidegate import (
    BrokenError,
    DatabaseUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    TidegateError,
    UnauthorizedError,
)

_UNREACHABLE: Final = (BrokenError, DatabaseUnavailableError, OperationTimeoutError, UnauthorizedError)
_PIPE_WIDTH: Final = 1_000
"""Columns of a table that is not shown on a terminal: wide enough not to fold cells."""


class CheckFailedError(TidegateError):
    """A figure does not add up."""


def exit_code_of(error: TidegateError) -> int:
    """The exit code of an example that ends with ``error``."""
    if isinstance(error, CheckFailedError):
        return 4
    if isinstance(error, _UNREACHABLE):
        return 3
    return 2 if isinstance(error, InvalidArgumentError) else 1


def run_command(command: Callable[[], None]) -> NoReturn:
    """Run an example and exit: an error becomes one line on standard error and an exit code."""
    try:
        with _termination_unwinds():
            command()
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # The rest of the buffer cannot be written: keep the interpreter's last flush from failing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except TidegateError as error:
        sys.stderr.write(visible(f"Error: {error}\n"))
        sys.exit(exit_code_of(error))
    except OSError as error:
        sys.stderr.write(visible(f"Error: {error}\n"))
        sys.exit(1)
    sys.exit(0)


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind like Ctrl-C, so that child processes are stopped."""

    def leave(signal_number: int, _: object) -> None:
        sys.exit(128 + signal_number)

    earlier = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def check_installed(*packages: str) -> None:
    """Raise NotFoundError, with the command to install it, if a package cannot be imported."""
    for name in packages:
        try:
            found = find_spec(name)
        except (ModuleNotFoundError, ValueError):  # its parent package is missing, or it is blocked
            found = None
        if found is None:
            raise NotFoundError(
                f"This example needs the package {name}, which is not installed.",
                next_step='Run `make demo`, or, in the clone: pip install -e ".[service,spark,demos]"',
            )


class Report(Protocol):
    @property
    def failures(self) -> Sequence[str]:
        """The figures that do not add up, one sentence each; empty if all do."""
        ...


R = TypeVar("R", bound=Report)


def run_demo(
    given: argparse.Namespace,
    run: Callable[[Screen, Callable[[R], None]], R],
    *,
    summary: Callable[[R], Mapping[str, object]],
    print_report: Callable[[R], None],
) -> None:
    """Run a demo with the common options, and print its report while its service still runs.

    Raises CheckFailedError if figures do not add up, and what ``run`` raises.
    """

    def show(report: R) -> None:
        screen.close()
        if given.json:
            print_json(summary(report))
        else:
            print_report(report)
        if given.keep_serving:
            screen.note("The service keeps running over its data directory. Press Ctrl-C to stop it.")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()

    with Screen() as screen:
        failures = run(screen, show).failures
    if failures:
        raise CheckFailedError("The figures do not hold: " + "; ".join(failures) + ".")


# --- options ---


def at_least(
    minimum: float, *, is_whole: bool = True, maximum: float = float("inf")
) -> Callable[[str], float]:
    """The type of an option: a number from ``minimum`` to ``maximum``, inclusive."""

    def number(text: str) -> float:
        value = int(text) if is_whole else float(text)
        if not minimum <= value <= maximum:
            limits = f"{minimum:g} or more" if maximum == float("inf") else f"{minimum:g} to {maximum:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return value

    return number


def example_parser(
    module: str, *, description: str, examples: str, database_file: str
) -> argparse.ArgumentParser:
    """The parser of ``python -m MODULE``, with ``--data-dir``, ``--database``, ``--keep-serving``, and
    ``--table`` or ``--json``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where everything is stored, and where a second run continues; default: a new temporary "
        "directory",
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        default=os.environ.get(DATABASE_VARIABLE) or None,
        help=f"SQL database to write to; else {DATABASE_VARIABLE}, else SQLite, {database_file} in DIR",
    )
    parser.add_argument(
        "--keep-serving",
        action="store_true",
        help="keep service and console running at the end, until Ctrl-C",
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--table", action="store_true", help="tables (the default; plain text when piped)")
    formats.add_argument("--json", action="store_true", help="one JSON object")
    return parser


# --- output ---


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object, on one line for programs (so that it is also the last line), indented for people."""
    option = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    print(orjson.dumps(value, option=option).decode())


def print_table(title: str, records: Sequence[Mapping[str, object]]) -> None:
    """A titled table with the columns of the first record; nothing without records."""
    if not records:
        return
    is_terminal = sys.stdout.isatty()
    table = Table(
        title=title if is_terminal else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if is_terminal else None,
        pad_edge=is_terminal,
        padding=(0, 1) if is_terminal else (0, 2, 0, 0),
    )
    for column in records[0]:
        is_number = all(type(record[column]) in (int, float, type(None)) for record in records)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for record in records:
        # Text: a value in square brackets is not markup.
        table.add_row(*(Text(_cell(value)) for value in record.values()))
    console = Console(file=sys.stdout, highlight=False, width=None if is_terminal else _PIPE_WIDTH)
    if not is_terminal:
        print(f"{title}:")
    console.print(table)
    if not is_terminal:
        print()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.1f}" if isinstance(value, float) else visible(str(value))


def shell_program() -> str:
    """The command ``tidegate`` as the starting shell would call it."""
    program = tidegate_program()
    return "tidegate" if shutil.which("tidegate") == program else shell_path(Path(program))


def shell_path(path: Path) -> str:
    """A path as a shell word, relative if it is within the current directory."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
