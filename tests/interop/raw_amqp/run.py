"""Runs cases, each on connections of its own, and says how each ended."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tests.interop.raw_amqp.peer import Given, Line
from tests.interop.suites.suite import Case, Outcome

Cases = Mapping[str, Callable[[Given], None]]


def run_cases(cases: Cases, given: Given, wanted: Sequence[str] = ()) -> Iterator[Case]:
    """Yield each case once it has ended. wanted: names; empty for all."""
    for name, run in cases.items():
        if wanted and name not in wanted:
            continue
        lines: list[Line] = []

        def connect(lines: list[Line] = lines) -> Line:
            lines.append(given.connect())
            return lines[-1]

        try:
            run(replace(given, connect=connect))
        except Exception as error:  # a case may fail in any way; the next one runs
            where = next(
                at for at in reversed(traceback.extract_tb(error.__traceback__)) if at.name != "equal"
            )
            told = f"{type(error).__name__}: {error} ({where.name}: {where.line})"
            yield Case(name, Outcome.FAILED, told[:1000])
        else:
            yield Case(name, Outcome.PASSED)
        finally:
            for line in lines:
                line.close()
