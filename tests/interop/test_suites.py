"""What of `make interop` an ordinary run includes, and how the suites themselves behave."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.interop.suites import python_sdk, results
from tests.interop.suites.catalog import all_suites
from tests.interop.suites.programs import PROGRAM, run_program
from tests.interop.suites.results import Result, table
from tests.interop.suites.service import SuiteService
from tests.interop.suites.suite import Outcome, ToolMissingError, Transport
from tests.support.absent import not_tested

pytestmark = pytest.mark.azurite  # some suites start one of their own

SUBSET: dict[str, tuple[Transport, tuple[str, ...]]] = {
    "java-3": (Transport.TLS, ("send and receive", "unknown partition")),
    "java-5": (
        Transport.WEBSOCKET,
        (
            "buffered producer: 70 events with keys",
            "unknown partition",
            "through a proxy that asks for a password",
        ),
    ),
    "javascript-2": (Transport.TLS, ("send with a key to a partition", "an unknown partition is refused")),
    "javascript-5": (Transport.WEBSOCKET, ("a buffered producer", "through an HTTP proxy")),
    "proton": (Transport.PLAIN, ()),
    "rhea": (Transport.TLS, ()),
    "python-5.15": (
        Transport.TLS,
        tuple(
            f"azure_eventhub-5.15.1/tests/{test}[pyamqp]"
            for test in (
                "livetest/asynctests/test_send_async.py::test_send_over_websocket_async",
                "livetest/synctests/test_properties.py::test_get_properties",
                "livetest/synctests/test_send.py::test_send_over_websocket_sync",
            )
        ),
    ),
    "raw-amqp": (Transport.PLAIN, ()),
    "servicebus-0": (Transport.TLS, ()),
}
"""Suite → how an ordinary run has it, and which cases (none: all). All together take 90 s at most."""

_OF_CI = {"javascript-5", "raw-amqp", "rhea", "servicebus-0"}
"""The other SDKs have tests of their own in ``make test``; proton takes a minute to compile."""

_SKIPPED_WITHOUT_TOOLS = {"java-3", "java-5", "proton"}
"""They need a JDK and Maven, or a C compiler, which `.ci/run` does not install."""


@pytest.fixture(scope="module")
def service() -> Iterator[SuiteService]:
    """One service for all."""
    with SuiteService() as started:
        yield started


@pytest.mark.programs
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in _OF_CI else pytest.mark.repeats) for each in SUBSET]
)
def test_subset(service: SuiteService, name: str) -> None:
    """The clients of other people work as on the day when the table was made."""
    suite = all_suites()[name]
    transport, cases = SUBSET[name]
    try:
        suite.prepare()
        found = list(suite.run(service, transport, cases))
    except ToolMissingError as error:
        words = f"NOT TESTED WITH {name}: {error}"
        pytest.skip(words) if name in _SKIPPED_WITHOUT_TOOLS else not_tested(words)
    assert not [case for case in found if case.outcome is not Outcome.PASSED]
    assert {case.name for case in found} >= set(cases)
    assert found


def _run(service: SuiteService, source: str, cases: Sequence[str] = ()) -> list[tuple[str, Outcome, str]]:
    command = [sys.executable, "-c", "import json, os, sys, time\n" + source]
    found = run_program(command, service, Transport.TLS, cases, case_s_max=3.0)
    return [(case.name, case.outcome, case.detail) for case in found]


def test_a_program_reports_its_cases(service: SuiteService) -> None:
    """One JSON object per line is a case, other lines are not, and only the cases asked for count."""
    source = (
        "print('a warning of a runtime')\n"
        "for name in ('one', 'two'):\n"
        "    print(json.dumps({'name': name, 'outcome': 'skipped', 'detail': 'why'}))\n"
        "assert os.environ['TIDEGATE_TRANSPORT'] == 'tls' and os.environ['TIDEGATE_HUB']"
    )
    assert _run(service, source) == [("one", Outcome.SKIPPED, "why"), ("two", Outcome.SKIPPED, "why")]
    assert _run(service, source, ["two"]) == [("two", Outcome.SKIPPED, "why")]


def test_a_crash_a_hang_and_silence_are_failures(service: SuiteService) -> None:
    """A program that ends early, hangs or says nothing never looks like one that passed."""
    passed = "print(json.dumps({'name': 'one', 'outcome': 'passed'}), flush=True)\n"
    for source, words in {
        passed + "sys.exit('the crash')": "It ended with 1 after 1 cases",
        passed + "time.sleep(600)": "It hung for 3 s after 1 cases",
        "": "It ended with 0 after 0 cases",
    }.items():
        name, outcome, detail = _run(service, source)[-1]
        assert (name, outcome) == (PROGRAM, Outcome.FAILED)
        assert words in detail
    assert "the crash" in _run(service, "sys.exit('the crash')")[0][2]


def test_each_test_of_an_archive_is_a_case(
    service: SuiteService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What fails, in a fixture's end or while it is imported, too, is never counted as passed."""
    monkeypatch.setattr(python_sdk, "BUILD", tmp_path)
    tests = tmp_path / "own" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_broken.py").write_text("import nothing_of_that_name")
    (tests / "test_own.py").write_text(
        "import pytest, socket\n"
        "from azure.mgmt.eventhub import EventHubManagementClient\n"
        "def test_passes():\n"
        "    hubs = EventHubManagementClient().event_hubs\n"
        "    hubs.create_or_update('', '', 'own', {'partition_count': 3})\n"
        "    assert hubs.get('', '', 'own').as_dict()['partition_count'] == 3\n"
        "    hubs.delete('', '', 'own')\n"
        "    with pytest.raises(socket.gaierror): socket.getaddrinfo('other.servicebus.windows.net', 5671)\n"
        "def test_fails(): assert 1 == 2\n"
        "@pytest.mark.skip('why')\n"
        "def test_skipped(): pass\n"
        "@pytest.fixture\n"
        "def end():\n"
        "    yield\n"
        "    raise ValueError('at the end')\n"
        "def test_ends_badly(end): pass\n"
    )
    suite = python_sdk.LiveTests(
        name="own", sdk="own", version="1", transports=(Transport.TLS,), archives=(), folders=(), packages=()
    )
    try:
        cases = list(suite.run(service, Transport.TLS, ["tests"]))
    except ToolMissingError as error:
        not_tested(f"NOT TESTED: {error}")
    found = {case.name: (case.outcome, case.detail) for case in cases}
    assert len(found) == len(cases)
    where = "tests/test_own.py::"
    assert found.pop(f"{where}test_passes") == (Outcome.PASSED, "")
    assert found.pop(f"{where}test_skipped") == (Outcome.SKIPPED, "The SDK skips it: why")
    assert found.pop(f"{where}test_fails")[0] is Outcome.FAILED
    assert "at the end" in found.pop(f"{where}test_ends_badly")[1]
    assert found.pop("tests/test_broken.py")[0] is Outcome.FAILED
    assert all(outcome is Outcome.FAILED for outcome, _ in found.values())


def test_the_table_names_counts_and_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later run replaces its own row alone; reasons stand under the table."""
    monkeypatch.setattr(results, "FILE", tmp_path / "interop.json")
    results.write_results(
        [Result("b", "sdk", "1", "tls", 3), Result("a", "sdk", "1", "tls", 1, {"x": "broken"})]
    )
    results.write_results([Result("a", "sdk", "2", "tls", 2, {}, {"y": "needs Azure"})])
    assert table(results.read_results()) == [
        "| suite | package | version | over | passed | failed | skipped |",
        "|---|---|---|---|--:|--:|--:|",
        "| a | sdk | 2 | tls | 2 | 0 | 1 |",
        "| b | sdk | 1 | tls | 3 | 0 | 0 |",
        "",
        "Skipped:",
        "",
        "- a: `y`: needs Azure",
    ]
