"""Azure's Go SDK: its own live tests, unmodified, from the module's zip that Go's proxy serves.

Both packages with live tests run, azeventhubs and azeventhubs/checkpoints. tests/interop/go/go.sum pins the
module; the zip's own go.sum pins what the tests need. One package is replaced, by ``replace`` in a copy of
the module file: test/credential of sdk/internal, which signs in to Azure.

The tests dial a namespace's host name at ports 5671 and 443, so the namespace is ``[::1]``, forwarded from
there. 127.0.0.1 would not do: a test wants to be refused at its port 5671.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.interop import test_sdk_go
from tests.interop.suites.service import BUILD, ROOT, SuiteService
from tests.interop.suites.suite import Case, Outcome, Suite, ToolMissingError, Transport
from tests.support.azurite import AzuriteServer
from tests.support.servers import ServerMissingError

from tidegate.client import EventHubAdministrator
from tidegate.model.connection_string import ConnectionString

FOLDER: Final = Path(__file__).parents[1] / "go"
MODULE: Final = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
INTERNAL: Final = "github.com/Azure/azure-sdk-for-go/sdk/internal"
PROGRAMS: Final = {"azeventhubs": ".", "checkpoints": "./checkpoints"}
"""Name of a package's test program → where it is in the module."""
HOST: Final = "[::1]"
NOT_SELF_HOSTED: Final = {
    "TestConsumerClient_GeoReplication": "It needs a namespace with geo-replication.",
    "TestConsumerClient_Detaches": "It disables the event hub over Azure Resource Manager.",
}
PROGRAM_CHECKS: Final = (
    test_sdk_go.test_events_arrive_as_they_were_sent,
    test_sdk_go.test_positions,
    test_sdk_go.test_properties,
    test_sdk_go.test_owner_levels,
    test_sdk_go.test_refusals,
)
ALL_S_MAX: Final = 900.0
_OUTCOMES: Final = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}
_DETAIL_MAX: Final = 1000


class GoLiveTests(Suite):
    """The SDK's tests, one case per function."""

    def prepare(self) -> None:
        """Copy the modules out of Go's cache, and build the tests."""
        go = shutil.which("go")
        if go is None:
            raise ToolMissingError("there is no go on PATH")
        target = BUILD / "go"
        modules = {"azeventhubs": _download(go, MODULE), "internal": _download(go, INTERNAL)}
        shutil.rmtree(target, ignore_errors=True)
        for name, source in modules.items():
            shutil.copytree(source, target / name, copy_function=shutil.copyfile)
        credential = target / "internal" / "test" / "credential"
        shutil.rmtree(credential)
        shutil.copytree(FOLDER / "credential", credential)
        module_file = (target / "azeventhubs" / "go.mod").read_text()
        (target / "live.mod").write_text(f"{module_file}\nreplace {INTERNAL} => ../internal\n")
        shutil.copyfile(target / "azeventhubs" / "go.sum", target / "live.sum")
        for name, package in PROGRAMS.items():
            command = [
                go,
                "test",
                "-p",
                "1",
                "-modfile",
                "../live.mod",
                "-c",
                "-o",
                f"../{name}.test",
                package,
            ]
            subprocess.run(command, cwd=target / "azeventhubs", check=True, timeout=ALL_S_MAX)

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterator[Case]:
        """Skipped are those that need Azure itself."""
        folder = service.data_dir / "certificates"
        with ExitStack() as stack:
            for port, other in ((5671, Transport.TLS), (443, Transport.WEBSOCKET)):
                stack.enter_context(_forward(port, service.port_for(other)))
            try:
                azurite = AzuriteServer(
                    ROOT / "tests" / "azurite", certificate=(folder / "server.pem", folder / "server.key")
                )
            except ServerMissingError as error:
                raise ToolMissingError(str(error)) from error
            environment = _environment(service, stack.enter_context(azurite))
            for name in PROGRAMS:
                yield from _run_tests(name, environment, cases)
        for name, reason in NOT_SELF_HOSTED.items():
            if not cases or name in cases:
                yield Case(name, Outcome.SKIPPED, reason)


class GoProgram(Suite):
    """The calls of tests/interop/go/main.go; the tests of test_sdk_go.py judge what they brought."""

    def prepare(self) -> None:
        """Build it."""
        go = shutil.which("go")
        if go is None:
            raise ToolMissingError("there is no go on PATH")
        _download(go, MODULE)
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-p", "1", "-o", f"{BUILD}/go-program", "."]
        subprocess.run(command, cwd=FOLDER, check=True, timeout=ALL_S_MAX)

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterator[Case]:
        """All calls are made once, and each test is a case."""
        hub = service.create_hub(partition_count=2)
        command = [f"{BUILD}/go-program", service.connection_string_for(transport), hub]
        if transport is not Transport.PLAIN:
            command += [service.ca_file, "websocket"][: 2 if transport is Transport.WEBSOCKET else 1]
        made = subprocess.run(command, capture_output=True, text=True, timeout=test_sdk_go.RUN_S_MAX)
        for check in PROGRAM_CHECKS:
            name = check.__name__.removeprefix("test_").replace("_", " ")
            if cases and name not in cases:
                continue
            try:
                check((hub, json.loads(made.stdout)))
            except (AssertionError, KeyError, json.JSONDecodeError) as error:
                yield Case(name, Outcome.FAILED, f"{error!r} {made.stdout[:500]} {made.stderr[-500:]}")
            else:
                yield Case(name, Outcome.PASSED)


def _download(go: str, module: str) -> Path:
    """Where Go's cache has the module, in the version of tests/interop/go/go.mod, its checksum verified."""
    found = subprocess.run(
        [go, "mod", "download", "-json", module], cwd=FOLDER, capture_output=True, text=True
    )
    if found.returncode != 0:
        raise ToolMissingError(f"its modules cannot be fetched: {found.stdout[-500:]}{found.stderr[-500:]}")
    return Path(json.loads(found.stdout)["Dir"])


def _run_tests(program: str, environment: dict[str, str], cases: Sequence[str]) -> Iterator[Case]:
    """The test functions of one package, each once it has ended."""
    folder, binary = BUILD / "go" / "azeventhubs" / PROGRAMS[program], f"{BUILD}/go/{program}.test"
    listed = subprocess.check_output([binary, "-test.list", "^Test"], cwd=folder, text=True).split()
    missing = {name for name in listed if not cases or name in cases} - NOT_SELF_HOSTED.keys()
    command = ["go", "tool", "test2json", "-t", binary, "-test.v=test2json"]
    command += ["-test.timeout", f"{ALL_S_MAX:.0f}s", "-test.skip", f"^({'|'.join(NOT_SELF_HOSTED)})$"]
    if cases:
        command += ["-test.run", f"^({'|'.join(cases)})$"]
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    written: dict[str, str] = {}
    try:
        with process.stdout:
            for line in process.stdout:
                event = json.loads(line)
                name = event.get("Test", "").partition("/")[0]
                written[name] = (written.get(name, "") + event.get("Output", ""))[-20_000:]
                if event["Action"] in _OUTCOMES and event.get("Test") == name:
                    missing.discard(name)
                    yield _case(name, _OUTCOMES[event["Action"]], written[name])
        for name in sorted(missing):
            yield Case(name, Outcome.FAILED, "The program ended before it.")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _case(name: str, outcome: Outcome, written: str) -> Case:
    told = [
        line.strip()
        for line in re.split(r"Error Trace:|\n", written)
        if not line.startswith(("=== ", "[azeh"))
    ]
    return Case(name, outcome, " ".join(told)[-_DETAIL_MAX:])


def _environment(service: SuiteService, azurite: AzuriteServer) -> dict[str, str]:
    """What the live tests want to know of the namespace (internal/test/test_helpers.go)."""
    hub, links_only = service.create_hub(), service.create_hub()
    root = ConnectionString.parse(service.connection_string)
    given = {
        "EVENTHUB_CONNECTION_STRING": (root.shared_access_key_name, root.shared_access_key),
        "EVENTHUB_CONNECTION_STRING_LISTEN_ONLY": asyncio.run(_policy(service, "Listen")),
        "EVENTHUB_CONNECTION_STRING_SEND_ONLY": asyncio.run(_policy(service, "Send")),
    }
    return {
        name: f"Endpoint=sb://{HOST}/;SharedAccessKeyName={policy};SharedAccessKey={key}"
        for name, (policy, key) in given.items()
    } | {
        "EVENTHUB_NAMESPACE": HOST,
        "EVENTHUB_NAME": hub,
        "EVENTHUB_LINKSONLY_NAME": links_only,
        "CHECKPOINTSTORE_STORAGE_ENDPOINT": azurite.endpoint,
        "AZURE_SUBSCRIPTION_ID": "none",
        "RESOURCE_GROUP": "none",
        "SSL_CERT_FILE": service.ca_file,
    }


async def _policy(service: SuiteService, claim: str) -> tuple[str, str]:
    """A policy of the namespace with one claim, and its key."""
    async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
        policy = await administrator.create_policy(f"{claim}Only", [claim])
    assert policy.primary_key is not None
    return policy.name, policy.primary_key


@contextmanager
def _forward(port: int, target: int) -> Iterator[None]:
    """Pass connections to ``[::1]:port`` on to the service's port. Raises ToolMissingError."""
    try:
        listener = socket.create_server(("::1", port), family=socket.AF_INET6)
    except OSError as error:
        raise ToolMissingError(f"port {port} of {HOST} cannot be had: {error}") from error

    def accept() -> None:
        with suppress(OSError):
            while True:
                line, _ = listener.accept()
                other = socket.create_connection(("127.0.0.1", target))
                for ends in ((line, other), (other, line)):
                    threading.Thread(target=_copy, args=ends, daemon=True).start()

    threading.Thread(target=accept, name=f"forward {port}", daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _version() -> str:
    found = re.search(rf"{re.escape(MODULE)} v(\S+)", (FOLDER / "go.mod").read_text())
    assert found is not None
    return found[1]


SUITES = (
    GoLiveTests(name="go", sdk="azeventhubs/v2", version=_version(), transports=(Transport.TLS,)),
    GoProgram(name="go-program", sdk="azeventhubs/v2", version=_version(), transports=tuple(Transport)),
)
