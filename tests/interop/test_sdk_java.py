"""The unmodified official Java SDK, over plain TCP and verified TLS: compiled where Java and Maven are.

Skipped loudly where they are not, on build machines, too: issue 3 asks for it "from wherever the toolchain is
present". What is compiled goes to a temporary place, what is fetched to Maven's own cache.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.interop.official_programs import check_processors, check_throttled_producer
from tests.interop.support import tls_connection_string

from tidegate.testing.azurite import AzuriteServer
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "java"
BUILD_S_MAX = 240.0
RUN_S_MAX = 120.0
"""The programs take 5 s, where the SDK waits for a busy service 15 s."""

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For programs that live for seconds."""

Lines = dict[str, list[list[str]]]
"""First word of a line → the other words of each such line."""


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SDK and the compiled programs."""
    tools = ("java", "javac", "keytool", "mvn")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"NOT TESTED WITH THE JAVA SDK: not on PATH: {', '.join(missing)}.")
    folder = tmp_path_factory.mktemp("java")
    listed = folder / "class-path"
    # The SDK first, and apart: a machine without a way to it is skipped, a program that is wrong is not.
    command = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), "dependency:build-classpath"]
    fetched = subprocess.run(
        [*command, f"-Dmdep.outputFile={listed}"], capture_output=True, timeout=BUILD_S_MAX
    )
    if fetched.returncode != 0:
        pytest.skip(f"NOT TESTED WITH THE JAVA SDK: Maven cannot fetch it: {fetched.stdout.decode()[-500:]}")
    path = listed.read_text().strip()
    sources = sorted(str(source) for source in (FOLDER / "src" / "main" / "java").glob("*.java"))
    subprocess.run(
        ["javac", "-encoding", "UTF-8", "-cp", path, "-d", str(folder), *sources],
        check=True,
        timeout=BUILD_S_MAX,
    )
    return f"{path}:{folder}"


@pytest.fixture(scope="module", params=["plain", "tls"])
def report(
    request: pytest.FixtureRequest,
    hub_service: HubService,
    class_path: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Lines:
    """What the SDK received and was told, by each transport."""
    hub = hub_service.create_hub(partition_count=2)
    options = ["-Dstdout.encoding=UTF-8", "-Dfile.encoding=UTF-8", "-cp", class_path]
    arguments = [hub_service.connection_string, hub]
    if request.param == "tls":
        options += _trusting(hub_service, tmp_path_factory.mktemp("trust") / "store")
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


def _trusting(service: HubService, store: Path) -> list[str]:
    """Java's options for a trust store with the service's certificate authority, made at ``store``."""
    assert service.ready.ca_file is not None
    password = "not a secret"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", service.ready.ca_file]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", password]
    subprocess.run(command, check=True, capture_output=True, timeout=RUN_S_MAX)
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]


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


def test_processors_with_checkpoints(
    class_path: str, hub_service: HubService, azurite: AzuriteServer
) -> None:
    """Two of the SDK's processors with its blob store share the partitions; a third goes on behind them."""
    check_processors(["java", *QUICK_START, "-cp", class_path, "Processor"], hub_service, azurite)


def test_throttled_producer_backs_off(class_path: str) -> None:
    """Over the throughput units the SDK is told so, waits, and loses and doubles nothing."""
    check_throttled_producer(["java", *QUICK_START, "-cp", class_path, "Throttled"], RUN_S_MAX)
