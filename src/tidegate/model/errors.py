"""The one error tree. Each error says whose fault it is, whether a retry helps, and what to do next.

``tidegate.wire.conditions`` maps them to AMQP conditions and HTTP statuses. No other module defines an error
root.
"""

from __future__ import annotations

import traceback
from enum import Enum
from typing import ClassVar, Final

LATER_VERSION: Final = "Run the version of Tidegate that wrote it, or a later one."
"""What to do next where something stored is of a form that this version does not know."""


class Fault(Enum):
    """Who caused an error."""

    CALLER = "caller"
    """The request was invalid: the same request fails again."""
    PEER = "peer"
    """The other side broke the protocol or its promise."""
    WORLD = "world"
    """Disk, network or capacity; no code is at fault."""
    STATE = "state"
    """Another process acted first: a stolen receiver, a moved checkpoint."""


class TidegateError(Exception):
    """Root of every error that Tidegate raises on purpose.

    ``str(error)`` is one sentence with the values in it, followed by what to do next.
    """

    fault: ClassVar[Fault] = Fault.WORLD
    is_transient: ClassVar[bool] = False
    """True if the same call may succeed later without any change."""
    remote_text: ClassVar[str] = ""
    """Sent to remote peers instead of a message that would show paths of the service's machine; empty: the
    message."""

    def __init_subclass__(cls, *, fault: Fault | None = None, is_transient: bool | None = None) -> None:
        """A subclass inherits what its class line does not set."""
        super().__init_subclass__()
        cls.fault = cls.fault if fault is None else fault
        cls.is_transient = cls.is_transient if is_transient is None else is_transient

    def __init__(self, message: str, *, next_step: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.retry_after_s = retry_after_s
        """Seconds to wait before a retry; None if unspecified."""

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".rstrip()


class InvalidArgumentError(TidegateError, fault=Fault.CALLER):
    """An invalid value, option or address."""


class ConnectionStringError(InvalidArgumentError):
    """A connection string that does not parse; the message never contains the key."""


class NotFoundError(TidegateError, fault=Fault.CALLER):
    """A hub, partition, consumer group or dead letter that does not exist."""


class PartitionNotFoundError(NotFoundError):
    """A partition id that the event hub does not have."""

    TEXT: Final = "The specified partition is invalid for an EventHub partition sender or receiver."
    """The start of the service's message. Clients identify the error by it, since other errors share its
    condition (@azure/event-hubs 6, test/public/hubruntime.spec.ts)."""

    @classmethod
    def of(cls, partition_count: int) -> PartitionNotFoundError:
        """The error of an event hub with this many partitions, worded as the service does."""
        return cls(f"{cls.TEXT} It should be between 0 and {partition_count - 1}.")


class AlreadyExistsError(TidegateError, fault=Fault.CALLER):
    """An entity of this name already exists."""


class UnauthorizedError(TidegateError, fault=Fault.CALLER):
    """A missing, wrong or expired token, or a policy without the needed claim."""


class InvalidKeyError(UnauthorizedError):
    """A key or signature that does not match the policy."""

    answer_after_s = 0.0
    """Seconds to delay the answer, against guessing; 0.0: no delay."""


class ClockSkewError(UnauthorizedError):
    """A token that is valid by this machine's clock has expired by the service's: one of them is wrong."""


class PublisherRevokedError(UnauthorizedError):
    """A publisher that was revoked on its event hub: it cannot send until it is restored."""


class EventTooLargeError(TidegateError, fault=Fault.CALLER):
    """An event or batch over the hub's limit."""


class QuotaExceededError(TidegateError, fault=Fault.CALLER):
    """A documented limit (receivers, consumer groups, hubs) is reached."""


class ServerBusyError(TidegateError, is_transient=True):
    """The service asks the caller to slow down; ``retry_after_s`` says for how long."""


class ReceiverStolenError(TidegateError, fault=Fault.STATE):
    """Another receiver took this partition with an equal or higher owner level (epoch)."""


class PositionOutOfRangeError(TidegateError, fault=Fault.STATE):
    """A position outside the log: beyond its end, or older than the oldest retained event."""


class LogDivergedError(PositionOutOfRangeError):
    """A position in a history that the log does not have, or that ended before it, as in a restored backup:
    the log gives its numbers again, to other events."""


class FencedError(TidegateError, fault=Fault.STATE):
    """The checkpoint or lease moved to another owner: the transaction was rolled back."""


class OutOfOrderSequenceError(TidegateError, fault=Fault.CALLER):
    """An idempotent producer's batch does not follow its last stored one: a batch is missing between them."""


class RepeatDiffersError(TidegateError, fault=Fault.CALLER):
    """An idempotent producer repeats a batch number with different events."""


class ProducerEpochStolenError(TidegateError, fault=Fault.STATE):
    """A newer instance of the same idempotent producer (a higher epoch) writes to this partition."""


class OutboxInDoubtError(TidegateError, fault=Fault.STATE):
    """Published events may be in their hub already, and nothing shows whether: none of them is sent."""


class DirectoryInUseError(TidegateError, fault=Fault.STATE):
    """Another running service uses this data directory."""


class LogFailedError(TidegateError):
    """A write or sync of a partition's log failed: it refuses appends until a restart has verified it.

    Or a read failed for a reason other than damage; a later read may succeed.
    """

    remote_text = (
        "The service cannot read or write this partition, because its disk failed. The "
        "operator must check the disk and restart the service; see the service's log for "
        "details."
    )


class LogCorruptError(TidegateError):
    """Stored bytes fail their checksum or structure where recovery cannot repair them."""

    remote_text = (
        "Stored events of this partition are damaged and cannot be read; other partitions "
        "are not affected. The operator must stop the service and run: tidegate check DIR. "
        "See the service's log for details."
    )


class LogFormatError(LogCorruptError):
    """Stored bytes pass their checksum and are of a format that this version does not know."""

    remote_text = (
        "Stored events of this partition have a format that this version of the service does not know. The "
        "operator must start the version that wrote them, or a later one."
    )


class LogFullError(TidegateError, is_transient=True):
    """The disk is full: the append was rejected as a whole."""

    remote_text = (
        "The service's disk is full: nothing was stored. Send it again later; the operator "
        "must free disk space."
    )


class WouldBlockError(TidegateError, is_transient=True):
    """A ``…_nowait`` call would have to wait: nothing happened; use the waiting call or try later."""


class CheckpointGapError(TidegateError, fault=Fault.STATE):
    """A batch starts beyond the partition's checkpoint: the events between them were never processed."""


class LedgerMismatchError(TidegateError, fault=Fault.STATE):
    """A micro-batch does not follow the ledger: writing it could duplicate rows, skipping it lose some."""


class EventHubReplacedError(TidegateError, fault=Fault.STATE):
    """The event hub was deleted and recreated: the checkpoint's sequence numbers belong to the old one."""


class PartitionPausedError(TidegateError, is_transient=True):
    """A partition pauses: what its handler calls does not answer, or too many of its events fail."""

    next_sequence_number: int | None = None
    """The first event that is not committed; None if unknown."""
    dead_letters: int = 0
    """Dead letters committed before it."""


class PartitionStoppedError(TidegateError, fault=Fault.CALLER):
    """A handler failed and the policy is to stop: the partition's checkpoint stays before that event."""

    next_sequence_number: int | None = None
    """The first event that is not committed; None if unknown."""
    dead_letters: int = 0
    """Dead letters committed before it."""


class PartitionStalledError(TidegateError, is_transient=True):
    """A partition with waiting events makes no progress: its handler or its receiver hangs."""


class StoreError(TidegateError):
    """A lease and checkpoint store failed permanently: wrong location, permissions or contents."""


class StoreUnavailableError(StoreError, is_transient=True):
    """A lease and checkpoint store did not answer; leases that cannot be renewed expire."""


class DatabaseError(TidegateError):
    """The SQL database rejected or lost a transaction."""


class DatabaseUnavailableError(DatabaseError, is_transient=True):
    """No connection, a lost connection, or a lock timeout: nothing was written unless the message says so."""


class ProtocolError(TidegateError):
    """Root of violations of AMQP or of the Event Hubs dialect."""


class LocalProtocolError(ProtocolError, fault=Fault.CALLER):
    """This side requested something that the protocol's state does not allow."""


class RemoteProtocolError(ProtocolError, fault=Fault.PEER):
    """The peer sent something that the protocol does not allow."""


class ClosedError(TidegateError, fault=Fault.CALLER):
    """The object was closed by its user or owner."""


class BrokenError(TidegateError, is_transient=True):
    """The connection was lost, or the service stopped. Reconnect."""


class TlsError(BrokenError, fault=Fault.CALLER, is_transient=False):
    """A peer that does not speak TLS where it is expected, as a service's plain port."""


class OperationTimeoutError(TidegateError, is_transient=True):
    """The peer did not answer in time; whether the operation was done is unknown."""


def text_of(error: BaseException) -> str:
    """``str(error)``; the name of its class if that is empty, or raises, as a user's class may."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # whatever a user's __str__ raises
        return type(error).__name__


def traceback_of(error: BaseException) -> str:
    """The error with its causes and tracebacks, as Python prints them; without its causes if that raises.

    Python 3.13 raises UnicodeEncodeError when it looks for a name similar to one with a lone surrogate.
    """
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # whatever a user's exception makes it raise
        lines = traceback.format_tb(error.__traceback__)
        return "".join([*lines, f"{type(error).__name__}: {text_of(error)}\n"])


def loggable(error: BaseException) -> BaseException | None:
    """``error`` for ``exc_info``; None if Python cannot format it: the call that logs it might raise."""
    try:
        traceback.format_exception(error)
    except Exception:  # see ``traceback_of``
        return None
    return error
