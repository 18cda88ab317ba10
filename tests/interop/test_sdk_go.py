"""The unmodified official Go SDK, over plain TCP, TLS and WebSocket: a program built where Go is present.

Skipped loudly where it is not, on build machines, too: issue 3 asks for it "from wherever the toolchain is
present". What is built goes to a temporary place and Go's own caches.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.interop.official_programs import check_processors, check_throttled_producer
from tests.interop.support import tls_connection_string
from tests.support.blob_storage import BlobStorage

from tidegate.testing.hub import HubService

FOLDER = Path(__file__).parent / "go"
BUILD_S_MAX = 240.0
"""The first build compiles the SDK: half a minute on two cores. Later ones take a second."""
RUN_S_MAX = 90.0


def build_program(folder: Path) -> Path:
    """The program, built in ``folder``; skips loudly where Go or the SDK is missing."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("NOT TESTED WITH THE GO SDK: there is no go on PATH.")
    # Modules first, and apart: a machine without a way to them is skipped, a program that is wrong is not.
    fetched = subprocess.run([go, "mod", "download"], cwd=FOLDER, capture_output=True, timeout=BUILD_S_MAX)
    if fetched.returncode != 0:
        pytest.skip(
            f"NOT TESTED WITH THE GO SDK: its modules cannot be had: {fetched.stderr.decode()[-500:]}"
        )
    target = folder / "main"
    subprocess.run([go, "build", "-o", str(target), "."], cwd=FOLDER, check=True, timeout=BUILD_S_MAX)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program."""
    return build_program(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module", params=["plain", "tls", "websocket"])
def report(
    request: pytest.FixtureRequest, hub_service: HubService, program: Path
) -> tuple[str, dict[str, Any]]:
    """The name of the hub, and what the SDK sent, received and was told, by each transport."""
    hub = hub_service.create_hub(partition_count=2)
    if request.param == "plain":
        arguments = [hub_service.connection_string, hub]
    else:
        assert hub_service.ready.ca_file is not None
        transport = request.param
        arguments = [tls_connection_string(hub_service, transport), hub, hub_service.ready.ca_file]
        arguments += [transport] if transport == "websocket" else []
    run = subprocess.run([program, *arguments], capture_output=True, timeout=RUN_S_MAX)
    assert run.returncode == 0, run.stderr.decode()
    return hub, json.loads(run.stdout)


def test_events_arrive_as_they_were_sent(report: tuple[str, dict[str, Any]]) -> None:
    """Batches to a partition and by key arrive in order, with properties, ids, key and system properties."""
    events = report[1]["events"]
    assert [event["body"] for event in events] == ["e0", "e1", "e2", "keyed", "1000000 bytes"]
    assert [event["sequence_number"] for event in events] == list(range(5))
    assert [event["partition_key"] for event in events] == [None, None, None, "a", None]
    first = events[0]
    assert first["properties"] == {"text": "żółw", "number": 7, "ratio": 0.5, "yes": True}
    assert (first["content_type"], first["message_id"], first["correlation_id"]) == (
        "text/plain",
        "message",
        "correlation",
    )
    enqueued = datetime.fromisoformat(first["enqueued_time"])
    assert abs((enqueued - datetime.now(UTC)).total_seconds()) < 300  # noqa: TID251 - compared with real time


def test_positions(report: tuple[str, dict[str, Any]]) -> None:
    """After a sequence number, from an offset inclusive, from a time: it starts where it says."""
    found = report[1]
    assert [event["body"] for event in found["from_sequence_number"]] == ["e2", "keyed"]
    assert [event["body"] for event in found["from_offset"]] == ["e1", "e2", "keyed"]
    assert [event["body"] for event in found["from_enqueued_time"]] == ["e0"]


def test_properties(report: tuple[str, dict[str, Any]]) -> None:
    """Hub and partition properties are read as the SDK reads them."""
    hub, found = report
    assert (found["event_hub"]["Name"], found["event_hub"]["PartitionIDs"]) == (hub, ["0", "1"])
    partition = found["partition"]
    assert (partition["BeginningSequenceNumber"], partition["LastEnqueuedSequenceNumber"]) == (0, 4)
    assert partition["IsEmpty"] is False


def test_owner_levels(report: tuple[str, dict[str, Any]]) -> None:
    """A higher owner level takes the partition, by the SDK's own error code; a lower one is refused."""
    found = report[1]
    assert found["stolen_code"] == "ownershiplost"
    assert "higher epoch of '2'" in found["stolen"]
    assert "higher epoch '2' already exists" in found["lower"]


def test_refusals(report: tuple[str, dict[str, Any]]) -> None:
    """The SDK knows the size limit from the link, and an unknown hub is named."""
    found = report[1]
    assert "too large" in found["too_large"]
    assert "no-such-hub" in found["unknown_hub"]


def test_processors_with_checkpoints(
    program: Path, hub_service: HubService, blob_storage: BlobStorage
) -> None:
    """Two of the SDK's processors with its blob store share the partitions; a third goes on behind them."""
    check_processors([str(program), "processor"], hub_service, blob_storage)


def test_throttled_producer_backs_off(program: Path) -> None:
    """Over the throughput units the SDK is told so, waits, and loses and doubles nothing."""
    check_throttled_producer([str(program), "throttled"], RUN_S_MAX)
