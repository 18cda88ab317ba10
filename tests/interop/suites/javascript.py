"""Azure's official JavaScript SDK, the current generation and the last of each older one that is in use."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.suites.programs import run_program
from tests.interop.suites.service import BUILD, ROOT, SuiteService
from tests.interop.suites.suite import Case, Suite, ToolMissingError, Transport

FOLDER: Final = ROOT / "tests" / "interop" / "javascript"
"""The programs, and a folder with package.json and its lock for each set of packages they run with."""
_INSTALL_S_MAX: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaScriptSuite(Suite):
    """A program of ``FOLDER`` with the packages of one lock."""

    program: str
    packages: Path
    """The folder of package.json and package-lock.json."""
    is_azurite_used: bool = False

    def prepare(self) -> None:
        """Install exactly what the lock names, hashes checked, unless that was done before."""
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise ToolMissingError("Node.js with npm is not installed.")
        lock = (self.packages / "package-lock.json").read_bytes()
        installed = self._folder / "installed.json"
        if installed.exists() and installed.read_bytes() == lock:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(self.packages / name, self._folder / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=_INSTALL_S_MAX, check=False
        )
        if done.returncode != 0:
            raise ToolMissingError(f"npm could not install {self.sdk}: {done.stderr[-500:].strip()}")
        installed.write_bytes(lock)

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """The program's cases."""
        return run_program(
            ["node", FOLDER / self.program],
            service,
            transport,
            cases,
            is_azurite_used=self.is_azurite_used,
            environment={"NODE_EXTRA_CA_CERTS": service.ca_file},
            cwd=self._folder,
        )

    @property
    def _folder(self) -> Path:
        return BUILD / self.name


def javascript_suite(
    name: str,
    sdk: str,
    program: str,
    packages: Path,
    transports: tuple[Transport, ...],
    *,
    azurite: bool = False,
) -> JavaScriptSuite:
    """A suite of the version that ``packages`` names."""
    version = json.loads((packages / "package.json").read_text("utf-8"))["dependencies"][sdk]
    return JavaScriptSuite(
        name=name,
        sdk=sdk,
        version=version,
        transports=transports,
        program=program,
        packages=packages,
        is_azurite_used=azurite,
    )


_SDK: Final = ("@azure/event-hubs", "event-hubs.mjs")
_ENCRYPTED: Final = (Transport.TLS, Transport.WEBSOCKET)

SUITES: Final = (
    javascript_suite("javascript-6", *_SDK, FOLDER, tuple(Transport), azurite=True),
    javascript_suite("javascript-5", *_SDK, FOLDER / "5", tuple(Transport), azurite=True),
    javascript_suite("javascript-2", *_SDK, FOLDER / "2", _ENCRYPTED),  # It has no mode for an emulator.
)
