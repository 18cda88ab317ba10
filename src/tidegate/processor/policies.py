"""What happens to an event whose handler failed, and when a checkpoint does not match its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidegate.client.retry import RetryPolicy
from tidegate.model.errors import InvalidArgumentError

NO_RETRY = RetryPolicy(retries_max=0)
RESTART: Final = RetryPolicy(delay_s=0.1, delay_s_max=10.0)
"""Waits before a batch is processed again or a session is opened again (our choice)."""


class FailureAction(StrEnum):
    """What happens to an event whose handler failed, after the retries."""

    DEAD_LETTER = "dead_letter"
    """It becomes a dead letter, with the reason; the other events are processed."""
    STOP = "stop"
    """It and later events are not committed, and its partition stops, which keeps their order."""
    PARK_KEY = "park_key"
    """It and all later events of its partition key become dead letters, to keep their order, until it is
    redriven. Of events without a key, only the failed one becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What is the event's fault: retries, then an action. The default writes a dead letter without retrying.

    An outage of what the handler calls is not: after one of ``outage_errors``, or an error caused by one, the
    transaction is rolled back, the partition pauses, and one event is tried, until it succeeds. An event that
    still fails so while most others succeed is at fault.
    """

    action: FailureAction = FailureAction.DEAD_LETTER
    retry: RetryPolicy = field(default=NO_RETRY)
    """Retries of a failed batch. Its transaction is rolled back before each wait, so it holds no locks."""
    is_payload_copied: bool = False
    """Whether a dead letter keeps a copy of its event, which outlives the log's retention."""
    outage_errors: tuple[type[BaseException], ...] = ()
    """Types of errors that mean an outage, besides ConnectionError and TimeoutError; such as
    ``psycopg.OperationalError``."""
    dead_letters_per_minute: int | None = 1000
    """Failed events of a partition that become dead letters in a minute; with more, the partition pauses
    (our choice: a fault in the handler would otherwise dead-letter everything). None: no limit."""

    def __post_init__(self) -> None:
        check_positive("dead_letters_per_minute", self.dead_letters_per_minute)

    @property
    def is_plain(self) -> bool:
        """Whether a failed event becomes a dead letter without a retry, whatever happens to others."""
        return self.action is FailureAction.DEAD_LETTER and not self.retry.retries_max

    @property
    def outages(self) -> tuple[type[BaseException], ...]:
        """All types of errors that mean an outage."""
        return (ConnectionError, TimeoutError, *self.outage_errors)


class PositionLostPolicy(StrEnum):
    """What a host does if the log does not hold the event after the checkpoint.

    Either retention removed it before it was read, or the log was restored from a copy, or the hub was
    deleted and created again.
    """

    STOP = "stop"
    """The partition stops with an error that names the wanted event and those that the log holds."""
    EARLIEST = "earliest"
    """Resume at the first event held, and report the skipped events."""
    LATEST = "latest"
    """Resume after the last event, and report the skipped events."""


def check_positive(name: str, value: float | None) -> None:
    """Raises InvalidArgumentError unless ``value`` is None or more than 0."""
    if value is not None and not value > 0:
        raise InvalidArgumentError(f"{name} must be greater than 0, got {value}.")
