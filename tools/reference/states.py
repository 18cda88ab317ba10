"""The state machines in the documentation, each as its steps, from the tables that the code runs by.

Dead letters have no table; ``tests/test_docs_states.py`` performs each of their steps, and finds no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, TypeVar

from tidegate.amqp import states
from tidegate.model.pipeline_status import PIPELINE_STEPS, PipelineState
from tidegate.processor.lease import LEASE_STEPS, LeaseState
from tidegate.processor.pump.states import PUMP_STEPS
from tidegate.processor.statistics import PartitionState
from tidegate.sql.core.values import DeadLetterStatus

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Step:
    """One arrow."""

    start: str
    end: str
    label: str
    is_peers: bool = False
    """True for a step of the other side (it is received)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A state machine to draw."""

    name: str
    """The picture's file name, without extension."""
    title: str
    words: str
    initial: str
    steps: tuple[Step, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    """The states that share a row of the picture; empty: those at the same distance from the first."""

    @property
    def states(self) -> tuple[str, ...]:
        """Every state, the initial one first, each before those that only it leads to."""
        found: dict[str, None] = {self.initial: None}
        for step in self.steps:
            found |= {step.start: None, step.end: None}
        return tuple(found)


def _of_table(name: str, words: str, table: states.StateTable[Any, Any]) -> Machine:
    steps = (
        Step(
            start.name,
            end.name,
            step.name.partition("_")[2].lower().replace("_", " "),
            step.name.startswith("RECEIVE_"),
        )
        for (start, step), end in table.transitions.items()
    )
    return Machine(name, f"AMQP {table.name}", words, table.initial.name, tuple(steps))


def _steps(table: Mapping[tuple[S, T], S]) -> tuple[Step, ...]:
    return tuple(Step(start, end, label) for (start, label), end in table.items())


_P, _D, _L, _R = PartitionState, DeadLetterStatus, LeaseState, PipelineState

MACHINES: Final[tuple[Machine, ...]] = (
    _of_table(
        "connection",
        "Part 2 section 2.4.6 of AMQP 1.0. *Frame* stands for everything that belongs to a session.",
        states.CONNECTION,
    ),
    _of_table("session", "Part 2 section 2.5.5. *Frame* stands for what belongs to a link.", states.SESSION),
    _of_table("link", "Part 2 section 2.6.3. A link carries events one way.", states.LINK),
    Machine(
        "lease",
        "Lease of a partition",
        "As the other hosts of the consumer group see it. A host that acquires or steals the lease gets the "
        "next epoch.",
        _L.ABSENT.value,
        _steps(LEASE_STEPS),
    ),
    Machine(
        "pump",
        "Pump of an owned partition",
        "The states that `HostStatistics` reports. A pump ends when its lease is lost or the host stops.",
        _P.STARTING.value,
        _steps(PUMP_STEPS),
        rows=((_P.STARTING,), (_P.RUNNING, _P.PAUSED), (_P.STOPPED, _P.STALLED)),
    ),
    Machine(
        "pipeline",
        "Pipeline on Spark",
        "What `tidegate pipeline status` shows. *killed* is never written: a reader finds the process gone.",
        _R.STARTING.value,
        _steps(PIPELINE_STEPS),
        rows=((_R.STARTING,), (_R.FAILED, _R.RUNNING, _R.KILLED), (_R.ENDED, _R.STOPPING), (_R.STOPPED,)),
    ),
    Machine(
        "dead-letter",
        "Dead letter",
        "Each step is one transaction, with a line in the audit trail where a person took it.",
        _D.OPEN.value,
        (
            Step(_D.OPEN, _D.OPEN, "redrive fails"),
            Step(_D.OPEN, _D.REDRIVEN, "redrive succeeds"),
            Step(_D.OPEN, _D.DISCARDED, "discard"),
            Step(_D.REDRIVEN, _D.OPEN, "processed again, fails"),
            Step(_D.DISCARDED, _D.OPEN, "processed again, fails"),
        ),
    ),
)

STATES: Final[Mapping[str, type[Enum]]] = {
    "lease": LeaseState,
    "pump": PartitionState,
    "pipeline": PipelineState,
    "dead-letter": DeadLetterStatus,
}
"""By machine: all the states that its picture must show."""


def machine(name: str) -> Machine:
    return next(each for each in MACHINES if each.name == name)
