"""The programs of the page about dead letters in any language, as they stand there, with the official SDKs.

Events fail, become dead letters and are checkpointed in the service's own storage; then some are redriven,
come again, and the rest is discarded.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient
from tests.console.support import console_service
from tests.docs_support import ROOT
from tests.interop.java_programs import JAVA_5, QUICK_START, build
from tests.interop.node import FOLDER, required_javascript
from tests.interop.suites.suite import ToolMissingError
from tests.support.blob_storage import OwnStorage

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

PAGE = (ROOT / "docs/guides/dead-letters-any-language.md").read_text(encoding="utf-8")
RUN_S_MAX = 120.0
HUB = "orders"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HubService]:
    """A service with a database, an event hub of one partition, and a container for checkpoints."""
    with console_service(tmp_path, database=f"sqlite:///{tmp_path / 'letters.db'}") as service:
        service.create_hub(HUB, partition_count=1)
        storage = OwnStorage(service).connection_string()
        with ContainerClient.from_connection_string(storage, "checkpoints") as container:
            container.create_container()
        yield service


def _program(language: str, name: str) -> str:
    found = re.search(rf"```{language}\n// {re.escape(name)}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def javascript_program() -> Iterator[list[str]]:
    """The command of the JavaScript program, beside the packages that it imports."""
    with required_javascript({}):
        pass
    path = FOLDER / f"orders-{os.getpid()}.mjs"
    path.write_text(_program("js", "orders.mjs"))
    yield ["node", str(path)]
    path.unlink()


@pytest.fixture
def java_program(tmp_path: Path) -> list[str]:
    """The command of the Java program."""
    source = tmp_path / "Orders.java"
    source.write_text(_program("java", "Orders.java"))
    try:
        path = build(JAVA_5, [source], tmp_path / "java")
    except ToolMissingError as error:
        pytest.skip(f"NOT TESTED WITH THE JAVA SDK: {error}")
    return ["java", *QUICK_START, "-cp", path, "Orders"]


def test_with_the_javascript_sdk(service: HubService, javascript_program: list[str]) -> None:
    """@azure/event-hubs and its blob store."""
    _check(service, javascript_program, "TypeError")


@pytest.mark.programs
@pytest.mark.repeats
def test_with_the_java_sdk(service: HubService, java_program: list[str]) -> None:
    """azure-messaging-eventhubs and its blob store."""
    _check(service, java_program, "IllegalArgumentException")


def _check(service: HubService, command: Sequence[str], error_type: str) -> None:
    assert service.ready.http is not None
    environment = os.environ | {
        "TIDEGATE_CONNECTION_STRING": service.connection_string,
        "TIDEGATE_URL": f"http://{service.ready.http}",
        "STORAGE": OwnStorage(service).connection_string(),
    }

    def run(*words: str) -> list[str]:
        done = subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, timeout=RUN_S_MAX
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    _send(service, b'{"quantity": 1}', b'{"quantity": "two"}', b'{"quantity": null}', b'{"quantity": 4}')
    with _Consumer(command, environment) as consumer:
        consumer.wait_lines("processed 0/0", "processed 0/3", "dead letters: 2 added, 0 missing")
    line = f"{error_type}: quantity is not a number"
    assert sorted(run("list")) == [f"0/1 {line}", f"0/2 {line}"]
    # A consumer that is started again goes on behind its checkpoint, with what was redriven.
    assert run("redrive", "elsewhere") == ["redriven: 0"]
    assert run("redrive", "QUANTITY") == ["redriven: 2"]
    assert run("list") == []
    _send(service, b'{"quantity": 7}')
    with _Consumer(command, environment) as consumer:
        lines = consumer.wait_lines("processed 0/6", "dead letters: 2 added, 0 missing")
    assert [each for each in lines if each.startswith("processed")] == ["processed 0/6"]
    assert sorted(run("list")) == [f"0/4 {line}", f"0/5 {line}"]
    assert run("discard", "the old firmware sent these") == ["discarded: 2"]
    assert run("list") == []


def _send(service: HubService, *bodies: bytes) -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, HUB) as producer:
            await producer.send(
                [EventData(body, content_type="application/json") for body in bodies], partition_id="0"
            )

    asyncio.run(send())


class _Consumer:
    """The program while it consumes, until its input ends or it is interrupted."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name="consumer program")

    def wait_lines(self, *wanted: str) -> list[str]:
        """All lines so far, once these are among them."""
        with self._changed:
            met = self._changed.wait_for(lambda: set(wanted) <= set(self._lines), RUN_S_MAX)
            assert met, self._lines
            return list(self._lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.decode(errors="replace").rstrip())
                self._changed.notify_all()

    def __enter__(self) -> _Consumer:
        self._reader.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Stop it in order, so that its checkpoint is written and its partition is free; nothing is left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if "node" in self._process.args[0]:  # type: ignore[index,operator]
            self._process.send_signal(signal.SIGINT)
        try:
            assert self._process.wait(RUN_S_MAX) == 0, self._lines
        finally:
            self._process.kill()
            self._reader.join(RUN_S_MAX)
            self._process.stdout.close()
