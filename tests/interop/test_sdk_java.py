"""The unmodified official Java SDK, over plain TCP and verified TLS: compiled where Java and Maven are.

Skipped loudly where they are not, on build machines, too: issue 3 asks for it "from wherever the toolchain is
present". What is compiled goes to a temporary place, what is fetched to Maven's own cache.
"""

from __future__ import annotations

import subprocess

import pytest
from tests.interop.java_programs import JAVA_5, QUICK_START, build, sources_of, trusting
from tests.interop.official_programs import check_processors, check_throttled_producer
from tests.interop.suites.suite import ToolMissingError
from tests.interop.support import tls_connection_string
from tests.support.blob_storage import BlobStorage

from tidegate.testing.hub import HubService

RUN_S_MAX = 120.0
"""The programs take 5 s, where the SDK waits for a busy service 15 s."""

Lines = dict[str, list[list[str]]]
"""First word of a line → the other words of each such line."""


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SDK and the compiled programs."""
    try:
        return build(JAVA_5, sources_of(JAVA_5), tmp_path_factory.mktemp("java"))
    except ToolMissingError as error:
        pytest.skip(f"NOT TESTED WITH THE JAVA SDK: {error}")


@pytest.fixture(scope="module", params=["plain", "tls"])
def report(
    request: pytest.FixtureRequest,
    hub_service: HubService,
    class_path: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Lines:
    """What the SDK received and was told, by each transport."""
    hub = hub_service.create_hub(partition_count=2)
    options = [*QUICK_START, "-cp", class_path]
    arguments = [hub_service.connection_string, hub]
    if request.param == "tls":
        assert hub_service.ready.ca_file is not None
        options += trusting(hub_service.ready.ca_file, tmp_path_factory.mktemp("trust") / "store")
        # With TLS the SDK looks at port 5671 of the string's host, elsewhere by the address beside it.
        address = tls_connection_string(hub_service)
        port = address.partition("localhost:")[2].partition("/")[0]
        arguments = [address.replace(f":{port}/", "/"), hub, f"https://localhost:{port}"]
    run = subprocess.run(["java", *options, "Main", *arguments], capture_output=True, timeout=RUN_S_MAX)
    assert run.returncode == 0, run.stderr.decode()
    lines: Lines = {}
    for line in run.stdout.decode().splitlines():
        first, *others = line.split("\t")
        lines.setdefault(first, []).append(others)
    return lines


def test_events_arrive_as_they_were_sent(report: Lines) -> None:
    """Batches to a partition and by key arrive in order, with properties, ids, key and sequence numbers."""
    assert report["event"] == [
        ["e0", "0", "null", "text/plain", "message", "correlation", "{number=7, text=żółw, yes=true}"],
        ["e1", "1", "null", "null", "null", "null", "{}"],
        ["e2", "2", "null", "null", "null", "null", "{}"],
        ["keyed", "3", "a", "null", "null", "null", "{}"],
    ]


def test_positions(report: Lines) -> None:
    """After a sequence number and after an offset it starts where it says."""
    assert [words[0] for words in report["after 1"]] == ["e2", "keyed"]
    assert [words[0] for words in report["after offset"]] == ["keyed"]


def test_properties(report: Lines) -> None:
    """The hub's partitions, and a partition's numbers, are read as the SDK reads them."""
    assert report["partitions"] == [["0,1"]]
    assert report["partition"] == [["0", "3", "false"]]


def test_owner_levels(report: Lines) -> None:
    """A higher owner level takes the partition, by the SDK's own name of the error."""
    ((condition, text),) = report["stolen"]
    assert condition == "LINK_STOLEN"
    assert "higher epoch of '2'" in text


@pytest.mark.programs
@pytest.mark.repeats
def test_processors_with_checkpoints(
    class_path: str, hub_service: HubService, blob_storage: BlobStorage
) -> None:
    """Two of the SDK's processors with its blob store share the partitions; a third goes on behind them."""
    check_processors(["java", *QUICK_START, "-cp", class_path, "Processor"], hub_service, blob_storage)


def test_throttled_producer_backs_off(class_path: str) -> None:
    """Over the throughput units the SDK is told so, waits, and loses and doubles nothing."""
    check_throttled_producer(["java", *QUICK_START, "-cp", class_path, "Throttled"], RUN_S_MAX)
