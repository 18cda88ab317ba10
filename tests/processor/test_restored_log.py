"""A host whose checkpoint is of a log that was restored from a backup since stops that partition."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.capture.support import wait_until
from tests.client.test_histories import send
from tests.docs_support import environment_of
from tests.support.azurite import AzuriteServer

from tidegate.model.errors import LogDivergedError
from tidegate.model.events import ReceivedEvent
from tidegate.processor import (
    DirectoryStore,
    EventProcessorHost,
    EventProcessorOptions,
    GroupKey,
    MemoryStore,
    PartitionContext,
    PartitionState,
    ProcessorStore,
    TransactionContext,
)
from tidegate.sql import Database, SqlStore
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

pytestmark = pytest.mark.usefixtures("forked_python")

_HUB = "telemetry"


@pytest.fixture
def service(tmp_path: Path) -> HubService:
    """Not running; the hub has no event yet."""
    made = HubService(tmp_path / "log")
    with made:
        made.create_hub(_HUB, partition_count=1)
    return made


@pytest.fixture(params=["memory", "directory", "sqlite", "transactional", "blob"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessorStore]:
    """A store of each kind."""
    async with AsyncExitStack() as stack:
        made: ProcessorStore
        match request.param:
            case "memory":
                made = MemoryStore(SystemClock())
            case "directory":
                made = DirectoryStore(tmp_path / "store")
            case "blob":
                from tidegate.processor.stores.blob import BlobStore

                azurite: AzuriteServer = request.getfixturevalue("azurite")
                place = (azurite.connection_string(), azurite.create_container())
                made = BlobStore.from_connection_string(*place)
            case _:
                url = f"sqlite:///{tmp_path / 'store.db'}"
                made = SqlStore(stack.enter_context(Database.open(url)))
        stack.push_async_callback(made.close)
        yield made


@pytest.fixture
def is_transactional(request: pytest.FixtureRequest) -> bool:
    """Whether the handler is run in the store's transactions."""
    return "transactional" in request.node.name


class _Handled:
    """Hosts that handle the events one after another."""

    def __init__(self, service: HubService, store: ProcessorStore, *, is_transactional: bool) -> None:
        self.service = service
        self.store = store
        self.is_transactional = is_transactional
        self.numbers: list[int] = []
        self.group: GroupKey | None = None
        """Of the host that was stopped: it knows the namespace's id once it has run."""

    def host(self) -> EventProcessorHost:
        return EventProcessorHost.from_connection_string(
            self.service.connection_string,
            _HUB,
            store=self.store,
            options=EventProcessorOptions(max_batch_size=10),
            transactional=self.is_transactional,
        )

    async def plain(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await context.checkpoint()
        self.numbers += [event.sequence_number for event in events]

    def in_transaction(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        self.numbers += [event.sequence_number for event in events]

    async def until(self, count: int) -> None:
        """A host runs until so many events were handled."""
        async with self.host().running(self.in_transaction if self.is_transactional else self.plain):
            await wait_until(lambda: len(self.numbers) >= count)

    async def until_stopped(self) -> Exception | None:
        """A host runs until its partition is stopped; returns why."""
        host = self.host()
        async with host.running(self.in_transaction if self.is_transactional else self.plain):
            await wait_until(
                lambda: (
                    [each.state for each in host.statistics().partitions.values()] == [PartitionState.STOPPED]
                )
            )
            self.group = host.group
            return host.statistics().partitions["0"].error


@pytest.mark.slow
async def test_a_host_stops_at_a_restored_log_that_has_grown_again(
    service: HubService, tmp_path: Path, store: ProcessorStore, is_transactional: bool
) -> None:
    """150 events were handled, the backup has 50 and grows to 200: none of these is skipped or handled.

    Before, plain restarts stop nobody; afterwards the checkpoint is set, and the group goes on from there.
    """
    handled = _Handled(service, store, is_transactional=is_transactional)
    with service:
        await send(service, 50)
        await handled.until(50)
    shutil.copytree(service.data_dir, tmp_path / "backup")
    for count in (60, 150):
        with service:
            await send(service, count - len(handled.numbers))
            await handled.until(count)
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    with service:
        await send(service, 150)
        error = await handled.until_stopped()
        assert isinstance(error, LogDivergedError)
        assert "sequence number 149 was read in the history" in error.message
        assert handled.numbers == list(range(150))
        group = handled.group
        assert group is not None
        (stored,) = (await store.list_checkpoints(group)).values()
        at_50 = replace(stored, sequence_number=49, offset="49", history_id=None)
        await store.update_checkpoint(group, at_50, lease=None, is_rewind_allowed=True)
        await handled.until(300)
        assert handled.numbers[150:] == list(range(50, 200))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_the_command_that_the_error_names_lets_the_group_go_on(
    service: HubService, tmp_path: Path, store: ProcessorStore
) -> None:
    """It sets the history along with the number; the list shows it."""
    handled = _Handled(service, store, is_transactional=False)
    words = [sys.executable, "-m", "tidegate.cli", "checkpoint"]
    ends = ["--database", f"sqlite:///{tmp_path / 'store.db'}"]

    def run(*more: str) -> str:
        found = subprocess.run(
            [*words, *more, *ends],
            env=environment_of(service),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    with service:
        await send(service, 50)
    shutil.copytree(service.data_dir, tmp_path / "backup")
    with service:
        await send(service, 50)
        await handled.until(100)
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    with service:
        await send(service, 100)
        assert isinstance(await handled.until_stopped(), LogDivergedError)
        (before,) = json.loads(run("list", _HUB, "--json"))
        run("set", _HUB, "--partition", "0", "--sequence-number", "100", "--rewind", "--force", "--yes")
        (after,) = json.loads(run("list", _HUB, "--json"))
        assert (before["checkpoint"], after["checkpoint"]) == (99, 99)
        assert None not in (before["history"], after["history"])
        assert before["history"] != after["history"]
        await handled.until(150)
        assert handled.numbers[100:] == list(range(100, 150))
