"""``tidegate backup`` against a real service: under load, with kills, and read again once restored."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.support import COMMAND, Result, environment_without_service, run_tidegate
from tests.client.test_histories import read, reading, send

from tidegate.cli.service import backup as backup_command
from tidegate.client import (
    BackupProperties,
    EventHubAdministrator,
    EventHubConsumer,
    EventHubProducer,
    RetryPolicy,
)
from tidegate.model.errors import (
    LogDivergedError,
    NotFoundError,
    RemoteProtocolError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess, HubService
from tidegate.transport.tasks import TaskOwner

_HUB = "telemetry"
_PARTITIONS = 4


class _Load:
    """A producer that goes on over kills, and what the service has acknowledged."""

    def __init__(self, service: HubProcess) -> None:
        self._service = service
        self.acknowledged: set[str] = set()

    async def run(self) -> None:
        number = 0
        while True:
            try:
                async with EventHubProducer.from_connection_string(
                    self._service.connection_string, _HUB, retry=RetryPolicy(retries_max=0)
                ) as producer:
                    while True:
                        bodies = [f"{number}:{each}" for each in range(10)]
                        events = [EventData(body.encode() * 50) for body in bodies]
                        await producer.send(events, partition_id=str(number % _PARTITIONS))
                        self.acknowledged.update(bodies)
                        number += 1
            except TidegateError:
                number += 1
                await asyncio.sleep(0.05)


async def _bodies(service: HubService) -> set[str]:
    """All that a service has."""
    found: set[str] = set()
    async with EventHubConsumer.from_connection_string(service.connection_string, _HUB) as consumer:
        for partition_id in map(str, range(_PARTITIONS)):
            ends = await consumer.get_partition_properties(partition_id)
            async with await consumer.open_receiver(partition_id, EventPosition.earliest()) as receiver:
                last = -1
                while last < ends.last_enqueued_sequence_number:
                    events = await receiver.receive(1000, max_wait_s=20)
                    last = events[-1].sequence_number
                    found |= {event.body[: len(event.body) // 50].decode() for event in events}
    return found


@pytest.mark.faults
@pytest.mark.slow
async def test_a_backup_under_load_with_kills_has_what_was_acknowledged(tmp_path: Path) -> None:
    """A killed service, or a killed command, leaves a complete backup or none; complete ones are sound,
    start, and have every event that was acknowledged before the command."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    randomness = random.Random(seed)
    made: dict[Path, set[str]] = {}
    with HubProcess(tmp_path / "data") as service:
        service.create_hub(_HUB, partition_count=_PARTITIONS)
        load = _Load(service)
        async with TaskOwner("load") as tasks:
            tasks.start(load.run(), name="load")
            for number in range(6):
                destination = tmp_path / f"backup{number}"
                before = set(load.acknowledged)
                environment = environment_without_service(tmp_path) | {
                    "TIDEGATE_CONNECTION_STRING": service.connection_string
                }
                with subprocess.Popen(  # noqa: ASYNC220 - starts at once
                    [*COMMAND, "backup", str(destination)], env=environment
                ) as command:
                    victim = (None, "service", "command")[number % 3]
                    if victim is not None:
                        await asyncio.sleep(randomness.uniform(0.5, 1.2))
                    if victim == "service":
                        service.kill()
                        await asyncio.to_thread(service.start)
                    elif victim == "command":
                        command.kill()
                    code = await asyncio.to_thread(command.wait, 120)
                assert victim is not None or code == 0
                if destination.exists():
                    made[destination] = before
        await asyncio.to_thread(service.restart)
        assert not list((tmp_path / "data" / "backups").glob("*.new"))
    for destination, before in made.items():
        code = run_tidegate("check", str(destination), environment=environment_without_service(tmp_path)).code
        assert code == 0
        with HubService(destination) as restored:
            assert before <= await _bodies(restored)


def _run(service: HubService, directory: Path, *words: str) -> Result:
    environment = environment_without_service(directory)
    return run_tidegate(
        *words, environment=environment | {"TIDEGATE_CONNECTION_STRING": service.connection_string}
    )


async def test_a_restored_backup_knows_its_history(tmp_path: Path) -> None:
    """A reader that had read further gets LogDivergedError, once the log has grown again."""
    service = HubService(tmp_path / "data")
    with service:
        service.create_hub(_HUB, partition_count=1)
        await send(service, 50)
        made = _run(service, tmp_path, "backup", str(tmp_path / "backup"), "--json")
        assert made.code == 0, made.err
        assert json.loads(made.out) | {"bytes": None} == {
            "directory": str(tmp_path / "backup"),
            "partitions": 1,
            "events": 50,
            "bytes": None,
        }
        assert _run(service, tmp_path, "backup", str(tmp_path / "backup")).code != 0  # it exists
        await send(service, 100)
        async with reading(service, EventPosition.earliest()) as receiver:
            history_id = await read(receiver, 150)
            first_id = receiver.history_of(49)
    assert list((tmp_path / "data" / "backups").iterdir()) == []
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    with service:
        await send(service, 150)
        with pytest.raises(LogDivergedError, match="50"):
            async with reading(service, EventPosition.from_sequence_number(150, history_id=history_id)):
                pass
        position = EventPosition.from_sequence_number(50, history_id=first_id)
        async with reading(service, position) as receiver:
            await read(receiver, 200)


@pytest.mark.parametrize("is_failing", [False, True])
def test_another_file_system_gets_a_copy_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_failing: bool
) -> None:
    """With the service's certificates; a copy that fails leaves neither the directory nor a part of it."""
    place = tmp_path / "data" / "backups" / "name"
    (place / "logs" / "hub").mkdir(parents=True)
    (place / "logs" / "hub" / "segment").write_bytes(b"events")
    (tmp_path / "data" / "certificates").mkdir()
    (tmp_path / "data" / "certificates" / "ca.pem").write_bytes(b"certificate")
    destination = tmp_path / "elsewhere"
    rename = os.rename

    def renamed(source: Path, target: Path) -> None:
        if source == place:
            raise OSError(errno.EXDEV, "another file system")
        if is_failing:
            raise OSError(errno.EIO, "injected")
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)
    if is_failing:
        with pytest.raises(OSError, match="injected"):
            backup_command._move(place, destination)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]
        return
    backup_command._move(place, destination)
    found = {each.relative_to(destination): each for each in destination.rglob("*") if each.is_file()}
    assert {str(name): file.read_bytes() for name, file in found.items()} == {
        "certificates/ca.pem": b"certificate",
        "logs/hub/segment": b"events",
    }


@pytest.mark.slow
async def test_backups_need_manage_and_stand_in_the_audit_trail(hub_service: HubService) -> None:
    """Over $management, as over HTTP; a name that is none is not found."""
    text = hub_service.connection_string
    hub = hub_service.create_hub(partition_count=1)
    async with EventHubAdministrator.from_connection_string(text) as administrator:
        reader = await administrator.create_policy("reader", ["Listen"])
        manager = await administrator.create_policy("of-the-hub", ["Manage"], event_hub=hub)
        begun = await administrator.create_backup()
        while (made := await administrator.get_backup(begun.name)).state == "copying":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (made.state, made.failure) == ("complete", None)
        assert begun.name in {each.name for each in await administrator.list_backups()}
        for policy in (reader, manager):
            string = hub_service.hub_connection_string(hub).replace(
                "SharedAccessKeyName=RootManageSharedAccessKey", f"SharedAccessKeyName={policy.name}"
            )
            root = await administrator.get_policy("RootManageSharedAccessKey")
            string = string.replace(str(root.primary_key), str(policy.primary_key))
            async with EventHubAdministrator.from_connection_string(string) as other:
                with pytest.raises(UnauthorizedError):
                    await other.create_backup()
                with pytest.raises(UnauthorizedError):
                    await other.delete_backup(begun.name)
        await administrator.delete_backup(begun.name)
        for name in (begun.name, "../logs"):
            with pytest.raises(NotFoundError):
                await administrator.delete_backup(name)
        await administrator.delete_policy("reader")
    records: Sequence[tuple[str, str]] = hub_service.ask(
        lambda server: [(each.action, each.target) for each in server.broker.audit.newest_first()]
    )
    assert ("createBackup", f"backups/{begun.name}") in records
    assert ("deleteBackup", f"backups/{begun.name}") in records


@pytest.mark.parametrize(
    "place", ["{home}", "{home}/backups/x", "backups/{name}", "{home}/backups/{name}/", "{home}/../backups"]
)
def test_only_a_backups_own_directory_is_moved(tmp_path: Path, place: str) -> None:
    """A service may be another's, and name any directory of this machine."""
    name = "20261130T120000Z-0123abcd"
    named = place.format(home=tmp_path, name=name)
    made = BackupProperties(name, named, "complete", 1, 1, 1, 1, None)
    if Path(named) == tmp_path / "backups" / name:
        assert backup_command._place_of(made) == Path(named)
        with pytest.raises(RemoteProtocolError):
            backup_command._place_of(dataclasses.replace(made, name="../x"))
    else:
        with pytest.raises(RemoteProtocolError, match="names"):
            backup_command._place_of(made)
