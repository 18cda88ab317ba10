"""The one error tree. Each error says whose fault it is, whether a retry helps, and what to do next.

Protocol faces translate these to AMQP conditions and HTTP statuses (``tidegate.wire.conditions``);
nothing else in the product invents an error root of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Final


class Fault(Enum):
    """Whose doing an error is."""

    CALLER = "caller"
    """The request was wrong: sending it again unchanged fails again."""
    PEER = "peer"
    """The other side broke the protocol or its promise."""
    WORLD = "world"
    """Disk, network or capacity: nobody's code is wrong."""
    STATE = "state"
    """Someone else was there first: a stolen receiver, a moved checkpoint."""


class TidegateError(Exception):
    """Root of every error that Tidegate raises on purpose.

    ``str(error)`` is one sentence with the values in it, followed by what to do next.
    """

    fault: ClassVar[Fault] = Fault.WORLD
    is_transient: ClassVar[bool] = False
    """True where the same call may succeed later without anybody changing anything."""
    remote_text: ClassVar[str] = ""
    """What a remote peer is told instead of the message, where that shows how the service's machine is laid
    out; empty: the message.
    """

    def __init__(self, message: str, *, next_step: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.retry_after_s = retry_after_s
        """Seconds to wait before a retry; None where no particular wait is known."""

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".rstrip()


class InvalidArgumentError(TidegateError):
    """A value, option or address that cannot be meant."""

    fault = Fault.CALLER


class ConnectionStringError(InvalidArgumentError):
    """A connection string that does not parse; the message never holds the key."""


class NotFoundError(TidegateError):
    """A hub, partition, consumer group or dead letter that does not exist."""

    fault = Fault.CALLER


class PartitionNotFoundError(NotFoundError):
    """A partition id that the event hub does not have."""

    TEXT: Final = "The specified partition is invalid for an EventHub partition sender or receiver."
    """How the service's text begins: clients tell the error by it, as its condition means other errors, too
    (@azure/event-hubs 6, test/public/hubruntime.spec.ts)."""

    @classmethod
    def of(cls, partition_count: int) -> PartitionNotFoundError:
        """The error of an event hub with so many partitions, in the service's words."""
        return cls(f"{cls.TEXT} It should be between 0 and {partition_count - 1}.")


class AlreadyExistsError(TidegateError):
    """An entity of that name exists already."""

    fault = Fault.CALLER


class UnauthorizedError(TidegateError):
    """A missing, wrong or expired token, or a policy without the needed claim."""

    fault = Fault.CALLER


class InvalidKeyError(UnauthorizedError):
    """A key or signature that no policy of that name has."""

    answer_after_s = 0.0
    """Seconds by which the answer waits: a door that is told more than 0.0 keeps whoever guesses waiting."""


class PublisherRevokedError(UnauthorizedError):
    """A publisher that was revoked on its event hub: it may not send until it is restored."""


class EventTooLargeError(TidegateError):
    """An event or batch over the hub's limit."""

    fault = Fault.CALLER


class QuotaExceededError(TidegateError):
    """A documented limit (receivers, consumer groups, hubs) is reached."""

    fault = Fault.CALLER


class ServerBusyError(TidegateError):
    """The service asks the caller to slow down; ``retry_after_s`` says for how long."""

    is_transient = True


class ReceiverStolenError(TidegateError):
    """Another receiver took this partition with an equal or higher owner level (epoch)."""

    fault = Fault.STATE


class PositionOutOfRangeError(TidegateError):
    """A position that the log does not hold: beyond its end, or older than what retention kept."""

    fault = Fault.STATE


class FencedError(TidegateError):
    """A checkpoint or lease moved under this owner: its transaction was rolled back whole."""

    fault = Fault.STATE


class OutOfOrderSequenceError(TidegateError):
    """An idempotent producer's batch does not follow its last stored one: one between is missing."""

    fault = Fault.CALLER


class RepeatDiffersError(TidegateError):
    """An idempotent producer repeats a batch with other events than are stored under its number."""

    fault = Fault.CALLER


class ProducerEpochStolenError(TidegateError):
    """A newer instance of the same idempotent producer (a higher epoch) writes to this partition."""

    fault = Fault.STATE


class DirectoryInUseError(TidegateError):
    """Another running service owns this data directory."""

    fault = Fault.STATE


class LogFailedError(TidegateError):
    """A write or a sync of a partition's log failed: it takes no more until a restart verified it.

    Or a read failed, for another reason than damage; that may go well again.
    """

    remote_text = (
        "The service cannot read or write this partition, because its disk failed. The "
        "operator must check the disk and restart the service; see the service's log for "
        "details."
    )


class LogCorruptError(TidegateError):
    """Stored bytes fail their checksum or structure in a place that recovery must not guess about."""

    remote_text = (
        "Stored events of this partition are damaged and cannot be read; other partitions "
        "are not affected. The operator must stop the service and run: tidegate check DIR. "
        "See the service's log for details."
    )


class LogFullError(TidegateError):
    """The disk has no room: the append was refused and nothing of it is in the log."""

    is_transient = True
    remote_text = (
        "The service's disk is full: nothing was stored. Send it again later; the operator "
        "must free disk space."
    )


class WouldBlockError(TidegateError):
    """A ``…_nowait`` call would have had to wait: nothing happened; use the waiting call or try later."""

    is_transient = True


class CheckpointGapError(TidegateError):
    """A batch starts beyond the partition's checkpoint: the events between them were never processed."""

    fault = Fault.STATE


class LedgerMismatchError(TidegateError):
    """A micro-batch does not follow what the ledger holds: writing could double rows, skipping lose some."""

    fault = Fault.STATE


class EventHubReplacedError(TidegateError):
    """The event hub was deleted and made anew: the checkpoint's sequence numbers belong to the old one."""

    fault = Fault.STATE


class PartitionStoppedError(TidegateError):
    """A handler failed and the policy is to stop: the partition's checkpoint stands before that event."""

    fault = Fault.CALLER


class PartitionStalledError(TidegateError):
    """A partition has events waiting and made no progress: its handler hangs, or its receiver does."""

    is_transient = True


class StoreError(TidegateError):
    """A lease and checkpoint store refused for good: its place, its permissions or its contents are wrong."""


class StoreUnavailableError(StoreError):
    """A lease and checkpoint store did not answer; leases that cannot be renewed run out."""

    is_transient = True


class DatabaseError(TidegateError):
    """The SQL database refused or lost a transaction."""


class DatabaseUnavailableError(DatabaseError):
    """No connection, a lost one, or a lock that was not free in time: nothing was written unless the text
    says so.
    """

    is_transient = True


class ProtocolError(TidegateError):
    """Root of violations of AMQP or of the Event Hubs dialect."""


class LocalProtocolError(ProtocolError):
    """Our own side asked for something that the protocol's state does not allow."""

    fault = Fault.CALLER


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""

    fault = Fault.PEER


class ClosedError(TidegateError):
    """You closed it, or its owner did."""

    fault = Fault.CALLER


class BrokenError(TidegateError):
    """The world closed it: connection lost, service gone. Reconnect."""

    is_transient = True


class OperationTimeoutError(TidegateError):
    """The peer did not answer in time; whether it acted is unknown."""

    is_transient = True
