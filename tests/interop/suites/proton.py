"""Qpid Proton, the generic AMQP 1.0 client that most others are built on, in an environment of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.interop.suites.programs import run_program
from tests.interop.suites.service import BUILD, ROOT, SuiteService
from tests.interop.suites.suite import Case, Suite, ToolMissingError, Transport

FOLDER: Final = Path(__file__).parents[1] / "proton"
ENVIRONMENT: Final = BUILD / "proton"
_REQUIREMENTS: Final = FOLDER / "requirements.txt"
_BUILD_REQUIREMENTS: Final = FOLDER / "build-requirements.txt"
_OF_THE_LOCK: Final = re.compile(r"^(?:cffi|pycparser)==.*\n(?: .*\n)*", re.MULTILINE)
_BUILD_S_MAX: Final = 600.0


class ProtonSuite(Suite):
    """Links, filters, settlement, tokens and refusals, as a client sees them that knows AMQP alone."""

    def prepare(self) -> None:
        """Fetch Proton's source from PyPI, and build it; it needs a C compiler and OpenSSL's headers."""
        stamp = ENVIRONMENT / "installed.txt"
        pinned = _REQUIREMENTS.read_text("utf-8") + self._build_requirements()
        if stamp.exists() and stamp.read_text("utf-8") == pinned:
            return
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True, timeout=_BUILD_S_MAX)
        listed = ENVIRONMENT / "build-requirements.txt"
        listed.write_text(self._build_requirements(), "utf-8")
        self._install(listed)
        self._install(_REQUIREMENTS, "--no-build-isolation", "--no-deps")
        stamp.write_text(pinned, "utf-8")

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """See ``Suite``."""
        return run_program([ENVIRONMENT / "bin" / "python", FOLDER / "client.py"], service, transport, cases)

    def _build_requirements(self) -> str:
        locked = _OF_THE_LOCK.findall((ROOT / "requirements.lock").read_text("utf-8"))
        return "".join([_BUILD_REQUIREMENTS.read_text("utf-8"), *locked])

    def _install(self, requirements: Path, *options: str) -> None:
        command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        done = subprocess.run(
            [*command, *options, "-r", str(requirements)],
            capture_output=True,
            text=True,
            timeout=_BUILD_S_MAX,
        )
        if done.returncode != 0:
            raise ToolMissingError(f"pip cannot install it: {done.stderr[-500:]}")


def _version() -> str:
    found = re.search(r"python-qpid-proton==(\S+)", _REQUIREMENTS.read_text("utf-8"))
    assert found is not None
    return found[1]


SUITES: Final = (
    ProtonSuite(
        name="proton",
        sdk="python-qpid-proton",
        version=_version(),
        transports=(Transport.PLAIN, Transport.TLS),
    ),
)
