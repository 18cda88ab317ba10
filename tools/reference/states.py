"""The state machines that the documents show, each as its steps: AMQP's from the tables that the code runs
by, the others beside the code that takes the steps, whose states they share.

``tests/test_docs_states.py`` holds each to the code: AMQP's to the tables step for step, dead letters by
doing to them all that can be done, the others by their states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from tidegate.amqp import states
from tidegate.model.pipeline_status import PipelineState
from tidegate.processor.statistics import PartitionState
from tidegate.sql.core.values import DeadLetterStatus


class LeaseState(StrEnum):
    """A lease as other hosts see it; ``processor.lease.Lease`` says it by owner and time."""

    ABSENT = "never had"
    HELD = "held"
    EXPIRED = "expired"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Step:
    """One arrow."""

    start: str
    end: str
    label: str
    is_peers: bool = False
    """True: the other side takes it (it is received)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One state machine, as it is drawn."""

    name: str
    """The picture's file name, without its ending."""
    title: str
    words: str
    initial: str
    steps: tuple[Step, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    """Which states share a row of the picture; empty: those as many steps from the first one."""

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


def _steps(rows: Iterable[tuple[Enum, Enum, str]]) -> tuple[Step, ...]:
    return tuple(Step(str(start.value), str(end.value), label) for start, end, label in rows)


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
        _steps(
            [
                (_L.ABSENT, _L.HELD, "acquire"),
                (_L.HELD, _L.HELD, "renew"),
                (_L.HELD, _L.HELD, "steal"),
                (_L.HELD, _L.EXPIRED, "no renewal in time"),
                (_L.HELD, _L.RELEASED, "release"),
                (_L.EXPIRED, _L.HELD, "acquire"),
                (_L.RELEASED, _L.HELD, "acquire"),
            ]
        ),
    ),
    Machine(
        "pump",
        "Pump of an owned partition",
        "What `HostStatistics` says of each. A pump ends when its lease is lost or the host stops.",
        _P.STARTING.value,
        _steps(
            [
                (_P.STARTING, _P.RUNNING, "receiver is open"),
                (_P.RUNNING, _P.STARTING, "connection or handler failed"),
                (_P.RUNNING, _P.STALLED, "no progress"),
                (_P.STALLED, _P.STARTING, "new epoch"),
                (_P.STARTING, _P.STALLED, "hangs while it opens"),
                (_P.STALLED, _P.STOPPED, "lease is lost"),
                (_P.RUNNING, _P.STOPPED, "stop, overtaken"),
                (_P.STARTING, _P.STOPPED, "position lost"),
            ]
        ),
        rows=((_P.STARTING,), (_P.RUNNING,), (_P.STOPPED, _P.STALLED)),
    ),
    Machine(
        "pipeline",
        "Pipeline on Spark",
        "What `tidegate pipeline status` shows. *killed* is never written: a reader finds the process gone.",
        _R.STARTING.value,
        _steps(
            [
                (_R.STARTING, _R.RUNNING, "query started"),
                (_R.STARTING, _R.STOPPED, "asked to stop"),
                (_R.STARTING, _R.FAILED, "error"),
                (_R.RUNNING, _R.STOPPING, "asked to stop"),
                (_R.RUNNING, _R.STOPPED, "interrupted"),
                (_R.RUNNING, _R.ENDED, "all events processed"),
                (_R.RUNNING, _R.FAILED, "error"),
                (_R.STOPPING, _R.STOPPED, "micro-batch over"),
                (_R.STARTING, _R.KILLED, "process gone"),
                (_R.RUNNING, _R.KILLED, "process gone"),
                (_R.STOPPING, _R.KILLED, "process gone"),
            ]
        ),
        rows=((_R.STARTING,), (_R.FAILED, _R.RUNNING, _R.KILLED), (_R.ENDED, _R.STOPPING), (_R.STOPPED,)),
    ),
    Machine(
        "dead-letter",
        "Dead letter",
        "Each step is one transaction, with a line in the audit trail where a person took it.",
        _D.OPEN.value,
        _steps(
            [
                (_D.OPEN, _D.OPEN, "redrive fails"),
                (_D.OPEN, _D.REDRIVEN, "redrive succeeds"),
                (_D.OPEN, _D.DISCARDED, "discard"),
                (_D.REDRIVEN, _D.OPEN, "processed again, fails"),
                (_D.DISCARDED, _D.OPEN, "processed again, fails"),
            ]
        ),
    ),
)

STATES: Final[Mapping[str, type[Enum]]] = {
    "lease": LeaseState,
    "pump": PartitionState,
    "pipeline": PipelineState,
    "dead-letter": DeadLetterStatus,
}
"""Of the machines that have no table in the code: the states that they must have, all of them."""


def machine(name: str) -> Machine:
    """The machine of this name."""
    return next(each for each in MACHINES if each.name == name)
