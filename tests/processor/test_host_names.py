"""Two live hosts of one name: the second ends with an error. A killed one is replaced without a long wait."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.docs_support import environment_of
from tests.processor.hosts import PLAIN, QUICK, publish, until

from tidegate.model.errors import AlreadyExistsError
from tidegate.model.events import ReceivedEvent
from tidegate.processor import (
    DirectoryStore,
    EventProcessorHost,
    MemoryStore,
    PartitionContext,
    PartitionManagerOptions,
    ProcessorStore,
)
from tidegate.processor.host.name_claim import _has_ended, _this_process
from tidegate.processor.lease import LeaseState
from tidegate.sql import Database
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.stores.group_views import read_group_views
from tidegate.sql.stores.processor_store import SqlStore
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

_LONG: Final = PartitionManagerOptions(lease_duration_s=600)
_PROGRAM: Final = """
import asyncio, os, sys
from tidegate import DirectoryStore, EventProcessorHost
from tidegate.processor import PartitionManagerOptions

async def handle(context, events):
    await context.checkpoint()
    print("handled", flush=True)

async def main():
    host = EventProcessorHost.from_connection_string(
        os.environ["TIDEGATE_CONNECTION_STRING"], sys.argv[1], store=DirectoryStore("leases"),
        host_name="same", manager_options=PartitionManagerOptions(lease_duration_s=600))
    async with host.running(handle):
        await host.wait()

asyncio.run(main())
"""


class _Counter:
    """Counts the events that a host handles."""

    def __init__(self) -> None:
        self.count = 0

    async def handle(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        self.count += len(events)
        await context.checkpoint()


def _host(service: HubService, hub: str, store: ProcessorStore, **arguments: object) -> EventProcessorHost:
    given = {"manager_options": QUICK, "options": PLAIN, "host_name": "same", **arguments}
    return EventProcessorHost(
        connection_string=service.hub_connection_string(hub),
        store=store,
        **given,  # type: ignore[arg-type]
    )


@pytest.mark.slow
async def test_the_second_live_host_of_a_name_ends_with_an_error(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """It handles nothing, the first is undisturbed, and the name is free at once when that has ended."""
    first, second, third = _Counter(), _Counter(), _Counter()
    host = _host(hub_service, event_hub, store)
    async with host.running(first.handle):
        await publish(hub_service, event_hub, 10)
        await until(lambda: first.count == 10)
        epochs = {key: each.epoch for key, each in host.statistics().partitions.items()}
        other = _host(hub_service, event_hub, store)
        with pytest.raises(AlreadyExistsError, match="has the name 'same' since 20"):
            async with other.running(second.handle):
                await other.wait()
        await publish(hub_service, event_hub, 10)
        await until(lambda: first.count == 20)
        assert {key: each.epoch for key, each in host.statistics().partitions.items()} == epochs
    async with _host(hub_service, event_hub, store, manager_options=_LONG).running(third.handle):
        await publish(hub_service, event_hub, 10)
        await until(lambda: third.count == 10)
    assert second.count == 0


async def test_a_killed_host_is_replaced_before_its_leases_expire(
    hub_service: HubService, event_hub: str, tmp_path: Path
) -> None:
    """Its successor on this machine sees that the process has ended."""
    await publish(hub_service, event_hub, 1)
    with subprocess.Popen(  # noqa: ASYNC220 - starts at once
        [sys.executable, "-c", _PROGRAM, event_hub],
        cwd=tmp_path,
        env=environment_of(hub_service),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"handled\n"
        process.send_signal(signal.SIGKILL)
    store, counter = DirectoryStore(tmp_path / "leases"), _Counter()
    host = _host(hub_service, event_hub, store, manager_options=_LONG)
    async with host.running(counter.handle):
        (claim,) = (await store.list_leases(host.group.names)).leases
        assert (await store.list_leases(host.group.names)).state(claim, 600) is LeaseState.HELD
        await publish(hub_service, event_hub, 5)
        await until(lambda: counter.count == 5)
    await store.close()


async def test_names_of_hosts_are_no_consumer_group(
    hub_service: HubService, event_hub: str, tmp_path: Path
) -> None:
    """Where all groups of a database are shown, theirs is not."""
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as database:
        store = SqlStore(database)
        host = _host(hub_service, event_hub, store)
        async with host.running(_Counter().handle):
            await until(lambda: bool(host.statistics().partitions))
            assert len((await store.list_leases(host.group.names)).leases) == 1
            assert list(read_group_views(database)) == [ConsumerKey(event_hub, "$default")]
        await store.close()


@pytest.mark.parametrize("process_id", ["9" * 5_000, "9" * 10, "4294967297", "-1", "x", ""])
def test_a_claim_of_no_process(process_id: str) -> None:
    """A store may be written by others: such a claim is one whose owner is not known to have ended."""
    assert not _has_ended(f"{_this_process()}{process_id}/1")
