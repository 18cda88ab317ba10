"""A test that lacks the marker for what it uses fails, so `make quick` leaves out all that it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import MARKERS, markers_of, missing_marker

_ROOT = Path(__file__).parents[1]
_CASES = """
import asyncio, contextlib, subprocess, sys
import pytest

def _start_initdb():
    subprocess.run(["/absent/initdb"])

def _connect(asynchronous):
    words = "Endpoint=sb://127.0.0.1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    if not asynchronous:
        from azure.eventhub import EventHubConsumerClient as Client
        with Client.from_connection_string(words, "$Default", eventhub_name="h", retry_total=0) as client:
            client.get_partition_ids()
        return
    from azure.eventhub.aio import EventHubConsumerClient as AsyncClient
    async def run():
        made = AsyncClient.from_connection_string(words, "$Default", eventhub_name="h", retry_total=0)
        async with made as client:
            await client.get_partition_ids()
    asyncio.run(run())

def test_refused_program():
    _start_initdb()

def test_refused_and_swallowed():
    with contextlib.suppress(RuntimeError):
        _start_initdb()

def test_refused_in_a_fixture(request):
    request.getfixturevalue("started")

@pytest.fixture
def started():
    _start_initdb()

@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_refused_sdk(asynchronous):
    with contextlib.suppress(Exception):
        _connect(asynchronous)

def test_refused_spark_of_a_child():
    child = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"
    subprocess.run([sys.executable, "-c", child], check=True)

@pytest.mark.postgresql
def test_allowed_program():
    with pytest.raises(FileNotFoundError):
        _start_initdb()

@pytest.mark.sdk
@pytest.mark.parametrize("asynchronous", [False, True])
def test_allowed_sdk(asynchronous):
    with pytest.raises(Exception, match="refused|onnect"):
        _connect(asynchronous)
"""


@pytest.mark.slow
def test_a_test_is_held_to_its_markers(tmp_path: Path) -> None:
    """Of programs, of connections with an SDK, and of Spark in a child; also where the error is swallowed."""
    (tmp_path / "test_cases.py").write_text(_CASES, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml", "-q", "-rA"]
    run = subprocess.run(
        [*words, str(tmp_path)], cwd=_ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    outcomes = {
        line.split("::")[1].split(" - ")[0]: line.split()[0]
        for line in run.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED", "ERROR"))
    }
    assert len(outcomes) == 9, run.stdout
    for name, outcome in outcomes.items():
        assert (outcome == "PASSED") == name.startswith("test_allowed"), run.stdout
    assert run.stdout.count("without the marker postgresql starts /absent/initdb") >= 3
    assert run.stdout.count("without the marker sdk connects") >= 2


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_parameter_tells_the_database(kind: str, request: pytest.FixtureRequest) -> None:
    """A test of both databases is left out for PostgreSQL alone."""
    assert markers_of(request.node) == ({"postgresql"} if kind == "postgresql" else set())


@pytest.mark.parametrize(
    ("program", "line", "marker"),
    [
        ("/usr/bin/java", "java -cp x", "sdk"),
        ("/usr/bin/java", "java -version", None),
        ("/opt/spark/bin/spark-submit", "spark-submit", "spark"),
        ("/usr/bin/chromium", "chromium --headless", "browser"),
        ("node", "node tests/azurite/node_modules/azurite/x.js", "azurite"),
        ("node", "node playwright/driver/package/cli.js", "browser"),
        ("node", "node driver.mjs", "sdk"),
        ("/usr/bin/git", "git log", None),
    ],
)
def test_programs_and_their_markers(program: str, line: str, marker: str | None) -> None:
    """Which marker a program asks for; Node.js is told by what it runs."""
    assert missing_marker(frozenset(), program, line.split()) == marker
    assert missing_marker(MARKERS, program, line.split()) is None


def test_pyproject_registers_each_marker(request: pytest.FixtureRequest) -> None:
    """--strict-markers refuses a marker that is missing there; `make quick` leaves each of them out."""
    registered = {line.split(":")[0] for line in request.config.getini("markers")}
    assert registered >= MARKERS
    makefile = (_ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"or {name}" in makefile or f"({name}" in makefile for name in MARKERS)
