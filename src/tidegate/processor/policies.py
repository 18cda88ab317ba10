"""What becomes of an event whose handler failed, and of a checkpoint that its log does not match."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.client.retry import RetryPolicy
from tidegate.model.errors import InvalidArgumentError

NO_RETRY = RetryPolicy(retries_max=0)


class FailureAction(StrEnum):
    """What becomes of an event that the handler failed for, after its retries."""

    DEAD_LETTER = "dead_letter"
    """It is put aside with its reason; the others go on."""
    STOP = "stop"
    """Nothing of its batch from it on is committed, and its partition stops: order before progress."""
    PARK_KEY = "park_key"
    """It is put aside, and so is every later event of its partition key until it is redriven: the order per
    key holds. An event without a key is put aside alone."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Retry first, then act. The default puts an event aside at once."""

    action: FailureAction = FailureAction.DEAD_LETTER
    retry: RetryPolicy = field(default=NO_RETRY)
    """How often and after which waits a batch that failed is run again first; its transaction is rolled back
    meanwhile, so nobody waits for it."""
    is_payload_copied: bool = False
    """True: a dead letter keeps a copy of its event, so that it outlives the log's retention."""


class PositionLostPolicy(StrEnum):
    """What a host does where the log does not hold what the checkpoint asks for.

    That is so when retention has overtaken the reader, or when the log is older than the checkpoint: restored
    from a copy, or a hub of the same name made anew.
    """

    STOP = "stop"
    """The partition stops with an error that names what is wanted and what is there; others go on."""
    EARLIEST = "earliest"
    """Go on with the first event there is, and report what was skipped."""
    LATEST = "latest"
    """Go on behind the last event there is, and report what was skipped."""


def check_positive(name: str, value: float) -> None:
    """Raises InvalidArgumentError unless ``value`` is more than 0."""
    if not value > 0:
        raise InvalidArgumentError(f"{name} must be more than 0, not {value}.")
