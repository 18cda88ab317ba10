"""The status of a Spark pipeline, which its process writes to a file and other processes read.

The JSON form is a contract between releases and programs (the commands, the console, a user's own
monitoring): fields may be added; a change of meaning requires a new version number. See
``docs/reference/pipelines.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from tidegate.model.errors import LATER_VERSION, InvalidArgumentError
from tidegate.model.validation import from_values

STATUS_VERSION = 1


class PipelineState(StrEnum):
    """The state of a pipeline's process."""

    STARTING = "starting"
    """Spark or its query is starting; no event has been read yet."""
    RUNNING = "running"
    """Its query has started: it processes micro-batches, or waits for events."""
    STOPPING = "stopping"
    """It was asked to stop and finishes its micro-batch."""
    STOPPED = "stopped"
    """It stopped because it was asked to."""
    ENDED = "ended"
    """It has processed all events available at its start, as requested."""
    FAILED = "failed"
    """An error ended it; see ``error``."""
    KILLED = "killed"
    """Its process exited without reporting why. Never written: readers detect it."""

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self in _OVER


class PipelineStep(StrEnum):
    """What changes the state of a pipeline; the value is the label in the state diagram."""

    START = "started"
    RESTART = "restarted"
    ASK_TO_STOP = "asked to stop"
    INTERRUPT = "interrupted"
    END = "all events processed"
    FINISH = "micro-batch over"
    FAIL = "error"
    VANISH = "process gone"


_S, _P = PipelineState, PipelineStep

PIPELINE_STEPS: Final[Mapping[tuple[PipelineState, PipelineStep], PipelineState]] = {
    (_S.STARTING, _P.START): _S.RUNNING,
    (_S.STARTING, _P.ASK_TO_STOP): _S.STOPPED,
    (_S.STARTING, _P.FAIL): _S.FAILED,
    (_S.STARTING, _P.VANISH): _S.KILLED,
    (_S.RUNNING, _P.RESTART): _S.STARTING,
    (_S.RUNNING, _P.ASK_TO_STOP): _S.STOPPING,
    (_S.RUNNING, _P.INTERRUPT): _S.STOPPED,
    (_S.RUNNING, _P.END): _S.ENDED,
    (_S.RUNNING, _P.FAIL): _S.FAILED,
    (_S.RUNNING, _P.VANISH): _S.KILLED,
    (_S.STOPPING, _P.FINISH): _S.STOPPED,
    (_S.STOPPING, _P.VANISH): _S.KILLED,
}
"""The documentation draws a diagram of it. A state without a step is final."""

_OVER = frozenset(PipelineState) - {state for state, _ in PIPELINE_STEPS}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process on one machine; the start time identifies it as well, because process ids are reused."""

    host: str
    pid: int
    started: str
    """Start time in the operating system's format: compared, never parsed. Empty if unknown."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline at one moment. Counts start with its process, unless noted otherwise."""

    name: str
    state: PipelineState
    process: ProcessIdentity
    event_hub: str
    consumer_group: str
    namespace: str
    """Host of the service."""
    sink: str
    """The kind of sink: ``sql``, ``sql-batch``, ``hub`` or ``files``."""
    target: str
    """The table, event hub or directory."""
    checkpoint: str
    """Spark's checkpoint directory."""
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    batch_id: int | None = None
    """Number of the last finished micro-batch; None if this process has finished none."""
    batches: int = 0
    is_idle: bool = False
    """True while it has read all events and waits for more."""
    events: int = 0
    """Events of the last micro-batch."""
    events_total: int = 0
    input_events_per_s: float | None = None
    """Events of the last micro-batch per second since the previous one began; None: not known yet."""
    processed_events_per_s: float | None = None
    """Events of the last micro-batch per second of its duration."""
    batch_ms: int | None = None
    """Duration of the last micro-batch in milliseconds."""
    lag_events: int | None = None
    """Events not yet read when the last micro-batch was planned; None: unknown."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    rows: int | None = None
    """Rows that the last micro-batch wrote to the sink; None: the sink does not report it."""
    rows_total: int | None = None
    dead_letters_open: int | None = None
    """Open dead letters of its hub and consumer group in the database; None if there is no database, or it
    did not answer."""
    watermark: datetime | None = None
    """For a query with event time: older rows are late."""
    state_rows: int | None = None
    """Rows in the state of a stateful query."""
    state_bytes: int | None = None
    metrics_address: str | None = None
    """``host:port`` that serves Prometheus metrics."""
    error: str | None = None
    """The error that ended it, or for which its query is being restarted."""

    def seen_by_reader(self, *, is_process_there: bool | None) -> PipelineStatus:
        """This status, or ``killed`` if it claims to run but its process has exited.

        is_process_there: None if unknown, because the process runs on another machine.
        """
        if is_process_there is False and not self.state.is_over:
            return replace(
                self, state=PipelineState.KILLED, ended_at=self.updated_at, input_events_per_s=None,
                processed_events_per_s=None,
            )  # fmt: skip
        return self

    def to_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(self.to_values())

    def to_values(self) -> dict[str, object]:
        """The values that ``to_json`` writes."""
        values = asdict(self)
        times = {name: each.isoformat() for name, each in values.items() if isinstance(each, datetime)}
        return {"version": STATUS_VERSION, **values, **times}

    @classmethod
    def from_json(cls, text: str) -> PipelineStatus:
        """The inverse of ``to_json``; ignores unknown fields.

        Raises InvalidArgumentError if ``text`` is something else, or of a later version.
        """
        # Here, since msgspec takes 25 ms to import, and every command imports this module.
        import msgspec

        try:
            values: dict[str, Any] = json.loads(text)
            version = values.pop("version")
            if version != STATUS_VERSION:
                raise InvalidArgumentError(
                    f"This pipeline status has version {version!r}; this release reads "
                    f"version {STATUS_VERSION}.",
                    next_step=LATER_VERSION,
                )
            status = from_values(values, cls)
            times = (status.started_at, status.updated_at, status.ended_at, status.watermark)
            if any(time is not None and time.tzinfo is None for time in times):
                raise ValueError("A time without a zone cannot be compared with a reader's clock.")
            return status
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            msgspec.MsgspecError,
        ) as error:
            raise InvalidArgumentError("This is not a pipeline status.") from error
