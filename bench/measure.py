"""What a measurement is, and how CPU time of this process and of a child is read."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Measurement:
    """One stage or baseline: events, payload bytes, wall time and CPU time."""

    name: str
    events: int = 0
    payload_bytes: int = 0
    wall_s: float = 0.0
    client_cpu_s: float = 0.0
    service_cpu_s: float = 0.0
    """0.0 where no service takes part."""
    opening_s: float = 0.0
    """Wall time before it in which links were opened; 0.0: there are none, or they are opened in it."""
    baselines: dict[str, float] = field(default_factory=dict)
    """What it is compared with, to the ratio: this measurement's rate by the baseline's."""

    @property
    def events_per_s(self) -> float:
        """Events per second of wall time."""
        return self.events / self.wall_s

    @property
    def megabytes_per_s(self) -> float:
        """Payload, in 10^6 bytes per second of wall time."""
        return self.payload_bytes / self.wall_s / 1e6

    @property
    def cpu_us_per_event(self) -> float:
        """CPU of client and service together, in microseconds per event."""
        return (self.client_cpu_s + self.service_cpu_s) / self.events * 1e6

    @property
    def service_us_per_event(self) -> float:
        """CPU of the service alone, in microseconds per event."""
        return self.service_cpu_s / self.events * 1e6

    def compare_with(self, baseline: Measurement, *, by_bytes: bool = False) -> None:
        """Note the ratio of this rate to a baseline's, in events or in bytes per second."""
        mine, theirs = (
            (self.megabytes_per_s, baseline.megabytes_per_s)
            if by_bytes
            else (self.events_per_s, baseline.events_per_s)
        )
        self.baselines[baseline.name] = mine / theirs


def median(measurements: Sequence[Measurement]) -> Measurement:
    """The one in the middle by its rate."""
    return sorted(measurements, key=lambda each: each.events_per_s)[len(measurements) // 2]


def median_beside(measurements: Sequence[Measurement], baselines: Sequence[Measurement]) -> Measurement:
    """The ``median``, and beside that of the baselines the median of the ratios: each to its round's."""
    middle = median(measurements)
    ratios = [
        one.events_per_s / other.events_per_s for one, other in zip(measurements, baselines, strict=True)
    ]
    middle.baselines[baselines[0].name] = statistics.median(ratios)
    return middle


@dataclass(frozen=True, slots=True)
class Figure:
    """What is no rate: a latency, memory, a cost."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    """The target; None: there is none."""

    @property
    def is_reached(self) -> bool:
        """Whether the target is reached; True where there is none."""
        return self.at_most is None or self.value <= self.at_most


@dataclass(slots=True)
class Found:
    """What a part of the benchmark measured."""

    baselines: list[Measurement] = field(default_factory=list)
    stages: list[Measurement] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


@contextmanager
def timed(
    name: str,
    *,
    events: int,
    payload_bytes: int,
    service_pid: int | None = None,
    with_descendants: bool = False,
) -> Iterator[Measurement]:
    """Measure the block. ``with_descendants`` adds this process' living descendants (Spark's JVM)."""
    measurement = Measurement(name, events, payload_bytes)
    own_before = own_cpu_s(service_pid, with_descendants=with_descendants)
    service_before = process_cpu_s(service_pid) if service_pid else 0.0
    started = time.perf_counter()
    yield measurement
    measurement.wall_s = time.perf_counter() - started
    measurement.client_cpu_s = own_cpu_s(service_pid, with_descendants=with_descendants) - own_before
    if service_pid:
        measurement.service_cpu_s = process_cpu_s(service_pid) - service_before


def process_cpu_s(pid: int) -> float:
    """User and system time of a process and of its ended, awaited children, in seconds."""
    return sum(process_times(pid))


def process_times(pid: int) -> tuple[float, float]:
    """The user and the system time of ``process_cpu_s``."""
    # The fields follow the command name, which may itself hold blanks and brackets (proc(5)).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = (int(ticks) / _TICKS_PER_S for ticks in fields[11:15])
    return user + children_user, system + children_system


def own_cpu_s(service_pid: int | None = None, *, with_descendants: bool) -> float:
    """User and system time of this process, in seconds.

    with_descendants: and of its living descendants, the service left out.
    """
    if not with_descendants:
        return time.process_time()
    return family_cpu_s(os.getpid(), without=service_pid)


def family_cpu_s(root: int, *, without: int | None = None) -> float:
    """User and system time of a process and its living descendants, one of them left out, in seconds."""
    total_s = 0.0
    for pid in _family(root) - {without}:
        # One that ended since was waited for by its parent, whose time then holds its own.
        with suppress(FileNotFoundError, ProcessLookupError):
            total_s += process_cpu_s(pid)
    return total_s


def _family(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # It ended while we looked.
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return family
