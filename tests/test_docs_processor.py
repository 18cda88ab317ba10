"""The pages about the Event Processor Host say what the code does: names exist, tables hold, programs run."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.docs_support import ROOT, environment_of, write_programs

from tidegate.processor import EventProcessorOptions, FailurePolicy, PartitionManagerOptions
from tidegate.processor.host.balancer import decide_balance
from tidegate.processor.lease import Lease, LeaseSnapshot
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

pytestmark = pytest.mark.usefixtures("forked_python")

GUIDE = ROOT / "docs/guides/from-event-processor-host.md"
CONCEPTS = ROOT / "docs/concepts/event-processor-host.md"
MODULES = (
    "tidegate.processor",
    "tidegate.processor.stores.blob",
    "tidegate.client",
    "tidegate.sql",
    "tidegate.sql.stores.azure_checkpoint_store",
)
"""Where the names of the guide's tables are imported from, the first that has one."""
_DEADLINE_S = 60.0


# --- names and tables -------------------------------------------------------------------------------------


def _table_rows(text: str) -> Iterator[dict[str, str]]:
    """Each row of each table, by its columns' headings."""
    headings: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            headings = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not headings:
            headings = cells
        elif set(line) - set("|- "):
            yield dict(zip(headings, cells, strict=True))


def _guide_names() -> list[str]:
    rows = _table_rows(GUIDE.read_text(encoding="utf-8"))
    cells = [row["Tidegate"] for row in rows if "Tidegate" in row]
    return sorted({name for cell in cells for name in re.findall(r"`([^`]+)`", cell)})


@pytest.mark.parametrize("name", _guide_names())
@pytest.mark.slow
def test_every_tidegate_name_of_the_guide_exists(name: str) -> None:
    """`Name`, `Name.member` and `Name(argument)` in the tables for people from .NET are there."""
    found = re.fullmatch(r"(\w+)(?:\.(\w+))?(?:\((\w+)\))?", name)
    assert found is not None, name
    owner, member, argument = found.groups()
    modules = map(importlib.import_module, MODULES)
    value: object = next(getattr(module, owner) for module in modules if hasattr(module, owner))
    if member is not None:
        assert hasattr(value, member) or member in _instance_attributes(value), name
        value = getattr(value, member, None)
    if argument is not None:
        assert callable(value)
        assert argument in inspect.signature(value).parameters, name


def _instance_attributes(value: object) -> set[str]:
    """What a class declares for its instances, and what its constructor gives them."""
    assert isinstance(value, type)
    return {*value.__annotations__, *re.findall(r"self\.(\w+) = ", inspect.getsource(value.__init__))}  # type: ignore[misc]


def test_the_guide_names_enough() -> None:
    """The check above reads the tables, and does not pass because it found none."""
    assert len(_guide_names()) > 50


@pytest.mark.parametrize("options", [EventProcessorOptions, PartitionManagerOptions, FailurePolicy])
def test_every_option_is_in_the_guide(options: type[DataclassInstance]) -> None:
    """No option of the host is undocumented."""
    page = GUIDE.read_text(encoding="utf-8")
    for field in dataclasses.fields(options):
        assert f"`{options.__name__}.{field.name}`" in page, field.name


def test_the_balancing_table_is_what_the_balancer_does() -> None:
    """The worked table of the concepts page, computed."""
    rows = [row for row in _table_rows(CONCEPTS.read_text(encoding="utf-8")) if "moment" in row]
    written = [{host: int(n) for host, n in row.items() if n.isdecimal()} for row in rows]
    group = _Group(16)
    group.look("A")
    seen = [group.spread()]
    for _ in range(2):
        group.look("ABCDE")
        seen.append(group.spread())
    group.look("ABCDE")
    for _ in range(4):
        group.look("ACDE")
    seen.append(group.spread())
    for _ in range(2):
        group.look("ACDEFG")
    seen.append(group.spread())
    assert [sorted(each.values()) for each in seen] == [sorted(each.values()) for each in written]


class _Group:
    """Hosts that look at the leases one after the other, every 10 s; owners hand over at once."""

    def __init__(self, partition_count: int) -> None:
        self._ids = [str(number) for number in range(partition_count)]
        self._leases: dict[str, Lease] = {}
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def spread(self) -> dict[str, int]:
        owners = [lease.requested_by or lease.owner for lease in self._leases.values()]
        return {owner: owners.count(owner) for owner in owners}

    def look(self, hosts: str) -> None:
        self._now += timedelta(seconds=10)
        for host in hosts:
            mine = [partition for partition, lease in self._leases.items() if lease.owner == host]
            for partition in mine:
                self._leases[partition] = replace(self._leases[partition], renewed_at=self._now)
            actions = decide_balance(
                LeaseSnapshot(dict(self._leases), self._now),
                self._ids,
                host,
                lease_duration_s=30,
                choice=0.5,
                pumped=mine,
            )
            for lease in actions.hand_over:
                self._leases[lease.partition_id] = replace(lease, owner="", renewed_at=self._now)
            for lease in actions.request:
                self._leases[lease.partition_id] = replace(lease, requested_by=host, requested_at=self._now)
            assert not actions.steal
            for partition, _ in actions.acquire:
                self._leases[partition] = Lease(partition, host, 1, self._now, self._now, "1", "")


# --- programs ---------------------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with the programs of all pages in it."""
    return write_programs(tmp_path)


def _send(service: HubService, hub: str, *bodies: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tidegate.cli", "send", hub],
        env=environment_of(service),
        input="\n".join(bodies).encode(),
        check=True,
        capture_output=True,
    )


@contextmanager
def _running(service: HubService, workplace: Path, program: str, *options: str) -> Iterator[Path]:
    """Runs a program, or its host with options, yields the file of its output, and ends it at Ctrl-C."""
    output = workplace / f"{program}.out"
    words = ["-m", "tidegate.cli", "host", "run", f"{program}:host", *options] if options else [program]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=workplace,
            env=environment_of(service),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield output
        process.send_signal(signal.SIGINT)
        process.wait(_DEADLINE_S)
        assert "Traceback" not in output.read_text(), output.read_text()
    finally:
        process.kill()
        process.wait()


def _wait(is_there: Callable[[], bool], output: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not is_there():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("program", ["processor.py", "classic_host.py"])
@pytest.mark.slow
def test_a_host_of_the_pages_processes_events_and_goes_on(program: str, workplace: Path) -> None:
    """Pasted, it shows each event, ends in order at Ctrl-C, and started again shows only what is new."""
    with HubService() as service:
        service.create_hub("telemetry", partition_count=2)
        _send(service, "telemetry", "one", "two", "three")
        with _running(service, workplace, program) as output:
            _wait(lambda: _words_of(output) >= {"one", "two", "three"}, output)
            if program == "classic_host.py":  # of both partitions, which need not be at the same time
                _wait(lambda: _verbs_of(output).count("open") == 2, output)
        if program == "classic_host.py":
            verbs = _verbs_of(output)
            assert verbs.count("close") == verbs.count("open") == 2
        _send(service, "telemetry", "four")
        with _running(service, workplace, program) as output:
            _wait(lambda: "four" in _words_of(output), output)
        assert not _words_of(output) & {"one", "two", "three"}


@pytest.mark.slow
def test_the_traces_of_the_guide_are_linked(workplace: Path) -> None:
    """Pasted, it prints the span of the order, and that of the host with a link to it."""
    with HubService() as service:
        service.create_hub("telemetry", partition_count=1)
        with _running(service, workplace, "traced.py") as output:
            _wait(lambda: '"name": "process telemetry"' in output.read_text(), output)
        printed = re.findall(r"^\{.*?^\}", output.read_text(), re.DOTALL | re.MULTILINE)
        order, process = map(json.loads, printed)
        assert (order["name"], process["name"]) == ("order", "process telemetry")
        assert [link["context"]["span_id"] for link in process["links"]] == [order["context"]["span_id"]]


@pytest.mark.slow
def test_the_host_of_the_page_runs_in_processes(workplace: Path) -> None:
    """The command of the page shows each event once, and continues where it was stopped."""
    command = ("hosted.py", "--processes", "2", "--metrics-port", "0")
    assert "host run hosted.py:host --processes 4 --metrics-port" in CONCEPTS.read_text(encoding="utf-8")
    with HubService() as service:
        service.create_hub("telemetry", partition_count=2)
        _send(service, "telemetry", "one", "two", "three")
        with _running(service, workplace, *command) as output:
            _wait(lambda: _words_of(output) >= {"one", "two", "three"}, output)
        _send(service, "telemetry", "four")
        with _running(service, workplace, *command) as output:
            _wait(lambda: "four" in _words_of(output), output)
        assert not _words_of(output) & {"one", "two", "three"}


@pytest.mark.slow
def test_the_managers_of_the_guide_work_together(workplace: Path) -> None:
    """Pasted, its leases are in files, its rows in a database, and its dead letters in its own queue."""
    with HubService() as service:
        service.create_hub("quantities", partition_count=1)
        _send(service, "quantities", "3", "many", "7")
        queue = workplace / "failed.jsonl"
        with _running(service, workplace, "managed.py", "--metrics-port", "0") as output:
            _wait(lambda: len(_query(workplace, "SELECT * FROM quantities", "quantities.db")) == 2, output)
        (letter,) = map(json.loads, queue.read_text().splitlines())
        assert letter["place"] == ["0", 1, "1"]
        assert "invalid literal" in letter["error"]
        assert list((workplace / "leases").glob("*/quantities/*/leases.json"))
        assert not _query(workplace, "SELECT * FROM tidegate_dead_letter", "quantities.db")


def _verbs_of(output: Path) -> list[str]:
    """The first word of each line."""
    return [line.split()[0] for line in output.read_text().splitlines() if line.strip()]


def _words_of(output: Path) -> set[str]:
    """Bodies of the events that were shown: the last words of lines ``PARTITION NUMBER BODY``."""
    return set(re.findall(r"^\d+ \d+ b'(\w+)'$", output.read_text(), re.MULTILINE))


@pytest.mark.slow
def test_the_dead_letters_of_the_guide_are_put_aside_and_run_again(workplace: Path) -> None:
    """orders.py makes rows of good events and dead letters of bad ones; a redrive tries them again."""
    with HubService() as service:
        service.create_hub("orders", partition_count=2)
        orders = [{"item": "bolt", "quantity": 3}, {"item": "nut"}, {"item": "cog", "quantity": "7"}]
        _send(service, "orders", *map(json.dumps, orders))
        with _running(service, workplace, "orders.py") as output:
            _wait(lambda: len(_items(workplace)) == 2, output)
            _wait(lambda: _dead_letter_count(workplace) == 1, output)  # perhaps of the other partition
        assert _items(workplace) == [("bolt", 3), ("cog", 7)]
        words = [sys.executable, "-m", "tidegate.cli", "dlq"]
        database = ["--database", "sqlite:///orders.db"]
        listed = _run([*words, "list", *database, "--by-reason", "--json"], service, workplace)
        assert [each["error_type"] for each in json.loads(listed)] == ["KeyError"]
        redrive = [*words, "redrive", *database, "--pipeline", "orders.py:pipeline", "--dry-run", "--json"]
        _run(redrive, service, workplace)


@pytest.mark.slow
def test_the_host_of_the_debian_page_is_a_service(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """orders_host.py, in the command of its unit: it makes its table, rows and dead letters."""
    with HubService() as service:
        monkeypatch.setenv("TIDEGATE_DATABASE", "sqlite:///orders.db")
        service.create_hub("orders", partition_count=1)
        _send(service, "orders", '{"item": "bolt", "quantity": 3}', '{"item": "nut"}')
        with _running(service, workplace, "orders_host.py", "--metrics-port", "0") as output:
            _wait(lambda: _items(workplace) == [("bolt", 3)], output)
            _wait(lambda: _dead_letter_count(workplace) == 1, output)


@pytest.mark.slow
def test_the_handler_of_its_own_statements_runs(workplace: Path) -> None:
    """shipping.py, in the host of orders.py: rows by its own statements, one event put aside by itself."""
    driver = (
        "import asyncio, contextlib, orders, shipping\norders.pipeline = shipping.ship\n"
        "with contextlib.suppress(KeyboardInterrupt):\n    asyncio.run(orders.main())\n"
    )
    (workplace / "driver.py").write_text(driver)
    with HubService() as service:
        service.create_hub("orders", partition_count=1)
        with closing(sqlite3.connect(workplace / "orders.db")) as connection:
            connection.execute(
                "CREATE TABLE orders (partition_id TEXT, sequence_number INT, item TEXT, quantity INT)"
            )
        _send(service, "orders", "bolt", "cog")
        with _running(service, workplace, "driver.py") as output:
            _wait(lambda: len(_items(workplace)) == 2, output)
        assert _items(workplace) == [("bolt", 1), ("cog", 1)]


@pytest.mark.slow
def test_the_host_of_the_page_publishes(workplace: Path) -> None:
    """alarms.py, pasted: a hot reading comes into the other hub, once, and a cold one does not."""
    with HubService() as service:
        for hub in ("readings", "alarms"):
            service.create_hub(hub, partition_count=2)
        hot, cold = '{"device": "d1", "celsius": 71}', '{"device": "d2", "celsius": 20}'
        _send(service, "readings", cold, hot, cold)
        receive = [sys.executable, "-m", "tidegate.cli", "receive", "alarms", "--no-follow", "--nl"]
        with _running(service, workplace, "alarms.py") as output:
            _wait(lambda: "celsius" in _run(receive, service, workplace), output)
        found = [json.loads(line) for line in _run(receive, service, workplace).splitlines()]
        assert [json.loads(each["body"]) for each in found] == [json.loads(hot)]


def _run(words: list[str], service: HubService, workplace: Path) -> str:
    found = subprocess.run(
        words, cwd=workplace, env=environment_of(service), capture_output=True, check=False, text=True
    )
    assert found.returncode in (0, 1, 4), found.stderr
    return found.stdout


def _items(workplace: Path) -> list[tuple[str, int]]:
    return _query(workplace, "SELECT item, quantity FROM orders ORDER BY item")


def _dead_letter_count(workplace: Path) -> int:
    return len(_query(workplace, "SELECT partition_id, sequence_number FROM tidegate_dead_letter"))


def _query(workplace: Path, statement: str, name: str = "orders.db") -> list[tuple[str, int]]:
    database = workplace / name
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError:
            return []  # the table is not made yet
