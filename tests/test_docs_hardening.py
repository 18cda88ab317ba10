"""The hardening guide's configurations are accepted by the programs they are for, and do what it says."""

from __future__ import annotations

import dataclasses
import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlencode

import pytest
from azure.eventhub import EventData
from tests.docs_support import ROOT
from tests.interop.support import WEBSOCKET, SdkTarget, bodies, read
from tests.support.absent import not_tested
from tests.support.ports import free_ports

from tidegate.gateway.metrics import METRICS
from tidegate.gateway.metrics import PREFIX as METRIC_PREFIX
from tidegate.model.connection_string import ConnectionString
from tidegate.server.certificates import ServerCertificate, ensure_server_certificate
from tidegate.server.config_file import load_settings
from tidegate.server.declared import DeclaredNamespace
from tidegate.server.settings import ServerSettings
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

PAGE = ROOT / "docs/guides/hardening.md"
DEBIAN_PAGE = ROOT / "docs/guides/debian.md"
_DEADLINE_S = 60.0
_NAME = "events.example.org"


def _block(name: str, page: Path = PAGE) -> str:
    """The configuration of the page whose first line says that it is this file."""
    (text,) = re.findall(
        rf"```\w+\n(# {re.escape(name)}\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )
    return str(text)


def _replaced(text: str, **replacements: str) -> str:
    """The text with what belongs to the page's machine replaced by what belongs to this one."""
    for wanted, found in replacements.items():
        assert wanted in text, wanted
        text = text.replace(wanted, found)
    return text


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin:/usr/local/sbin")
    return found if found is not None else _absent(name, package)


def _absent(name: str, package: str) -> NoReturn:
    not_tested(f"The hardening guide's {name} part is NOT tested: install Debian's {package}.")


def _run(*words: str | Path) -> str:
    found = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=_DEADLINE_S, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def test_the_settings_are_settings(tmp_path: Path) -> None:
    """The service starts with the page's file, and listens with TLS only."""
    path = tmp_path / "tidegate.toml"
    path.write_text(_block("tidegate.toml"), encoding="utf-8")
    settings = load_settings(path)
    assert (settings.amqp_port, settings.http_port) == (None, None)
    assert (settings.amqps_port, settings.https_port) == (5671, 5443)
    assert settings.tls_names == (_NAME,)


@pytest.mark.parametrize("name", ["tidegate.service", "tidegate-host.service"])
def test_the_unit_is_one_and_its_sandbox_is_tight(name: str, tmp_path: Path) -> None:
    """systemd knows each line of it, and rates the sandbox below 2 of 10."""
    analyze = _program("systemd-analyze", "systemd")
    unit = tmp_path / name
    text = _block("tidegate.service")
    if name == "tidegate-host.service":  # with the lines that the page's command copies
        (script,) = re.findall(r"^sed -n '(.*?)' ", DEBIAN_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        unit.write_text(text)
        text = f"{_block(name, DEBIAN_PAGE)}[Service]\n{_run('sed', '-n', script, unit)}"
    program = Path(sys.executable).parent / "tidegate"
    unit.write_text(text.replace("/opt/tidegate/bin/tidegate", str(program)))
    assert name not in _run(analyze, "verify", unit)  # it names the file where it complains
    # In tenths; it fails where the rating is worse, and says why.
    _run(analyze, "security", "--offline=true", "--threshold=20", "--no-pager", unit)


def test_the_firewall_rules_are_rules(tmp_path: Path) -> None:
    """nftables takes them all; nothing is loaded."""
    nft = _program("nft", "nftables")
    path = tmp_path / "nftables.conf"
    path.write_text(_block("nftables.conf"), encoding="utf-8")
    # In a network of its own, where whoever runs the test may ask.
    unshare = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    _run(*unshare, nft, "--check", "--file", path)


@pytest.mark.parametrize("page", ["docs/concepts/threat-model.md", "docs/guides/hardening.md", "SECURITY.md"])
def test_settings_defaults_and_metrics_are_what_the_code_has(page: str, tmp_path: Path) -> None:
    """A reader who relies on a limit finds it in the service, with that default."""
    declared = {each.name: each.default for each in dataclasses.fields(DeclaredNamespace)}
    defaults = declared | {each.name: each.default for each in dataclasses.fields(ServerSettings)}
    metrics = {f"{METRIC_PREFIX}{each.name}" for each in METRICS}
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, given in re.findall(r"`([a-z]+(?:_[a-z]+)+)`(?: \(([^);:]*))?", text):
        if name in metrics:
            continue
        assert name in defaults, name
        number = re.match(r"[\d,.]+", given)
        default = defaults[name]
        if number is None:
            is_named = isinstance(default, Enum) and given == f"`{default.value}`"
            assert given in ("", "none", "off") or default is None or is_named, f"{name} ({given})"
            assert given not in ("none", "off") or default in (None, (), False), f"{name} ({given})"
        elif isinstance(default, int | float):
            factor = 1024 * 1024 if given.endswith("MB") else 1
            assert float(number[0].rstrip(",").replace(",", "")) * factor == default, f"{name} ({given})"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HubService]:
    """A service that trusts a proxy on this machine, as the page's does."""
    config = tmp_path / "service.toml"
    config.write_text(f'tls_names = ["{_NAME}"]\ntrusted_proxies = ["127.0.0.1"]\n', encoding="utf-8")
    with HubService(is_tls_used=True, is_http_used=True, config=config) as running:
        yield running


@pytest.fixture(params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest, service: HubService, tmp_path: Path) -> Iterator[SdkTarget]:
    """The page's proxy before the service: the service's target, at the proxy's port and certificate."""
    front = ensure_server_certificate(tmp_path / "front", [_NAME], clock=SystemClock())
    (port,) = free_ports(1)
    start = _nginx if request.param == "nginx" else _caddy
    with start(service, front, port, tmp_path):
        yield SdkTarget(
            service.ready.connection_string,
            {
                "custom_endpoint_address": f"sb://localhost:{port}",
                "connection_verify": str(front.ca_file),
                **WEBSOCKET,
            },
        )


@contextmanager
def _nginx(service: HubService, front: ServerCertificate, port: int, directory: Path) -> Iterator[None]:
    program = _program("nginx", "nginx-light")
    replacements = _own(service) | {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/nginx/tls/fullchain.pem": str(front.certificate_file),
        "/etc/nginx/tls/privkey.pem": str(front.key_file),
        "/var/lib/tidegate/certificates/ca.pem": str(service.ready.ca_file),
    }
    (directory / "tidegate.conf").write_text(_replaced(_block("tidegate.conf"), **replacements))
    temporary = "".join(
        f"{name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {directory}/nginx.pid;\nerror_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}include tidegate.conf;\n}}\n"
    )
    with _running([program, "-p", str(directory), "-e", "stderr", "-c", "nginx.conf"], port):
        yield


@contextmanager
def _caddy(service: HubService, front: ServerCertificate, port: int, directory: Path) -> Iterator[None]:
    program = _program("caddy", "caddy")
    replacements = _own(service) | {
        # Its own certificate, instead of one that it would fetch.
        f"{_NAME} {{": f"localhost:{port} {{\n    tls {front.certificate_file} {front.key_file}",
        "/etc/caddy/tidegate-ca.pem": str(service.ready.ca_file),
    }
    options = "{\n    admin off\n    auto_https off\n}\n"
    path = directory / "Caddyfile"
    path.write_text(options + _replaced(_block("Caddyfile"), **replacements))
    with _running([program, "run", "--config", str(path), "--adapter", "caddyfile"], port):
        yield


def _own(service: HubService) -> dict[str, str]:
    return {"127.0.0.1:5443": f"127.0.0.1:{str(service.ready.https).rpartition(':')[2]}"}


@contextmanager
def _running(words: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            _wait_until_listening(process, port)
            yield
        finally:
            process.terminate()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + _DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > give_up_at:
                process.kill()
                output = b"" if process.stdout is None else process.stdout.read()
                pytest.fail(output.decode())
            time.sleep(0.01)


@pytest.mark.sdk
def test_a_proxy_lets_sdks_and_the_console_through(service: HubService, proxy: SdkTarget) -> None:
    """Official clients by WebSocket, signing in, live pages; cookies are for HTTPS only; nobody is local."""
    hub = service.create_hub(partition_count=1)
    with proxy.producer(hub) as producer:
        producer.send_event(EventData(b"through the proxy"))
    assert bodies(read(proxy.consumer(hub), count=1)) == ["through the proxy"]

    port = int(proxy.arguments["custom_endpoint_address"].rpartition(":")[2])
    context = ssl.create_default_context(cafile=proxy.arguments["connection_verify"])
    origin = f"https://localhost:{port}"

    def ask(method: str, path: str, form: dict[str, str] | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection("localhost", port, timeout=_DEADLINE_S, context=context)
        headers = {"Origin": origin, "Content-Type": "application/x-www-form-urlencoded"}
        body = None if form is None else urlencode(form)
        connection.request(method, path, body, headers if form is not None else {})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    assert ask("GET", "/health").status == 200
    assert ask("GET", "/metrics").status == 401
    assert ask("GET", "/console/sign-in").status == 200
    key = ConnectionString.parse(service.ready.connection_string).shared_access_key
    assert key is not None
    form = {"policy": "RootManageSharedAccessKey", "key": key, "next": "/", "hub": ""}
    answer = ask("POST", "/console/sign-in", form)
    assert answer.status == 303
    assert "secure" in str(answer.headers["Set-Cookie"]).lower()

    connection = http.client.HTTPSConnection("localhost", port, timeout=_DEADLINE_S, context=context)
    connection.request(
        "GET", f"/console/live/hubs/{hub}", headers={"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
    )
    stream = connection.getresponse()
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    # It comes while the answer goes on.
    assert stream.readline()
    connection.close()
