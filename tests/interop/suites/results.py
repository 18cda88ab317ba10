"""What the suites found: docs/reference/interop.json, and the table that compatibility.md makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.interop.suites.suite import Case, Outcome, Suite, Transport

FILE: Final = Path(__file__).parents[3] / "docs" / "reference" / "interop.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One suite over one transport: a row of the table."""

    suite: str
    sdk: str
    version: str
    transport: str
    passed: int
    failed: Mapping[str, str] = field(default_factory=dict)
    """Case → why."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Case → why."""

    @property
    def key(self) -> tuple[str, str]:
        """What a newer result of the same suite replaces it by."""
        return self.suite, self.transport


def result_of(suite: Suite, transport: Transport, cases: Iterable[Case]) -> Result:
    """Count ``cases``."""
    cases = list(cases)

    def details(outcome: Outcome) -> dict[str, str]:
        return {case.name: case.detail for case in cases if case.outcome is outcome}

    passed = sum(case.outcome is Outcome.PASSED for case in cases)
    return Result(
        suite.name,
        suite.sdk,
        suite.version,
        transport.value,
        passed,
        details(Outcome.FAILED),
        details(Outcome.SKIPPED),
    )


def as_json(results: Sequence[Result]) -> str:
    """As the file holds them."""
    return json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False) + "\n"


def read_results() -> list[Result]:
    """Those of the file; none where there is no file."""
    return [Result(**values) for values in json.loads(FILE.read_text("utf-8"))] if FILE.exists() else []


def write_results(results: Sequence[Result]) -> None:
    """Put ``results`` into the file; those of other suites and transports stay."""
    merged = {result.key: result for result in [*read_results(), *results]}
    FILE.write_text(as_json([merged[key] for key in sorted(merged)]), "utf-8")


def table(results: Sequence[Result]) -> list[str]:
    """Lines of Markdown: the counts, then why cases failed or were skipped."""
    lines = [
        "| suite | package | version | over | passed | failed | skipped |",
        "|---|---|---|---|--:|--:|--:|",
    ]
    for result in results:
        counts = f"{result.passed} | {len(result.failed)} | {len(result.skipped)}"
        lines.append(f"| {result.suite} | {result.sdk} | {result.version} | {result.transport} | {counts} |")
    return (
        lines
        + _reasons("Failed", [result.failed for result in results], results)
        + _reasons("Skipped", [result.skipped for result in results], results)
    )


def _reasons(heading: str, details: Sequence[Mapping[str, str]], results: Sequence[Result]) -> list[str]:
    """A bullet for each suite's reason: it names the cases where they are few, else counts them."""
    named: dict[tuple[str, str], dict[str, None]] = {}
    for result, cases in zip(results, details, strict=True):
        for case, why in cases.items():
            named.setdefault((result.suite, why), {})[case] = None
    lines = []
    for (suite, why), found in named.items():
        which = ", ".join(f"`{case}`" for case in found) if len(found) <= 4 else f"{len(found)} cases"
        lines.append(f"- {suite}: {which}: {why}")
    return ["", f"{heading}:", "", *lines] if lines else []
