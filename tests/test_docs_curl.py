"""The curl page: each of its commands runs, and every administrative operation is among them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs_support import ROOT, environment_of

from tidegate.gateway.administration.operations import OPERATIONS
from tidegate.testing.hub import HubService

PAGE = (ROOT / "docs/guides/curl.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if "curl " in line]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """In order, in one shell, against a service of their own: none fails."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"database": f"sqlite:///{tmp_path / 'letters.db'}"}))
    with HubService(is_http_used=True, config=settings) as service:
        assert service.ready.http is not None
        program = "\n".join(BLOCKS).replace(
            "URL=http://127.0.0.1:5300", f"URL={service.ready.http.rstrip('/')}"
        )
        found = subprocess.run(
            ["bash", "-euxc", program],
            cwd=tmp_path,
            env=environment_of(service)
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "CAPTURE": str(Path(service.ready.data_dir) / "capture"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert found.returncode == 0, found.stderr[-2000:]
    assert len(COMMANDS) > 40


def test_every_operation_is_on_the_page() -> None:
    """By its method and path."""
    shown = set()
    for line in COMMANDS:
        place = re.search(r"\$API(/[^ )?\"]*)", line)
        if place is not None:
            method = re.search(r"-X (\w+)", line)
            shown.add((method[1] if method else "POST" if " -d " in line else "GET", place[1]))
    for operation in OPERATIONS:
        pattern = re.sub(r"\{\w+\}", "[^/]+", operation.path)
        assert any(each == operation.method and re.fullmatch(pattern, path) for each, path in shown), (
            operation
        )
