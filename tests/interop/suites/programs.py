"""Cases that a program in another language runs, and reports as JSON lines on its standard output.

    {"name": "send a batch", "outcome": "passed", "detail": ""}

One object per case, once it has ended; the exit code is 0 unless the program itself crashed.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from tests.interop.suites.service import SuiteService
from tests.interop.suites.suite import Case, Outcome, Transport

CASE_S_MAX: Final = 120.0
"""Longest wait for the next case before the program is killed."""
PROGRAM: Final = "the program itself"
"""The name of the failed case that stands for a crash or a hang."""
_STDERR_MAX: Final = 1500


def run_program(
    command: Sequence[str | Path],
    service: SuiteService,
    transport: Transport,
    cases: Sequence[str] = (),
    *,
    partition_count: int = 4,
    is_azurite_used: bool = False,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    case_s_max: float = CASE_S_MAX,
) -> Iterator[Case]:
    """Yield the cases that ``command`` reports; a crash or a hang is a failed case of its own.

    The program gets a fresh hub of ``partition_count`` partitions, and in its environment:
    TIDEGATE_CONNECTION_STRING (the namespace's, with the transport's port), TIDEGATE_HUB, TIDEGATE_CA_FILE,
    TIDEGATE_TRANSPORT, TIDEGATE_HTTPS_URL, TIDEGATE_SEED, TIDEGATE_CASES (names to run, one per line;
    empty for all), with ``is_azurite_used`` AZURITE_CONNECTION_STRING, and ``environment``.
    """
    given = {
        "TIDEGATE_CONNECTION_STRING": service.connection_string_for(transport),
        "TIDEGATE_HUB": service.create_hub(partition_count=partition_count),
        "TIDEGATE_CA_FILE": service.ca_file,
        "TIDEGATE_TRANSPORT": transport.value,
        "TIDEGATE_HTTPS_URL": service.https_url,
        "TIDEGATE_SEED": os.environ.get("TIDEGATE_SEED") or str(secrets.randbelow(2**31)),
        "TIDEGATE_CASES": "\n".join(cases),
    }
    if is_azurite_used:
        given["AZURITE_CONNECTION_STRING"] = service.storage.connection_string()
    reported = 0
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=cwd,
            env={**_own_environment(), **given, **(environment or {})},
            start_new_session=True,
        )
        try:
            for case in _cases(process, case_s_max):
                reported += 1
                if not cases or case.name in cases:
                    yield case
            code = process.wait(case_s_max)
            if code != 0 or reported == 0:
                yield _crashed(f"It ended with {code} after {reported} cases", stderr, given)
        except (queue.Empty, subprocess.TimeoutExpired):
            yield _crashed(f"It hung for {case_s_max:.0f} s after {reported} cases", stderr, given)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _own_environment() -> dict[str, str]:
    """This process's environment without what pytest-xdist tells its workers: the program is none of them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def _cases(process: subprocess.Popen[bytes], case_s_max: float) -> Iterator[Case]:
    """What it reports until its output ends; raises queue.Empty where nothing comes for too long."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="interop program", daemon=True).start()
    while (line := lines.get(timeout=case_s_max)) is not None:
        if not line.startswith(b"{"):
            continue  # SDKs and runtimes print warnings of their own.
        said = json.loads(line)
        yield Case(said["name"], Outcome(said["outcome"]), said.get("detail") or "")


def _crashed(what: str, stderr: IO[bytes], given: Mapping[str, str]) -> Case:
    stderr.seek(0)
    words = stderr.read().decode(errors="replace")[-_STDERR_MAX:].strip()
    return Case(PROGRAM, Outcome.FAILED, f"{what} (seed {given['TIDEGATE_SEED']}). It wrote: {words}")
