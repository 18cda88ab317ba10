"""``make screenshots``: renew the pictures of the console and of the demo in ``docs/images``.

A real service with a console, producers that keep it busy, two hosts that process and put events aside, a
pipeline's status; Chromium takes the pictures, in light and dark. Then the flights demo runs, and
what it says becomes a picture. Nothing in the pictures is drawn by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import math
import os
import pty
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from rich.console import Console
from rich.text import Text
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from tidegate.broker import EMULATOR_KEY
from tidegate.client import EventHubProducer
from tidegate.console.hubs.day import MINUTES, Day, SeriesKey
from tidegate.console.hubs.recorder import CHARTED, lag_name
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.processor import EventProcessorHost, EventProcessorOptions
from tidegate.sql import Database, Pipeline, SqlStore
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles, this_process

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tidegate.server.app import TidegateServer

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
PICTURE_BYTES_MAX: Final = 150 * 1024
SIZE: Final = (1280, 680)
SEED: Final = 7
HUBS: Final = {"orders": 4, "payments": 8, "telemetry": 16}
"""Hubs and how many partitions they have."""
LOAD_S: Final = 45.0
"""How long events come before the first picture: so that lines have a past."""

_ITEMS = ("kettle", "lamp", "chair", "bicycle", "umbrella", "teapot")
_COLUMNS: Final = 100
_LEFT_OUT: Final = ("Worst carriers", "Open dead letters")
"""From the one title to the other the demo's output is left out of its picture."""
# Rich's own form (14) loads fonts from another host.
_SVG: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>What the flights example says</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""

orders = Table(
    "orders",
    MetaData(),
    Column("partition_id", String(64), primary_key=True),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("item", String(64), nullable=False),
    Column("quantity", Integer, nullable=False),
)


def read_order(event: Any) -> dict[str, object]:
    """An order's row; an order of nothing, and one that is no JSON, is refused."""
    order = json.loads(event.body)
    if order["quantity"] < 1:
        raise InvalidArgumentError(f"An order of {order['quantity']} {order['item']}s.")
    place = {"partition_id": event.partition_id, "sequence_number": event.sequence_number}
    return {**place, "item": order["item"], "quantity": order["quantity"]}


pipeline = Pipeline("orders", event_hub="orders", table=orders, handler=read_order)


def main() -> int:
    """Take the pictures that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("console", "demo"), help="else both")
    wanted = parser.parse_args().only
    IMAGES.mkdir(parents=True, exist_ok=True)
    if wanted != "demo":
        take_console_pictures()
    if wanted != "console":
        take_demo_picture()
    too_large = [path.name for path in IMAGES.iterdir() if path.stat().st_size > PICTURE_BYTES_MAX]
    for name in too_large:
        sys.stderr.write(f"{name} is larger than {PICTURE_BYTES_MAX // 1024} KB.\n")
    return 1 if too_large else 0


# --- the console --------------------------------------------------------------------------------------------


def take_console_pictures() -> None:
    """Start all that the console shows, and take its pictures."""
    with tempfile.TemporaryDirectory(prefix="tidegate-screenshots-") as name, ExitStack() as stack:
        directory = Path(name)
        os.environ["TIDEGATE_STATE_DIR"] = str(directory / "state")
        url = f"sqlite:///{directory / 'orders.db'}"
        settings = directory / "settings.json"
        given = {
            "root_key": EMULATOR_KEY,
            "database": url,
            "redrive_pipelines": ["bench.screenshots:pipeline"],
        }
        settings.write_text(json.dumps(given))
        write_past(directory / "data")
        service = stack.enter_context(HubService(directory / "data", is_http_used=True, config=settings))
        stack.enter_context(in_background(lambda over: produce(service.connection_string, over)))
        stack.enter_context(in_background(lambda over: process(service.connection_string, url, over)))
        stack.enter_context(in_background(report_pipelines))
        threading.Event().wait(LOAD_S)
        assert service.ready.console is not None
        photograph(service.ready.console)


def write_past(data: Path) -> None:
    """Event hubs, and a day before the pictures in their charts."""
    with HubService(data) as service:
        for hub, partition_count in HUBS.items():
            service.create_hub(hub, partition_count=partition_count)

        async def hub_ids(server: TidegateServer) -> list[str]:
            return [server.broker.event_hub(hub).description.hub_id for hub in HUBS]

        ids = service.call(hub_ids)
    day, chance, now = Day(), random.Random(SEED), int(SystemClock().now_utc().timestamp() / 60)
    for minute in range(now - MINUTES + 1, now + 1):
        busy = 120 + 90 * math.sin((minute % MINUTES) / MINUTES * 2 * math.pi - 2) + chance.random() * 25
        lag = max(0.0, busy - 190) * 9
        values = {SeriesKey(ids[0], lag_name("events", "$Default")): lag}
        values[SeriesKey(ids[0], lag_name("seconds", "$Default"))] = lag / busy
        for hub_id in ("", *ids):
            for name in CHARTED:
                size = 58 if name.endswith("bytes") else 1
                values[SeriesKey(hub_id, name)] = busy * size * (4 if hub_id == "" else 1)
        day.note(minute, values, hub_ids=ids)
    charts = data / "console" / "charts"
    charts.parent.mkdir(mode=0o700, exist_ok=True)
    charts.write_bytes(day.encode())


@contextmanager
def in_background(work: Any) -> Iterator[None]:
    """Run a coroutine function of an event in a thread, until the event is set at the end of the block."""
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(work(is_over)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


async def produce(connection_string: str, is_over: threading.Event) -> None:
    """Orders, payments and telemetry, at rates that rise and fall; of the orders a few cannot be read."""
    chance, beat = random.Random(SEED), 0
    async with (
        EventHubProducer.from_connection_string(connection_string, "orders") as order_producer,
        EventHubProducer.from_connection_string(connection_string, "payments") as payment_producer,
        EventHubProducer.from_connection_string(connection_string, "telemetry") as telemetry_producer,
    ):
        while not is_over.is_set():
            beat += 1
            many = round(40 + 25 * math.sin(beat / 25) + chance.random() * 10)
            bodies = [
                {
                    "item": chance.choice(_ITEMS),
                    "quantity": chance.randint(1, 9),
                    "order": beat * 100 + number,
                }
                for number in range(many)
            ]
            if beat % 9 == 0:
                bodies[0]["quantity"] = 0
            texts = [json.dumps(body).encode() for body in bodies]
            if beat % 31 == 0:
                texts[-1] = b"<order><item>lamp</item></order>"
            await order_producer.send([EventData(text) for text in texts])
            await payment_producer.send([EventData(b"x" * 180) for _ in range(many // 3 + 1)])
            await telemetry_producer.send([EventData(b"y" * 90) for _ in range(many * 2)])
            await asyncio.sleep(0.2)


async def process(connection_string: str, url: str, is_over: threading.Event) -> None:
    """Two hosts share the orders, in transactions of SQL."""
    with Database.open(url) as database:
        database.ensure_table(orders)
        stores = [SqlStore(database), SqlStore(database)]
        hosts = [
            EventProcessorHost(
                f"shop-{number}",
                "orders",
                "$Default",
                connection_string,
                store,
                EventProcessorOptions(),
                transactional=True,
            )
            for number, store in enumerate(stores, 1)
        ]
        async with hosts[0].running(pipeline), hosts[1].running(pipeline):
            await asyncio.to_thread(is_over.wait)
        for store in stores:
            await store.close()


async def report_pipelines(is_over: threading.Event) -> None:
    """What ``tidegate pipeline run`` tells of a pipeline that runs and of one that has failed."""
    files, clock, chance = PipelineFiles.of_user(os.environ), SystemClock(), random.Random(SEED)
    now = clock.now_utc()
    status = PipelineStatus(
        name="scores",
        state=PipelineState.RUNNING,
        process=this_process(),
        event_hub="telemetry",
        consumer_group="$Default",
        namespace="localhost",
        sink="sql",
        target="telemetry_score",
        checkpoint="/var/lib/pipelines/scores",
        started_at=now - timedelta(hours=3),
        updated_at=now,
        events_total=41_205_113,
        rows_total=41_198_250,
        batches=5_120,
    )
    failed = replace(status, name="archive", sink="files", target="/srv/archive", rows_total=None)
    error = "No space left on device. Make room, and start it again: it goes on where it was."
    files.write(replace(failed, state=PipelineState.FAILED, error=error, ended_at=now - timedelta(minutes=4)))
    while not is_over.is_set():
        rate = 14_000 + 3_000 * math.sin(status.batches / 7) + chance.random() * 1_500
        status = replace(
            status,
            batch_id=status.batches,
            batches=status.batches + 1,
            events=round(rate),
            events_total=status.events_total + round(rate),
            rows=round(rate),
            rows_total=(status.rows_total or 0) + round(rate),
            input_events_per_s=rate,
            processed_events_per_s=rate * 1.6,
            batch_ms=round(600 + chance.random() * 80),
            lag_events=round(rate / 4),
            lag_by_partition={str(number): chance.randint(0, 400) for number in range(16)},
            dead_letters_open=0,
            updated_at=clock.now_utc(),
        )
        files.write(status)
        await asyncio.sleep(1)


def photograph(address: str) -> None:
    """Each page in light and dark."""
    from playwright.sync_api import sync_playwright

    pictures = {
        "overview": "",
        "hub": "hubs/orders",
        "explorer": "hubs/orders/explorer",
        "consumers": "consumers/orders/$Default",
        "dead-letters": "dead-letters",
        "pipelines": "pipelines/scores",
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=_chromium_arguments())
        for scheme in ("light", "dark"):
            context = browser.new_context(
                base_url=address,
                color_scheme="dark" if scheme == "dark" else "light",
                viewport={"width": SIZE[0], "height": SIZE[1]},
            )
            page = context.new_page()
            for name, path in pictures.items():
                page.goto(path)
                _wait_until_live(page)
                suffix = "" if scheme == "light" else "-dark"
                page.screenshot(path=IMAGES / f"console-{name}{suffix}.png")
            context.close()
        browser.close()


def _wait_until_live(page: Page) -> None:
    """Until the page has had an update or two, where it has any, and its charts are drawn."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(2_500)


def _chromium() -> str:
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, filter(None, names)) if path is not None), None)
    if found is None:
        raise InvalidArgumentError(
            "There is no Chromium.", next_step="Install it, or set CHROMIUM to its path."
        )
    return found


def _chromium_arguments() -> list[str]:
    # Root has no user namespaces of its own.
    return ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


# --- the demo -----------------------------------------------------------------------------------------------


def take_demo_picture() -> None:
    """Run the flights demo, and draw what it says as a terminal does."""
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as directory:
        words = [sys.executable, "-m", "examples.flights", "--data-dir", f"{directory}/flights"]
        steps = Path(directory) / "steps"
        with steps.open("wb") as errors:
            report = run_in_terminal(words, errors)
        said = steps.read_text().splitlines() + report.splitlines()
        lines = [line.replace(directory, "/tmp") for line in said if not line.rstrip().endswith(" …")]
    from_title, until_title = (
        next(index for index, line in enumerate(lines) if title in line) for title in _LEFT_OUT
    )
    shown = ["$ make demo", *lines[:from_title], "…", "", *lines[until_title:]]
    (IMAGES / "demo-flights.svg").write_text(svg_of(shown))


def run_in_terminal(words: list[str], errors: BinaryIO) -> str:
    """Run a program with a terminal as its standard output; returns what it drew there.

    Raises CalledProcessError where it fails.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, _COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    drawn = bytearray()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        with subprocess.Popen(words, stdout=its, stderr=errors, env=environment) as program:
            os.close(its)
            with contextlib.suppress(OSError):  # that is how Linux tells that nobody writes any more
                while part := terminal.read(4096):
                    drawn += part
        if program.returncode:
            raise subprocess.CalledProcessError(program.returncode, words)
    return drawn.decode()


def svg_of(lines: list[str]) -> str:
    """Lines with a terminal's colours as an SVG that needs nothing from elsewhere."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, force_terminal=True)
        for line in lines:
            console.print(Text.from_ansi(line))
        text = console.export_svg(title="make demo", code_format=_SVG, unique_id="demo")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
