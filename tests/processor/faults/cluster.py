"""Host processes that are started, killed, paused and stopped. Linux only, as the signals are."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.processor.faults.host_process import HostSettings

ROOT = Path(__file__).parents[3]
_LOG_CHARACTERS = 3000


class Cluster:
    """Host processes by name; ``with`` it: what still runs at the end is killed."""

    def __init__(self, settings: HostSettings, environments: Sequence[Mapping[str, str]] = ({},)) -> None:
        """settings: what all hosts share; each gets a name of its own.

        environments: variables of the processes, in turn.
        """
        self._settings = settings
        self._environments = itertools.cycle(environments)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()
        self.folder = Path(settings.folder)
        (self.folder / "journal").mkdir(parents=True, exist_ok=True)

    @property
    def running(self) -> list[str]:
        """The names of hosts that were started and are not known to have ended, paused ones included."""
        return sorted(self._processes)

    @property
    def awake(self) -> list[str]:
        """Those of them that are not paused."""
        return sorted(self._processes.keys() - self._paused)

    @property
    def paused(self) -> list[str]:
        """Those of them that are."""
        return sorted(self._paused)

    def start(self, name: str) -> None:
        """Start a host; its output goes to ``name.log``, behind that of its earlier lives."""
        assert name not in self._processes, "it is running already"
        settings = dataclasses.replace(self._settings, name=name)
        settings.ready_file.unlink(missing_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.processor.faults.host_process", settings.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | next(self._environments),
            )

    def is_ready(self, name: str) -> bool:
        """Whether the host has registered."""
        return dataclasses.replace(self._settings, name=name).ready_file.exists()

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal; a process that has ended meanwhile does not get it."""
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is gone."""
        process = self._processes.pop(name)
        self._paused.discard(name)
        process.kill()
        process.wait()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.send(name, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._paused.discard(name)
        self.send(name, signal.SIGCONT)

    def reap(self) -> dict[str, int]:
        """The hosts that ended since, with their exit codes; a signal's number is negative."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        ended = {name: code for name, code in codes.items() if code is not None}
        for name in ended:
            del self._processes[name]
            self._paused.discard(name)
        return ended

    def log_of(self, name: str) -> str:
        """The end of what a host wrote."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-_LOG_CHARACTERS:] if path.exists() else ""

    def logs(self) -> str:
        """The ends of what all hosts wrote, for a failure's message."""
        names = sorted(path.stem for path in self.folder.glob("*.log"))
        return "\n".join(f"--- {name}\n{self.log_of(name)}" for name in names)

    def count_lines(self, words: str) -> int:
        """Lines of all logs that have these words in them."""
        count = 0
        for path in self.folder.glob("*.log"):
            with path.open(errors="replace") as lines:
                count += sum(words in line for line in lines)
        return count

    def close(self) -> None:
        """SIGKILL to all that run."""
        for name in self.running:
            self.kill(name)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
