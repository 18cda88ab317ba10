"""Run official and generic clients against a service of our own; exit code 1 where a case fails.

    make interop                                        every suite, over every transport it has
    make interop ARGS="--only java-5 --transport tls"   a part; both are repeatable
    make interop ARGS="--only go --case receive"        cases by name, while you work on one
    make interop ARGS=--write                           renew docs/reference/interop.json and its table

What a suite needs is fetched from its registry into build/interop, pinned by version and checksum. A suite
whose tools this machine lacks is named and left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from tests.compatibility import PAGE, page
from tests.interop.suites.catalog import all_suites
from tests.interop.suites.results import FILE, Result, as_json, result_of, write_results
from tests.interop.suites.service import SuiteService
from tests.interop.suites.suite import Case, Outcome, Suite, ToolMissingError, Transport

_progress = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        prog="make interop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    suites = all_suites()
    parser.add_argument("--list", action="store_true", help="name the suites, and end")
    parser.add_argument("--only", action="append", choices=list(suites), metavar="NAME", help="repeatable")
    parser.add_argument("--transport", action="append", choices=[each.value for each in Transport])
    parser.add_argument(
        "--own-storage", action="store_true", help="checkpoints in the service, not in Azurite"
    )
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="repeatable")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--write", action="store_true", help=f"put the results into {FILE.name} and {PAGE}")
    arguments = parser.parse_args()
    if arguments.write and arguments.case:
        parser.error("--write with --case would write the counts of a part.")
    if arguments.list:
        for suite in suites.values():
            over = ", ".join(transport.value for transport in suite.transports)
            print(f"{suite.name:<24}{suite.sdk} {suite.version}, over {over}")
        return 0
    transports = [Transport(value) for value in arguments.transport or [each.value for each in Transport]]
    chosen = [suite for suite in suites.values() if not arguments.only or suite.name in arguments.only]
    results, is_complete = [], True
    for suite in chosen:
        try:
            for result in _run(suite, transports, arguments.case, arguments.own_storage):
                results.append(result)
                if arguments.write:
                    write_results([result])
        except ToolMissingError as error:
            is_complete = False
            _progress.print(f"{suite.name}: NOT RUN: {error}")
    if arguments.write:
        (FILE.parent / PAGE).write_text(page(), encoding="utf-8")
    if arguments.json:
        print(as_json(results), end="")
    return int(not is_complete or any(result.failed for result in results))


def _run(
    suite: Suite, transports: Sequence[Transport], cases: Sequence[str], has_own_storage: bool
) -> Iterator[Result]:
    """A fresh service for each transport, so that no run sees what an earlier one left."""
    suite.prepare()
    for transport in suite.transports:
        if transport not in transports:
            continue
        _progress.print(f"{suite.name} over {transport.value} …")
        started = time.monotonic()
        with SuiteService(has_own_storage=has_own_storage) as service:
            result = result_of(suite, transport, map(_say, suite.run(service, transport, cases)))
        _progress.print(
            f"  {result.passed} passed, {len(result.failed)} failed, {len(result.skipped)} skipped "
            f"in {time.monotonic() - started:.0f} s"
        )
        yield result


def _say(case: Case) -> Case:
    if case.outcome is not Outcome.PASSED:
        _progress.print(f"  {case.outcome.value}: {case.name}: {case.detail}")
    return case


if __name__ == "__main__":
    sys.exit(main())
