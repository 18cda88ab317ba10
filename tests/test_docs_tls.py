"""The TLS guide: its commands and its program run, and show what they should, over TLS alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs_support import ROOT, write_programs

from tidegate.testing.hub import HubService

PAGE = (ROOT / "docs/guides/tls.md").read_text(encoding="utf-8")
_NOT_RUN = ("tidegate serve", "export ")
"""The test has these already."""


@pytest.mark.sdk
def test_the_commands_of_the_guide_run(tmp_path: Path) -> None:
    """In order, in one shell; the service's ports stand for those of the page."""
    write_programs(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if not line.startswith(_NOT_RUN)]
    with HubService(is_tls_used=True, is_http_used=True) as service:
        ready = service.ready
        assert ready.amqps is not None
        assert ready.https is not None
        assert ready.ca_file is not None
        program = (
            "\n".join(lines).replace("localhost:5671", ready.amqps).replace("localhost:5443", ready.https)
        )
        path = tmp_path / "over_tls.py"  # the SDK ignores the port in a connection string
        text = path.read_text(encoding="utf-8").replace(
            "connection_verify=authority",
            "connection_verify=authority, transport_type=TransportType.Amqp, "
            f"custom_endpoint_address='sb://{ready.amqps}'",
        )
        path.write_text(f"from azure.eventhub import TransportType\n{text}", encoding="utf-8")
        environment = os.environ | {
            "TIDEGATE_CONNECTION_STRING": ready.connection_string,
            "CA": ready.ca_file,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        if shutil.which("keytool") is not None:  # the row for Java
            (command,) = re.findall(r"`(keytool .*?)`", PAGE)
            program += f"\n{command}"
        found = subprocess.run(
            ["bash", "-euxc", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert found.returncode == 0, found.stderr[-2000:]
    assert "Verification: OK" in found.stdout + found.stderr
    assert "21.5" in found.stdout
    assert "19.0" in found.stdout
