"""The Grafana guide: Prometheus takes its file, scrapes a service, and answers what the dashboard asks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from tests.docs_support import ROOT
from tests.support.absent import not_tested
from tests.support.ports import free_ports

from tidegate.testing.hub import HubService

PAGE = (ROOT / "docs/guides/grafana.md").read_text(encoding="utf-8")
_DEADLINE_S = 60.0


@pytest.mark.slow
def test_prometheus_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    """With the page's configuration, every expression is understood, and those of the service have values."""
    if shutil.which("prometheus") is None:
        not_tested("The Grafana guide is NOT tested: install Debian's prometheus.")
    (text,) = re.findall(r"```yaml\n(# prometheus.yml\n.*?)```", PAGE, flags=re.DOTALL)
    shutil.copy(ROOT / "deploy/prometheus/alerts.yml", tmp_path)
    with HubService(is_http_used=True) as service:
        service.create_hub("telemetry", partition_count=1)
        text = text.replace("127.0.0.1:5300", str(service.ready.http)).replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
        with _prometheus(tmp_path) as address:
            _wait_for(address, 'sum(tidegate_partition_next_sequence_number{event_hub="telemetry"})')
            for expression in _expressions():
                _ask(address, expression)
            assert _ask(address, "tidegate_disk_free_bytes / tidegate_disk_bytes")


def _expressions() -> Iterator[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/tidegate.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$event_hub", ".*").replace("$__rate_interval", "1m")


@contextmanager
def _prometheus(directory: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    (command,) = re.findall(r"^prometheus .*$", PAGE, re.MULTILINE)
    words = command.replace("127.0.0.1:9090", f"127.0.0.1:{port}").split()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(address: str, expression: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            if _ask(address, expression):
                return
        except URLError as error:
            if isinstance(error, HTTPError) and error.code != 503:  # until it is ready
                raise
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _ask(address: str, expression: str) -> list[object]:
    with urlopen(f"{address}/api/v1/query?{urlencode({'query': expression})}") as answer:
        found: list[object] = json.load(answer)["data"]["result"]
    return found
