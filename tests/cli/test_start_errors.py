"""Starts that fail, and starts on damaged data: what the operator is told."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from array import array
from pathlib import Path

import pytest
from tests.cli.support import run_tidegate

from tidegate.server.app import TidegateServer
from tidegate.server.opening import open_broker
from tidegate.server.settings import ServerSettings
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.wire.batch import wrap_event


@pytest.mark.parametrize(
    ("blocked", "step"),
    [
        (".", "create the data directory"),
        ("logs", "list the logs"),
        ("lock", "prepare the data directory"),
        ("control.log", "read the control log"),
        ("certificates", "prepare the certificate"),
        ("ready.json", "remove the old ready file"),
    ],
)
@pytest.mark.slow
def test_an_error_at_the_start_names_file_step_and_remedy(
    tmp_path: Path, lonely: dict[str, str], blocked: str, step: str
) -> None:
    """D21: a file where a directory is needed, or the reverse, at each step."""
    data = tmp_path / "data"
    path = data / blocked
    if blocked in ("lock", "control.log", "ready.json"):
        path.mkdir(parents=True)
        (path / "x").touch()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("in the way")
    ports = ["--amqps-port" if blocked == "certificates" else "--amqp-port", "0"]
    words = ["serve", "--data-dir", str(data), "--ready-file", str(data / "ready.json"), *ports]
    finished = run_tidegate(*words, environment=lonely)
    assert finished.code == 1
    message = " ".join(finished.err.split())
    assert f"Cannot {step}: {path.resolve()}" in message
    assert "Move that file away" in message
    assert "Errno" not in message
    assert "Traceback" not in message


def test_a_busy_port_is_said_once(hub_service: HubService, lonely: dict[str, str], tmp_path: Path) -> None:
    """One sentence: which address, why, and what helps."""
    address = hub_service.ready.amqp
    assert address is not None
    port = address.rpartition(":")[2]
    words = ["serve", "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.1", "--amqp-port", port]
    finished = run_tidegate(*words, environment=lonely)
    assert finished.code == 2
    assert f"Cannot listen on {address}: Address already in use. Use another port" in finished.err
    assert finished.err.count(address) == 1


async def test_a_damaged_partition_is_reported_and_the_service_starts(tmp_path: Path) -> None:
    """D12: in /health and in /metrics (the console: ``test_hubs_page``)."""
    broker = await open_broker(tmp_path, clock=SystemClock())
    hub = await broker.create_event_hub("hub", partition_count=2)
    section = wrap_event(b"\x00\x53\x75\xa0\x01x")
    for partition in hub.partitions:
        await partition.append(section, array("I", (len(section),)))
    await broker.close()
    shutil.rmtree(tmp_path / "logs" / hub.description.hub_id / "1")
    server = TidegateServer(ServerSettings(tmp_path, amqp_port=0, http_port=0))
    ready = await server.start()
    try:

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://{ready.http}{path}") as response:
                return str(response.read().decode())

        assert json.loads(await asyncio.to_thread(get, "/health")) == {
            "status": "degraded",
            "event_hubs": 1,
            "problems": ["1 partitions could not be opened and refuse all requests; see its log"],
        }
        metrics = await asyncio.to_thread(get, "/metrics")
        assert 'tidegate_failed_partitions{event_hub="hub"} 1.0' in metrics
        assert 'tidegate_unopened_partitions{event_hub="hub"} 1.0' in metrics
        assert 'tidegate_partition_next_sequence_number{event_hub="hub",partition="0"} 1.0' in metrics
        assert 'next_sequence_number{event_hub="hub",partition="1"}' not in metrics
        assert server.broker.event_hub("hub").partitions[0].next_sequence_number == 1
    finally:
        await server.close()
