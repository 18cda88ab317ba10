"""Checks every locked version for advisories on PyPI: ``make audit``.

pip-audit reports no problem for a package that it cannot look up. So it is first asked about a version that
is known to be vulnerable, from ``floors.toml``: its other answers count only if it reports that one.

Exit codes: 0 nothing found, or skipped with a clear message; 1 a locked version has an advisory, or could not
be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.floors import LOCK_FILE

KNOWN_VULNERABLE: Final = "h11==0.14.0"
"""Below the floor of h11; its advisory is from 2025-04."""

_SKIPPED = """\
==============================================================================
SKIPPED: the dependencies were NOT audited.
The advisories of PyPI cannot be reached from here: asked about {known},
which has a known vulnerability, pip-audit said:
{answer}
Run `make audit` where https://pypi.org/pypi/NAME/VERSION/json answers.
=============================================================================="""


def main() -> int:
    """Audit the lock file; returns the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        known = Path(directory) / "requirements.txt"
        known.write_text(f"{KNOWN_VULNERABLE}\n", encoding="utf-8")
        probe = _audit(known, "--no-deps", "--format=json")
    if not _has_findings(probe.stdout):
        answer = (probe.stderr + probe.stdout).strip().splitlines()[-3:]
        print(_SKIPPED.format(known=KNOWN_VULNERABLE, answer="\n".join(f"  {line}" for line in answer)))
        return 0
    audit = _audit(LOCK_FILE, "--require-hashes", "--strict")
    print(audit.stdout + audit.stderr)
    return audit.returncode


def _audit(requirements: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner=off", "--aliases=on"]
    return subprocess.run(
        [*command, *options, "--requirement", str(requirements)], capture_output=True, text=True, check=False
    )


def _has_findings(answer: str) -> bool:
    try:
        return any(each.get("vulns") for each in json.loads(answer)["dependencies"])
    except ValueError:  # it failed, and reported why on standard error
        return False


if __name__ == "__main__":
    sys.exit(main())
