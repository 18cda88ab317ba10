"""The states of a pump as a table, which the pump follows and the documentation draws.

How a session ended decides the next step:

    how it ended                                          step       the handler's close gets
    stopped from outside                                  (none)     the reason of the stop
    stolen or fenced, and the lease is not ours           LOSE       OWNERSHIP_LOST
    stolen, and the lease is ours                         REACQUIRE  RESTARTED
    stalled                                               REACQUIRE  RESTARTED
    fenced in a transaction, and the lease is ours        RESTART    RESTARTED (the checkpoint was moved)
    fenced at the start or by a checkpoint, lease ours    FAIL       FAILED
    stopped by policy, position lost with policy STOP     FAIL       FAILED
    anything else                                         RESTART    RESTARTED

A stopped partition keeps its lease, because another host would get the same error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from tidegate.processor.handlers import CloseReason
from tidegate.processor.statistics import PartitionState


class PumpStep(StrEnum):
    """A transition of a pump; the value is its label in the diagram."""

    OPEN = "receiver is open"
    PAUSE = "outage"
    RESUME = "outage is over"
    STALL = "no progress"
    RESTART = "session ended"
    REACQUIRE = "new epoch"
    FAIL = "stopping error"
    LOSE = "lease is lost"


_S, _P = PartitionState, PumpStep

PUMP_STEPS: Final[Mapping[tuple[PartitionState, PumpStep], PartitionState]] = {
    (_S.STARTING, _P.OPEN): _S.RUNNING,
    (_S.STARTING, _P.STALL): _S.STALLED,
    (_S.STARTING, _P.RESTART): _S.STARTING,
    (_S.STARTING, _P.REACQUIRE): _S.STARTING,
    (_S.STARTING, _P.FAIL): _S.STOPPED,
    (_S.STARTING, _P.LOSE): _S.STOPPED,
    (_S.RUNNING, _P.STALL): _S.STALLED,
    (_S.RUNNING, _P.RESTART): _S.STARTING,
    (_S.RUNNING, _P.PAUSE): _S.PAUSED,
    (_S.PAUSED, _P.RESUME): _S.RUNNING,
    (_S.PAUSED, _P.STALL): _S.STALLED,
    (_S.PAUSED, _P.RESTART): _S.STARTING,
    (_S.STALLED, _P.REACQUIRE): _S.STARTING,
    (_S.STALLED, _P.LOSE): _S.STOPPED,
}
"""A step without an entry changes nothing: a receiver that opens after a stall was noticed is closed with its
session."""

CLOSE_REASONS: Final = {
    PumpStep.RESTART: CloseReason.RESTARTED,
    PumpStep.REACQUIRE: CloseReason.RESTARTED,
    PumpStep.FAIL: CloseReason.FAILED,
    PumpStep.LOSE: CloseReason.OWNERSHIP_LOST,
}
"""The reason for a handler's ``close``, by the step that follows its session."""
