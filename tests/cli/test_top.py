"""``tidegate top``: rates, sizes and lag of a real service; a terminal is redrawn, a pipe gets snapshots."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cli.support import COMMAND, run_on_terminal, run_tidegate

from tidegate.cli.consumers.top_view import watch
from tidegate.cli.shell.connection import Service
from tidegate.cli.shell.frames import Frames
from tidegate.cli.shell.render import Output, OutputFormat, cell_text
from tidegate.cli.shell.stores import StoreChoice
from tidegate.client import EventHubConsumer, EventHubProducer
from tidegate.model.events import EventData
from tidegate.processor import GroupKey
from tidegate.sql import Database, SqlStore
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")


class Shown(io.StringIO):
    """A pipe's end, whose reader knows of each snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.is_shown = asyncio.Event()

    def flush(self) -> None:
        """A snapshot is complete."""
        self.is_shown.set()


async def publish(service: HubService, hub: str) -> None:
    """Ten events of a hundred bytes."""
    async with EventHubProducer.from_connection_string(service.hub_connection_string(hub)) as producer:
        await producer.send([EventData(b"x" * 100)] * 10, partition_id="0")


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """With two partitions, ten events, and a group that has read four of them."""
    name = hub_service.create_hub(partition_count=2)

    async def fill() -> None:
        await publish(hub_service, name)
        text = hub_service.hub_connection_string(name)
        async with EventHubConsumer.from_connection_string(text) as consumer:
            await consumer.report("host-a", {"0": 3})

    asyncio.run(fill())
    return name


async def test_rates_sizes_and_lag(hub: str, hub_service: HubService) -> None:
    """One object per refresh, also for a string that is for one hub; rates are of the time in between."""
    stream, last = Shown(), {"hubs": [{"incoming_events_per_s": None}]}
    service = Service(hub_service.hub_connection_string(hub))
    output = Output(OutputFormat.JSON, stream=stream)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch(output, service, StoreChoice(None), (), 0.05, is_once=False))
        while not last["hubs"][0]["incoming_events_per_s"]:
            await publish(hub_service, hub)
            stream.is_shown.clear()
            await stream.is_shown.wait()
            last = json.loads(stream.getvalue().splitlines()[-1])
        watching.cancel()
    (counted,), (group,) = last["hubs"], last["groups"]
    assert (counted["hub"], counted["partitions"], counted["outgoing_events_per_s"]) == (hub, 2, 0)
    assert counted["stored_events"] >= 20
    assert counted["stored_bytes"] > 100 * counted["stored_events"]
    assert counted["incoming_bytes_per_s"] > 100 * counted["incoming_events_per_s"] > 0
    assert group["lag_events"] == counted["stored_events"] - 4
    assert (group["group"], group["owners"], group["owned_partitions"]) == ("$Default", ["host-a"], 1)


async def test_groups_of_a_database(hub: str, hub_service: HubService, tmp_path: Any) -> None:
    """Beside those of the service; a group that is in both is the database's."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Database.open(url) as database:
        store = SqlStore(database)
        for group in ("reports", "$Default"):
            lease = await store.acquire(GroupKey("localhost", hub, group), "1", "host-b", expected=None)
            assert lease is not None
        await store.close()
    stream = io.StringIO()
    output = Output(OutputFormat.JSON, stream=stream)
    service = Service(hub_service.connection_string)
    await watch(output, service, StoreChoice(url), (hub,), 0.01, is_once=True)
    groups = {each["group"]: each for each in json.loads(stream.getvalue())["groups"]}
    assert {name: (each["lag_events"], each["owners"]) for name, each in groups.items()} == {
        "reports": (10, ["host-b"]),
        "$Default": (10, ["host-b"]),
    }


@pytest.mark.slow
def test_plain_snapshots_and_ctrl_c(hub: str, environment: dict[str, str]) -> None:
    """A pipe gets no control characters; Ctrl-C is no error."""
    with subprocess.Popen(
        [*COMMAND, "top", hub, "--interval", "0.1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline().decode() for _ in range(12)]
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert "\x1b" not in "".join(lines)
    # A heading, the hub, nothing, a heading, the group, nothing; and once more.
    rows = [line.split() for line in lines]
    assert [row[:1] for row in rows[:7]] == [["hub"], [hub], [], ["hub"], [hub], [], ["hub"]]
    assert rows[4][1:3] == ["$Default", "6"]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_of_any_width(hub: str, environment: dict[str, str], columns: int) -> None:
    """Columns drop out by importance."""
    shown = run_on_terminal(
        "top", hub, "--once", "--interval", "0.1", environment=environment, columns=columns
    )
    assert shown.code == 0, shown.out
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.out).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith(hub) and "10" in line.split() for line in lines) is (columns > 40)
    assert any("$Default" in line.split() and "6" in line.split() for line in lines)


def test_an_unknown_hub_is_named(environment: dict[str, str]) -> None:
    """Rather than an empty view."""
    found = run_tidegate("top", "nowhere", "--once", environment=environment)
    assert (found.code, found.out) == (1, "")
    assert "nowhere" in found.err


class Terminal(io.StringIO):
    """A person watches."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def frames_of(lines: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a terminal of ten lines is sent for two frames."""
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    frames = Frames(Output(OutputFormat.TABLE, stream=stream))
    for _ in range(2):
        frames.show(lambda out: out.line("\n".join(lines)))
    frames.close()
    first, second, end = stream.getvalue().split("\x1b[J")
    assert end == "\n"
    return [first, second]


def test_a_note_does_not_control_the_terminal() -> None:
    """It may quote what the service says of an error."""
    stream = Terminal()
    frames = Frames(Output(OutputFormat.TABLE, stream=stream))
    frames.show(lambda out: frames.note(out)("Error: \x1b]0;title\x07"))
    assert "Error: \\x1b]0;title\\x07" in stream.getvalue()


def test_a_name_does_not_forge_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host chooses its name, and some characters end lines for Python alone."""
    assert cell_text("a\u2028b\u2029c\x85d") == "a\\u2028b\\u2029c\\x85d"
    first, _ = frames_of(["a\u2028b\u2029c\x0bd", "e"], monkeypatch)
    assert first == "\x1b[H\x1b[2Ja\u2028b\u2029c\x0bd\x1b[K\ne\x1b[K\n"


def test_a_frame_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing scrolls: the screen is cleared once, then lines are written over those before."""
    first, second = frames_of([f"line {number}" for number in range(30)], monkeypatch)
    assert first == "\x1b[H\x1b[2J" + second.removeprefix("\x1b[H")
    lines = second.removeprefix("\x1b[H").split("\x1b[K\n")
    assert lines == [*(f"line {number}" for number in range(8)), "22 more lines.", ""]
