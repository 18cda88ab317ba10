"""Programs of our own with Azure's Rust SDK. Cargo.lock pins every crate by version and checksum.

A build machine leaves this suite out: the first build compiles 220 crates, which takes minutes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.interop.suites.programs import run_program
from tests.interop.suites.service import BUILD, SuiteService
from tests.interop.suites.suite import Case, Suite, ToolMissingError, Transport

FOLDER: Final = Path(__file__).parents[1] / "rust"
TARGET: Final = BUILD / "rust"
BUILD_S_MAX: Final = 1800.0


class RustSuite(Suite):
    """Properties, sending, receiving, the processor and refusals."""

    def prepare(self) -> None:
        """Build the program."""
        cargo = shutil.which("cargo")
        if cargo is None:
            raise ToolMissingError("there is no cargo on PATH")
        # Crates first: a machine that cannot reach the registry is skipped, a program that is wrong is not.
        fetched = subprocess.run([cargo, "fetch", "--locked"], cwd=FOLDER, capture_output=True, text=True)
        if fetched.returncode != 0:
            raise ToolMissingError(f"its crates cannot be fetched: {fetched.stderr[-500:]}")
        command = [cargo, "build", "--quiet", "--locked", "--offline", "--jobs", "1", "--target-dir"]
        subprocess.run([*command, str(TARGET)], cwd=FOLDER, check=True, timeout=BUILD_S_MAX)

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """Its TLS trusts the system's certificates, which SSL_CERT_FILE replaces."""
        program = TARGET / "debug" / "tidegate-interop"
        return run_program(
            [program], service, transport, cases, environment={"SSL_CERT_FILE": service.ca_file}
        )


def _version() -> str:
    found = re.search(
        r'azure_messaging_eventhubs = \{ version = "=([^"]+)"', (FOLDER / "Cargo.toml").read_text()
    )
    assert found is not None
    return found[1]


SUITES = (
    RustSuite(
        name="rust",
        sdk="azure_messaging_eventhubs",
        version=_version(),
        transports=(Transport.PLAIN, Transport.TLS, Transport.WEBSOCKET),
    ),
)
