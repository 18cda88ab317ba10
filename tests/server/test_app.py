"""The whole service: what it says it is, restarts, stops, and starts that fail."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from azure.eventhub.aio import EventHubProducerClient

from tidegate.cli.service.serve import _destinations
from tidegate.client import EventHubAdministrator
from tidegate.model.capture import CaptureSettings
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ClosedError, InvalidArgumentError, LogFailedError, TidegateError
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer, run_server
from tidegate.server.certificates import ensure_server_certificate
from tidegate.server.ready import ReadyInformation, profile_path
from tidegate.server.settings import ServerSettings
from tidegate.testing.hub import HubProcess, HubService
from tidegate.transport.clock import SystemClock
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event


def _settings(tmp_path: Path, **kwargs: object) -> ServerSettings:
    values: dict[str, object] = {"amqp_port": 0, "http_port": None, **kwargs}
    return ServerSettings(tmp_path / "data", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [(), ("elsewhere", "memory://captured")])
async def test_capture_writes_only_where_it_may(tmp_path: Path, given: tuple[str, ...]) -> None:
    """Below ``capture`` in the data directory, or below what the setting names; the refusal says so."""
    prefixes = tuple(each if "://" in each else str(tmp_path / each) for each in given)
    inside = f"{prefixes[0] if prefixes else tmp_path / 'data' / 'capture'}/mine"
    server = TidegateServer(_settings(tmp_path, capture_destinations=prefixes))
    await server.start()
    try:
        await server.broker.create_event_hub("hub", partition_count=1)
        await server.broker.set_capture("hub", CaptureSettings(inside))
        for outside in ("/etc", str(tmp_path), "memory://other", "s3://bucket/folder"):
            with pytest.raises(InvalidArgumentError, match="--capture-destination") as caught:
                await server.broker.set_capture("hub", CaptureSettings(outside))
            assert str(tmp_path) in str(caught.value)
        assert server.broker.event_hub("hub").description.capture == CaptureSettings(inside)
    finally:
        await server.close()


@pytest.mark.slow
def test_serve_takes_capture_destinations(tmp_path: Path) -> None:
    """Directories from where the command was called, and URLs; as often as they are given."""
    assert _destinations(("files", "s3://bucket/folder")) == (
        str(Path("files").absolute()),
        "s3://bucket/folder",
    )
    with HubProcess(tmp_path / "data") as process:  # which gives the option
        asyncio.run(_set_capture(process.connection_string, process.create_hub(), str(tmp_path / "files")))
        with pytest.raises(InvalidArgumentError, match="Allowed: "):
            asyncio.run(_set_capture(process.connection_string, process.create_hub(), "/etc"))


async def _set_capture(connection_string: str, hub: str, destination: str) -> None:
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
        await administrator.set_capture(hub, CaptureSettings(destination))


async def test_ready_information_of_all_faces(tmp_path: Path) -> None:
    """Addresses are where it listens, and each connection string is for the face it should be for."""
    server = TidegateServer(_settings(tmp_path, amqps_port=0, http_port=0, https_port=0))
    ready = await server.start()
    try:
        for address in (ready.amqp, ready.amqps, ready.http, ready.https):
            assert address is not None
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=30).close()
        assert ready.connection_string_plain is not None
        plain = ConnectionString.parse(ready.connection_string_plain)
        assert plain.use_development_emulator
        assert f"{plain.host}:{plain.port}" == ready.amqp
        secure = ConnectionString.parse(ready.connection_string)
        assert not secure.use_development_emulator
        assert (secure.host, str(secure.port)) == ("localhost", str(ready.amqps).rpartition(":")[2])
        assert ready.ca_file is not None
        assert Path(ready.ca_file).exists()
    finally:
        await server.close()
    with pytest.raises(ClosedError):
        _ = server.ready


@pytest.mark.sdk
async def test_a_certificate_of_your_own(tmp_path: Path) -> None:
    """It is what official clients see; the connection string names its host, and no authority is made."""
    made = ensure_server_certificate(tmp_path / "mine", [], clock=SystemClock())
    settings = _settings(tmp_path, amqps_port=0, tls_certificate=made.certificate_file, tls_key=made.key_file)
    server = TidegateServer(settings)
    ready = await server.start()
    try:
        assert ready.ca_file is None
        assert not (tmp_path / "data" / "certificates").exists()
        secure = ConnectionString.parse(ready.connection_string)
        assert secure.host == "localhost"
        await server.broker.create_event_hub("hub", partition_count=2)
        producer = EventHubProducerClient.from_connection_string(
            ready.connection_string,
            eventhub_name="hub",
            custom_endpoint_address=f"sb://localhost:{secure.port}",
            connection_verify=str(made.ca_file),
        )
        async with producer:
            assert await producer.get_partition_ids() == ["0", "1"]
    finally:
        await server.close()


async def test_key_and_hubs_survive_a_restart(tmp_path: Path) -> None:
    """Clients' connection strings stay good over a restart of the service."""
    server = TidegateServer(_settings(tmp_path))
    first = await server.start()
    await server.broker.create_event_hub("kept", partition_count=1)
    await server.close()
    again = TidegateServer(_settings(tmp_path))
    second = await again.start()
    assert [hub.name for hub in again.broker.list_event_hubs()] == ["kept"]
    await again.close()
    keys = [ConnectionString.parse(ready.connection_string).shared_access_key for ready in (first, second)]
    assert keys[0] == keys[1]


async def test_taken_port_names_it_and_leaves_nothing_running(tmp_path: Path) -> None:
    """A start that fails says which port, and releases the data directory."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for faces in ({"amqp_port": port}, {"http_port": port}):
            with pytest.raises(InvalidArgumentError, match=str(port)):
                await TidegateServer(_settings(tmp_path, **faces)).start()
    server = TidegateServer(_settings(tmp_path))
    await server.start()
    await server.close()


async def test_second_service_on_one_directory_is_refused(tmp_path: Path) -> None:
    """Two services never write one log."""
    server = TidegateServer(_settings(tmp_path))
    await server.start()
    try:
        with pytest.raises(TidegateError, match="data"):
            await TidegateServer(_settings(tmp_path)).start()
    finally:
        await server.close()


async def test_ready_until_it_stops(tmp_path: Path) -> None:
    """Protects rolling updates: while connections get time to finish, no new one is sent to this service."""
    server = TidegateServer(_settings(tmp_path, http_port=0, drain_timeout_s=30))
    ready = await server.start()
    assert ready.http is not None
    amqp, http = (int(str(address).rpartition(":")[2]) for address in (ready.amqp, ready.http))
    assert await _status(http, "/ready") == 200
    # A client that has begun and neither finishes nor leaves.
    reader, writer = await asyncio.open_connection("127.0.0.1", amqp)
    writer.write(b"AMQP\x03\x01\x00\x00")
    await reader.readexactly(8)
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(server.close())
        while (status := await _status(http, "/ready")) == 200:
            pass
        health, is_over = await _status(http, "/health"), stopping.done()
        writer.close()
    assert (status, health, is_over) == (503, 200, False)


async def _status(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_ready_file_and_profile_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ready file is there exactly while the service serves; the profile stays for later commands."""
    monkeypatch.setenv("TIDEGATE_CONFIG_DIR", str(tmp_path / "config"))
    ready_file = tmp_path / "ready.json"
    was_ready: list[ReadyInformation] = []
    is_ready = asyncio.Event()

    def on_ready(ready: ReadyInformation) -> None:
        was_ready.append(ready)
        is_ready.set()

    settings = _settings(tmp_path, ready_file=ready_file, is_profile_written=True)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_server(settings, on_ready=on_ready))
        await is_ready.wait()
        assert ReadyInformation.from_json(ready_file.read_text()) == was_ready[0]
        running.cancel()
    assert not ready_file.exists()
    assert profile_path(os.environ).exists()


async def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Starting and stopping logs nothing that would let a reader of the log in."""
    caplog.set_level(logging.DEBUG)
    server = TidegateServer(_settings(tmp_path, amqps_port=0))
    ready = await server.start()
    await server.close()
    key = ConnectionString.parse(ready.connection_string).shared_access_key
    assert key is not None
    assert key not in caplog.text


def test_hub_service_restarts_on_its_ports(tmp_path: Path) -> None:
    """Tests can cut a client's service off and bring it back where the client looks for it."""
    with HubService(tmp_path / "data") as service:
        hub = service.create_hub()
        before = service.ready
        service.restart()
        assert service.ready == before
        with pytest.raises(TidegateError, match=hub):
            service.create_hub(hub)


def test_hub_service_reports_a_failed_start(tmp_path: Path) -> None:
    """What hinders the service from starting is raised where the test started it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LogFailedError, match=r"Cannot create the data directory: .*file: "):
        HubService(tmp_path / "file").start()


@pytest.mark.slow
def test_hub_process_keeps_ports_over_a_kill(tmp_path: Path) -> None:
    """The subprocess variant comes back on its ports and data after SIGKILL, and stops on SIGTERM."""
    service = HubProcess(tmp_path / "data")
    hub = service.create_hub()
    with service:
        before = service.ready
        assert hub in service.hub_connection_string(hub)
        service.kill()
        service.start()
        assert service.ready == before
        service.stop()
    assert "Traceback" not in before.to_json()


@pytest.mark.parametrize(("host", "is_warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_a_root_key_that_everybody_knows_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, is_warned: bool
) -> None:
    """The official emulator's key is harmless on loopback, and an open door beyond it."""
    server = TidegateServer(_settings(tmp_path, host=host, root_key="SAS_KEY_VALUE"))
    ready = await server.start()
    await server.close()
    assert "SharedAccessKey=SAS_KEY_VALUE" in ready.connection_string
    assert any("which is public" in record.getMessage() for record in caplog.records) == is_warned
    assert "SAS_KEY_VALUE" not in caplog.text


async def test_nothing_in_the_data_directory_is_for_other_users(tmp_path: Path) -> None:
    """Events, keys and the audit trail are the service's user's alone, whatever the umask says."""
    earlier = os.umask(0)
    try:
        server = TidegateServer(_settings(tmp_path / "made", amqps_port=0, http_port=0))
        await server.start()
        hub = await server.broker.create_event_hub("hub", partition_count=1)
        event = wrap_event(encode_event(EventData(b"private")))
        await hub.partition("0").append(event, [len(event)])
        await server.close()
    finally:
        os.umask(earlier)
    found = {path for path in (tmp_path / "made").rglob("*") if path.stat().st_mode & 0o077}
    assert {path.name for path in found} == {"ca.pem", "server.pem"}  # in a directory that is not for others


@pytest.mark.slow
def test_a_service_loads_what_it_serves() -> None:
    """Each start waits for what is loaded: without HTTP, TLS and Capture half as long."""
    script = (
        "import sys\n"
        "import tidegate.server.app\n"
        "heavy = {'starlette', 'jinja2', 'prometheus_client', 'fastavro', 'cryptography', 'sqlalchemy'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "loaded: []"
