"""The REST administration with Atom documents, as an old SDK for Python calls it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.interop.suites.programs import run_program
from tests.interop.suites.service import BUILD, ROOT, SuiteService
from tests.interop.suites.suite import Case, Suite, ToolMissingError, Transport

FOLDER = ROOT / "tests" / "interop" / "servicebus"
_PACKAGES = BUILD / "servicebus-0"
_FETCH_S_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBusSuite(Suite):
    """The SDK's packages lie in a folder of their own, before those of this environment."""

    def prepare(self) -> None:
        """Fetch the SDK from PyPI."""
        if (_PACKAGES / "azure" / "servicebus").exists():
            return
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        command += ["--target", str(_PACKAGES), "-r", str(FOLDER / "requirements.txt")]
        fetched = subprocess.run(command, capture_output=True, timeout=_FETCH_S_MAX)
        if fetched.returncode != 0:
            raise ToolMissingError(f"pip cannot fetch {self.sdk}: {fetched.stderr.decode()[-500:]}")

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """Over HTTPS."""
        command = [sys.executable, str(FOLDER / "program.py")]
        yield from run_program(command, service, transport, cases, environment={"PYTHONPATH": str(_PACKAGES)})


SUITES = (
    ServiceBusSuite(
        name="servicebus-0", sdk="azure-servicebus", version="0.21.1", transports=(Transport.TLS,)
    ),
)
