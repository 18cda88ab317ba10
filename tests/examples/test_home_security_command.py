"""What the example shows in a browser: hub, pipeline, a home's page; and that it stays up when asked to."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tidegate.transport.clock import SystemClock

COMMAND = (sys.executable, "-m", "examples.home_security")


def _get(address: str) -> str:
    """A page of the console, as a program without cookies sees it; empty: it is not there."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        error.close()
        return ""


def _wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes], *, timeout_s: float) -> str:
    deadline = SystemClock().monotonic() + timeout_s
    while True:
        found = re.search(pattern, log.read_text())
        if found is not None:
            return found[found.lastindex or 0]
        assert process.poll() is None, log.read_text()
        assert SystemClock().monotonic() < deadline, log.read_text()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_can_be_looked_at(tmp_path: Path) -> None:
    """Nobody signs in on this machine; a resident's page is what the pipeline wrote; Ctrl-C ends it all."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    environment = kept | {"TIDEGATE_CONFIG_DIR": str(tmp_path / "config")}
    words = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--homes", "50", "--rate", "200"]
    words += ["--speed", "60"]
    words += ["--duration", "6", "--no-crash", "--keep-serving"]
    log = tmp_path / "stderr"
    with (
        log.open("wb") as errors,
        subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=errors) as demo,
    ):
        try:
            console = _wait_for(log, r"in a browser: (\S+)", demo, timeout_s=120)
            home = _wait_for(log, r"resident, once it has sent events: (\S+)", demo, timeout_s=120)
            web = _wait_for(log, r"for the operator: (\S+)", demo, timeout_s=120)
            assert "/homes/h000042?key=" in home
            _wait_for(log, "Press Ctrl-C to stop it", demo, timeout_s=400)
            assert "Activity of the day" in _get(home)
            assert "50 homes" in _get(web)
            pipeline = _get(f"{console}pipelines/home-security")
            assert ">ended</span>" in pipeline
            assert "home_minute, home_alarm" in pipeline
            assert "home-security" in _get(f"{console}hubs")
            demo.send_signal(signal.SIGINT)
            assert demo.wait(60) == 0
            for address in (console, web):
                with pytest.raises(urllib.error.URLError):
                    _get(address)
        finally:
            demo.kill()
