"""A pytest plugin that lets the Python SDK's own live tests run, unmodified, against Tidegate.

The tests take their event hubs from Azure's management client, their credentials from Azure's identities, and
reach a namespace by its name in Azure. Here the same names lead to Tidegate and Azurite on loopback, and to
nothing else. Each test is reported as one JSON line, as ``tests.interop.suites.programs`` reads it.

It is loaded with ``-p`` by a pytest of its own and imports nothing of Tidegate, so that the SDK meets the
service only over the network.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

import certifi
import pytest
from azure.eventhub import EventHubSharedKeyCredential, TransportType, parse_connection_string
from azure.eventhub._configuration import Configuration
from azure.eventhub.aio import EventHubSharedKeyCredential as AsyncSharedKeyCredential

NAMESPACE: Final = "tidegate"
HOST: Final = f"{NAMESPACE}.servicebus.windows.net"
_CONNECTION: Final = parse_connection_string(os.environ["TIDEGATE_CONNECTION_STRING"])
_HTTPS_URL: Final = os.environ["TIDEGATE_HTTPS_URL"]
_CA_FILE: Final = os.environ["TIDEGATE_CA_FILE"]
_PORTS: Final = {5671: int(os.environ["TIDEGATE_AMQPS_PORT"]), 443: urlsplit(_HTTPS_URL).port}
"""The port that the SDK asks for → where the service listens."""
_POLICY: Final = str(_CONNECTION.shared_access_key_name)
_KEY: Final = str(_CONNECTION.shared_access_key)


# Names and trust


_getaddrinfo: Final = socket.getaddrinfo


def _resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
    """As ``getaddrinfo``: the namespace is on loopback, and no name leads anywhere else."""
    name = host.decode() if isinstance(host, bytes) else host
    if name == HOST:
        return _getaddrinfo("127.0.0.1", _PORTS[int(port)], *arguments, **options)
    if name in (None, "localhost", "127.0.0.1"):
        return _getaddrinfo(host, port, *arguments, **options)
    raise socket.gaierror(socket.EAI_NONAME, f"{name} is not on this machine")


def _prefer_websocket() -> None:
    """What tests leave open goes over WebSocket; some name their transport.

    With the read timeout of TCP (documented: 0.2 s there, 1 s over WebSocket), which the tests
    are made for: ``receive`` gives one event per read that finds nothing more.
    """
    original = Configuration.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        options["transport_type"] = options.get("transport_type") or TransportType.AmqpOverWebsocket
        options["socket_timeout"] = options.get("socket_timeout") or 0.2
        original(self, *arguments, **options)

    Configuration.__init__ = made  # type: ignore[method-assign]


def _redirect() -> None:
    socket.getaddrinfo = _resolve
    certifi.where = lambda: _CA_FILE
    from azure.eventhub.extensions import checkpointstoreblob, checkpointstoreblobaio

    for package in (checkpointstoreblob, checkpointstoreblobaio):
        blob = package._vendor.storage.blob
        for module in (blob, *([blob.aio] if package is checkpointstoreblobaio else [])):
            _use_azurite(module.BlobServiceClient)
            _use_azurite(module.ContainerClient)


def _use_azurite(client: Any) -> None:
    """Whatever account a blob client is made for, it is Azurite's."""
    parts = dict(part.split("=", 1) for part in os.environ["AZURITE_CONNECTION_STRING"].split(";") if part)
    original = client.__init__

    def made(
        self: Any, account_url: str, container_name: Any = None, credential: Any = None, **options: Any
    ) -> None:
        if client.__name__ == "ContainerClient":
            options["container_name"] = container_name
        credential = {"account_name": parts["AccountName"], "account_key": parts["AccountKey"]}
        original(self, parts["BlobEndpoint"], credential=credential, **options)

    client.__init__ = made


# Management and identities


def _ask(method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Ask the service's administration; None where it has no such thing."""
    token = EventHubSharedKeyCredential(_POLICY, _KEY).get_token(f"{_HTTPS_URL}/").token
    headers = {"Content-Type": "application/json", "Authorization": token}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{_HTTPS_URL}/api/v1{path}", data, headers, method=method)
    context = ssl.create_default_context(cafile=_CA_FILE)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


class _EventHubs:
    """As ``EventHubManagementClient.event_hubs``."""

    def create_or_update(
        self, group: str, namespace: str, name: str, parameters: Mapping[str, Any]
    ) -> SimpleNamespace:
        days = parameters.get("message_retention_in_days", 1)
        settings = {"retention_hours": 24 * days}
        if _ask("GET", f"/event-hubs/{name}") is None:
            count = parameters["partition_count"]
            _ask("POST", "/event-hubs", {"name": name, "partition_count": count, **settings})
        else:
            _ask("PATCH", f"/event-hubs/{name}", settings)
        return self.get(group, namespace, name)

    def get(self, group: str, namespace: str, name: str) -> SimpleNamespace:
        hub = _ask("GET", f"/event-hubs/{name}")
        shown = {
            "name": name,
            "partition_count": len(hub["partition_ids"]),
            "message_retention_in_days": hub["retention_hours"] // 24,
        }
        return SimpleNamespace(name=name, as_dict=lambda: dict(shown))

    def delete(self, group: str, namespace: str, name: str) -> None:
        _ask("DELETE", f"/event-hubs/{name}")


class _Namespaces:
    """As ``EventHubManagementClient.namespaces``: there is one, whatever name it is made with."""

    def begin_create_or_update(self, *arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(result=lambda: SimpleNamespace(name=NAMESPACE))

    def begin_delete(self, *arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(wait=lambda: None)

    def list_keys(self, group: str, namespace: str, rule: str) -> SimpleNamespace:
        string = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={_POLICY};SharedAccessKey={_KEY}"
        return SimpleNamespace(key_name=_POLICY, primary_key=_KEY, primary_connection_string=string)


class _EventHubManagementClient:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.event_hubs = _EventHubs()
        self.namespaces = _Namespaces()


class _ResourceManagementClient:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.resource_groups = SimpleNamespace(
            create_or_update=lambda name, parameters: SimpleNamespace(name=name),
            begin_delete=lambda name: None,
        )


def _credential(*arguments: Any, is_async: bool = False, **options: Any) -> Any:
    """A credential that makes tokens, as one of Azure's identities does."""
    return (AsyncSharedKeyCredential if is_async else EventHubSharedKeyCredential)(_POLICY, _KEY)


def _async_credential(*arguments: Any, **options: Any) -> Any:
    return _credential(is_async=True)


def _add_module(name: str, **names: Callable[..., Any]) -> None:
    module = ModuleType(name)
    module.__dict__.update(names)
    module.__path__ = []
    sys.modules[name] = module


def _add_modules() -> None:
    _add_module("devtools_testutils", get_credential=_credential, get_region_override=lambda default: default)
    identities = ("EnvironmentCredential", "DefaultAzureCredential")
    _add_module("azure.identity", **dict.fromkeys(identities, _credential))
    _add_module("azure.identity.aio", **dict.fromkeys(identities, _async_credential))
    _add_module("azure.mgmt")
    _add_module("azure.mgmt.eventhub", EventHubManagementClient=_EventHubManagementClient)
    _add_module("azure.mgmt.resource", ResourceManagementClient=_ResourceManagementClient)
    os.environ.update(
        AZURE_SUBSCRIPTION_ID="none",
        EVENTHUB_RESOURCE_GROUP="none",
        EVENT_HUB_NAMESPACE=NAMESPACE,
        AZURE_STORAGE_ACCOUNT="tidegate",
    )


_redirect()
_add_modules()
if os.environ["TIDEGATE_TRANSPORT"] == "websocket":
    _prefer_websocket()


# Reports

_NOT_OVER_WEBSOCKET: Final = {
    "test_client_invalid_credential[pyamqp]": "It expects FileNotFoundError for a CA file that is not "
    "there; over WebSocket the SDK raises EventHubError for it."
}
"""Name of a test → why it can only pass over TCP."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what the transport rules out."""
    if os.environ["TIDEGATE_TRANSPORT"] == "websocket":
        for item in items:
            if item.name in _NOT_OVER_WEBSOCKET:
                item.add_marker(pytest.mark.skip(_NOT_OVER_WEBSOCKET[item.name]))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line per test: its failure in any phase, else its skip, else that it passed."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # The process that started this one reports.
    if report.failed:
        _report(report.nodeid, "failed", _last_line(report))
        _failed.add(report.nodeid)
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        is_ours = reason in _NOT_OVER_WEBSOCKET.values()
        _report(report.nodeid, "skipped", reason if is_ours else f"The SDK skips it: {reason}")
        _failed.add(report.nodeid)
    elif report.when == "teardown" and report.nodeid not in _failed:
        _report(report.nodeid, "passed", "")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Failed tests have been reported: only what keeps tests from running is an exit code."""
    if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is a failed case."""
    if report.failed:
        _report(report.nodeid, "failed", str(report.longrepr).strip().splitlines()[-1])


_failed: Final[set[str]] = set()


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr)[-300:]
    return f"{os.path.basename(crash.path)}:{crash.lineno}: {crash.message.splitlines()[0][:300]}"


def _report(name: str, outcome: str, detail: str) -> None:
    line = json.dumps({"name": name, "outcome": outcome, "detail": detail})
    os.write(1, f"\n{line}\n".encode())  # Progress dots stand before it.
