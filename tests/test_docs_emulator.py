"""The guide for users of the official emulator: its command, file, string and program work as they stand."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.support import COMMAND, environment_without_service, run_tidegate
from tests.docs_support import ROOT, write_programs

pytestmark = pytest.mark.usefixtures("forked_python")

GUIDE = ROOT / "docs/guides/from-the-emulator.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


@contextmanager
def _serving(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """The guide's command, in a directory with the guide's file, on a free port; yields ``host:port``."""
    ready_file = directory / "ready.json"
    words = _blocks("sh")[0].split()
    assert words[0] == "tidegate"
    own = ["--amqp-port", "0", "--ready-file", str(ready_file), "--data-dir", str(directory / "data")]
    with subprocess.Popen([*COMMAND, *words[1:], *own], cwd=directory, env=environment) as process:
        deadline = time.monotonic() + 60
        while not ready_file.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        try:
            yield str(json.loads(ready_file.read_text())["amqp"])
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_the_guide_works_as_it_stands(tmp_path: Path) -> None:
    """Command, Config.json, connection string and the official SDK's program; the string has only the port
    added that the test's service got. A second start with the same file changes nothing."""
    (tmp_path / "Config.json").write_text(_blocks("json")[0], encoding="utf-8")
    write_programs(tmp_path)
    environment = environment_without_service(tmp_path)
    documented = _blocks("text")[0].strip()
    assert documented.startswith("Endpoint=sb://localhost;")
    for _ in range(2):
        with _serving(tmp_path, environment) as address:
            string = documented.replace("sb://localhost", f"sb://localhost:{address.rpartition(':')[2]}")
            found = subprocess.run(
                [sys.executable, "emulator_program.py"],
                cwd=tmp_path,
                env=os.environ | {"EVENT_HUBS_CONNECTION_STRING": string},
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert found.returncode == 0, found.stderr.decode()
            assert "cg1 it works" in found.stdout.decode()
            told = run_tidegate(
                "hub", "show", "eh1", "--connection-string", string, "--json", environment=environment
            )
            assert len(json.loads(told.out)) == 2


@pytest.mark.slow
def test_the_guides_conflict_is_one_clear_error(tmp_path: Path) -> None:
    """A file that wants fewer partitions than there are: one line, exit code 2, nothing changed."""
    path = tmp_path / "Config.json"
    config = _blocks("json")[0]
    path.write_text(config, encoding="utf-8")
    environment = environment_without_service(tmp_path)
    with _serving(tmp_path, environment):
        pass
    catalog = tmp_path / "data" / "control.log"
    before = catalog.read_bytes()
    path.write_text(config.replace('"PartitionCount": "2"', '"PartitionCount": "1"'), encoding="utf-8")
    words = ["serve", "--config", str(path), "--data-dir", str(tmp_path / "data"), "--amqp-port", "0"]
    failed = run_tidegate(*words, environment=environment)
    assert failed.code == 2
    assert "'eh1' has 2 partitions, which cannot be reduced to 1" in failed.err
    assert failed.err.count("Error:") == 1
    assert "Traceback" not in failed.err
    assert catalog.read_bytes() == before
