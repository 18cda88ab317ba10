"""``python -m tests.sql.conformance docs/reference`` runs test_conformance.py and writes its table.

The table in databases.md has a row for each feature, and a column for each database with its version. The
suite holds that all its features are there.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = "databases.md"
SUITE: Final = Path(__file__).with_name("test_conformance.py")
_START, _END = "<!-- conformance: begin -->\n", "<!-- conformance: end -->\n"
_NAMES: Final = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "mariadb": "MariaDB",
    "mssql": "SQL Server",
}
COMPILED: Final = (
    *("test_compare_and_set", "test_locks", "test_fencing", "test_bulk_insert"),
    *("test_names_that_differ_little", "test_upsert", "test_upsert_refuses", "test_lost_commit"),
    *("test_errors_of_data", "test_errors_of_others", "test_errors_of_savepoints"),
    *("test_errors_of_lost_connections", "test_savepoints", "test_temporary_tables", "test_snapshots"),
    *("test_time", "test_places", "test_reasons"),
)
"""What test_mssql.py runs with a stand-in for the driver and the server, which reads the statements."""
_VERSION: Final = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mariadb": "SELECT VERSION()",
    "mssql": "SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60))",
}


def features() -> dict[str, str]:
    """The suite's features by the names of their tests, in order."""
    found = ast.parse(SUITE.read_text(encoding="utf-8")).body
    tests = [each for each in found if isinstance(each, ast.FunctionDef) and each.args.args]
    tests = [each for each in tests if each.name.startswith("test_")]  # what takes no fixture is no feature
    return {test.name: (ast.get_docstring(test) or "").rstrip(".") for test in tests}


def table_of(page: str) -> str:
    """The table in the page's text."""
    return page.partition(_START)[2].partition(_END)[0]


class _Results:
    """A plugin of pytest that notes how each test ended on each database, and which version that was."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.outcomes: dict[tuple[str, str], set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
        report: pytest.TestReport = yield
        parameters = getattr(item, "callspec", None)
        for name in _NAMES:
            is_of = parameters is not None and name in parameters.params.values()
            if is_of and (report.when == "call" or report.outcome != "passed"):
                test = item.name.partition("[")[0]
                self.outcomes.setdefault((test, name), set()).add(report.outcome)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        database = getattr(item, "funcargs", {}).get("database")
        if database is not None and database.dialect.name not in self.versions:
            with database.read() as connection:
                version = connection.exec_driver_sql(_VERSION[database.dialect.name]).scalar_one()
            self.versions[database.dialect.name] = str(version).partition("-")[0].partition(" ")[0]
        return (yield)

    def table(self) -> str:
        """In Markdown."""
        heads = [f"{_NAMES[name]} {self.versions.get(name, '(not run)')}" for name in _NAMES]
        lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
        for test, feature in features().items():
            cells = [self._cell(test, name) for name in _NAMES]
            lines.append(f"| {feature} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def _cell(self, test: str, name: str) -> str:
        if name == "mssql" and name not in self.versions:
            return "compiled" if test in COMPILED else "not run"
        return _cell(self.outcomes.get((test, name), set()))


def _cell(outcomes: set[str]) -> str:
    if not outcomes:
        return "—"
    return "yes" if outcomes == {"passed"} else "**no**" if "failed" in outcomes else "not run"


def main(folder: Path) -> int:
    """See the module's text. Returns pytest's exit status."""
    results = _Results()
    os.chdir(SUITE.parents[2])
    status = pytest.main(
        ["-q", "-p", "no:cacheprovider", "-k", "not in_the_docs", str(SUITE)], plugins=[results]
    )
    page = folder / PAGE
    before, _, rest = page.read_text(encoding="utf-8").partition(_START)
    page.write_text(f"{before}{_START}{results.table()}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
