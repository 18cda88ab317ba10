"""What deploy/ holds fits the service: its metrics, options, ports and paths. promtool judges the rules."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from tests.docs_support import ROOT
from tests.support.absent import not_tested

from tidegate.cli.service.serve import serve
from tidegate.gateway.metrics import PREFIX
from tidegate.server.config_file import load_settings
from tidegate.testing.hub import HubService

DEPLOY = ROOT / "deploy"
PORTS = {5671, 5443}


def _yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def _promtool(*words: str | Path, text: str | None = None) -> str:
    program = shutil.which("promtool")
    if program is None:
        not_tested("The rules of deploy/prometheus are NOT tested: install Debian's prometheus.")
    found = subprocess.run(
        [program, *map(str, words)], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def _expressions() -> Iterator[str]:
    for group in _yaml("prometheus/alerts.yml")["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    dashboard = json.loads((DEPLOY / "grafana/dashboards/tidegate.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_rules_and_dashboard_use_metrics_that_exist() -> None:
    """A renamed metric would be an alert that never fires, and an empty panel."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(rf"^\| `({PREFIX}\w+)`", page, re.MULTILINE))
    used = {name for text in _expressions() for name in re.findall(rf"{PREFIX}\w+", text)}
    assert used
    assert used <= known


@pytest.mark.slow
def test_promtool_accepts_the_rules_and_they_fire_as_they_should(tmp_path: Path) -> None:
    """Their syntax, the configuration that loads them, and series that each of them is tried against."""
    _promtool("check", "rules", DEPLOY / "prometheus/alerts.yml")
    _promtool("test", "rules", DEPLOY / "prometheus/alerts.test.yml")
    text = (DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8")
    for name in ("metrics_token", "authority"):
        (tmp_path / name).write_text("x")
        text = text.replace(f"/run/secrets/{name}", str(tmp_path / name))
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "prometheus/alerts.yml", tmp_path)
    _promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")


def test_the_debian_page_scrapes_its_own_machine() -> None:
    """Its command finds everything in the scrape file that it replaces."""
    page = (ROOT / "docs/guides/debian.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^(sed -e .*) > ", page, re.MULTILINE)
    done = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True)
    jobs = yaml.safe_load(done.stdout)["scrape_configs"]
    assert [job["static_configs"] for job in jobs] == [
        [{"targets": ["localhost:5443"]}],
        [{"targets": ["localhost:9101"]}],
    ]
    assert "/run/secrets" not in done.stdout


def test_promtool_accepts_the_services_own_metrics(hub_service: HubService) -> None:
    """Names, types and help of the real page."""
    assert hub_service.ready.http is not None
    connection = HTTPConnection(hub_service.ready.http, timeout=60)
    connection.request("GET", "/metrics")
    with connection.getresponse() as response:
        text = response.read().decode()
    connection.close()
    assert f"{PREFIX}disk_bytes " in text
    _promtool("check", "metrics", text=text)


def _dockerfile() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_starts_the_service_with_options_that_exist() -> None:
    """And exposes the ports that it listens on; the health check is Python that compiles."""
    steps = dict(_dockerfile())
    words = json.loads(steps["CMD"])
    assert words[:2] == ["tidegate", "serve"]
    context = serve.make_context("serve", words[2:])
    assert {context.params["amqps_port"], context.params["https_port"]} == PORTS
    assert {int(port) for port in steps["EXPOSE"].split()} == PORTS
    assert str(context.params["data_dir"]) == steps["VOLUME"]
    check = json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[-1], "health check", "exec")


def test_the_image_is_built_with_the_locked_versions() -> None:
    """The step that makes constraints of the lock file leaves every requirement, and nothing else."""
    (step,) = (rest for word, rest in _dockerfile() if word == "RUN" and rest.startswith("sed "))
    done = subprocess.run(
        shlex.split(step.partition(" > ")[0]), cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = (line.strip() for line in done.stdout.splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len(found) > 100
    assert all(str(each.specifier).startswith("==") for each in found)


def test_the_image_installs_the_released_wheel_with_extras_that_exist() -> None:
    """The one for any machine, as `make release` names it; to pip a misspelt extra is only a warning."""
    copied = {word for step, rest in _dockerfile() if step == "COPY" for word in rest.split()[:-1]}
    assert {"requirements.lock", "dist/tidegate-*-py3-none-any.whl"} <= copied
    (step,) = (rest for word, rest in _dockerfile() if word == "RUN" and "/pip install " in rest)
    extras = re.findall(r"\w+", step.rpartition("[")[2])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "service" in extras
    assert set(extras) <= set(project["optional-dependencies"])


def test_kubernetes_ports_probes_and_settings_belong_together() -> None:
    """The pod's ports are those of its settings, and the probes ask for pages that the service has."""
    settings = load_settings(DEPLOY / "kubernetes/tidegate.toml")
    assert {settings.amqps_port, settings.https_port} == PORTS
    pod = _yaml("kubernetes/statefulset.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert named == {"amqps": settings.amqps_port, "https": settings.https_port}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        ask = container[probe]["httpGet"]
        assert ask["path"] in ("/ready", "/health")
        assert ask["port"] == "https"
    words = container["args"]
    serve.make_context("serve", words[2:])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.data_dir) in mounts
    ports = {port["targetPort"] for port in _yaml("kubernetes/service.yaml")["spec"]["ports"]}
    assert ports == set(named)
    assert pod["terminationGracePeriodSeconds"] > settings.drain_timeout_s
    assert _yaml("kubernetes/statefulset.yaml")["spec"]["replicas"] == 1


def test_compose_names_files_that_exist() -> None:
    """Its mounts and its build file; ports beyond loopback are for the operator to open."""
    compose = _yaml("compose/compose.yaml")
    folder = DEPLOY / "compose"
    for service in compose["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert source in compose["volumes"] or (folder / source).exists(), mount
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    build = compose["services"]["tidegate"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).is_file()


@pytest.mark.parametrize(
    "name", ["Dockerfile", "compose/compose.yaml", "kubernetes/kustomization.yaml", "prometheus/alerts.yml"]
)
def test_each_file_says_first_what_was_run(name: str) -> None:
    """So that nobody takes for tried what is not."""
    first = (DEPLOY / name).read_text(encoding="utf-8").splitlines()[0]
    assert re.match(r"# .*(not run here|no image was built|checked|never applied)", first, re.IGNORECASE), (
        first
    )
