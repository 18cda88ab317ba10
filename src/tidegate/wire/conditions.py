"""The table between our errors, AMQP's error conditions and HTTP statuses, in both directions.

An error class without a row is sent as its nearest base class. The message is chosen where the error is
raised. Source of the ``com.microsoft:…`` conditions: the official clients' tables of them (azure-eventhub
5.15.1, @azure/core-amqp).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.amqp import errors as amqp
from tidegate.amqp.errors import DecodeError, FramingError
from tidegate.amqp.performatives import Error
from tidegate.amqp.types import Symbol
from tidegate.model import errors
from tidegate.model.errors import (
    BrokenError,
    PartitionNotFoundError,
    PositionOutOfRangeError,
    ServerBusyError,
    TidegateError,
)

SERVER_BUSY_RETRY_AFTER_S: Final = 4.0
"""How long the official clients wait after server-busy."""


@dataclass(frozen=True, slots=True)
class ConditionRow:
    error: type[TidegateError]
    condition: Symbol
    http_status: int
    response_status: int | None = None
    """``status-code`` of ``$cbs`` and ``$management``, if it differs from the HTTP status."""


def _microsoft(name: str) -> Symbol:
    return Symbol(f"com.microsoft:{name}")


# An error is sent as the first row of its class; a condition or status is read as the first row that has it.
# Later rows map other conditions and statuses to the same error.
CONDITIONS: Final[tuple[ConditionRow, ...]] = (
    ConditionRow(errors.UnauthorizedError, amqp.UNAUTHORIZED_ACCESS, 401),
    ConditionRow(errors.UnauthorizedError, _microsoft("auth-failed"), 403),
    ConditionRow(errors.PublisherRevokedError, _microsoft("publisher-revoked"), 401),
    ConditionRow(errors.NotFoundError, amqp.NOT_FOUND, 404),
    ConditionRow(errors.InvalidArgumentError, _microsoft("argument-error"), 400),
    ConditionRow(errors.InvalidArgumentError, amqp.INVALID_FIELD, 400),
    ConditionRow(errors.PositionOutOfRangeError, _microsoft("argument-out-of-range"), 416),
    ConditionRow(errors.PositionOutOfRangeError, _microsoft("georeplication:invalid-offset"), 416),
    ConditionRow(errors.LogDivergedError, Symbol("tidegate:log-diverged"), 416),
    # At amqp:not-found official clients retry, and the third generation of the Java SDK hangs for a minute.
    # It also does at status 404 of $management, unless the text says that the messaging entity could not be
    # found.
    ConditionRow(
        errors.PartitionNotFoundError, _microsoft("argument-out-of-range"), 404, response_status=400
    ),
    ConditionRow(errors.AlreadyExistsError, _microsoft("entity-already-exists"), 409),
    ConditionRow(errors.EventTooLargeError, amqp.MESSAGE_SIZE_EXCEEDED, 413),
    ConditionRow(errors.ServerBusyError, _microsoft("server-busy"), 429),
    ConditionRow(errors.ServerBusyError, _microsoft("server-busy"), 503),
    ConditionRow(errors.QuotaExceededError, amqp.RESOURCE_LIMIT_EXCEEDED, 429),
    ConditionRow(errors.LogFullError, _microsoft("server-busy"), 507),
    ConditionRow(errors.ReceiverStolenError, amqp.STOLEN, 410),
    ConditionRow(errors.OutOfOrderSequenceError, _microsoft("out-of-order-sequence"), 412),
    ConditionRow(errors.ProducerEpochStolenError, _microsoft("producer-epoch-stolen"), 412),
    ConditionRow(errors.RepeatDiffersError, Symbol("tidegate:repeat-differs"), 412),
    ConditionRow(errors.FencedError, amqp.PRECONDITION_FAILED, 412),
    ConditionRow(errors.FencedError, _microsoft("precondition-failed"), 412),
    ConditionRow(errors.FencedError, _microsoft("partition-not-owned"), 412),
    ConditionRow(errors.OperationTimeoutError, _microsoft("timeout"), 408),
    ConditionRow(errors.OperationTimeoutError, _microsoft("timeout"), 504),
    ConditionRow(errors.BrokenError, amqp.DETACH_FORCED, 502),
    ConditionRow(errors.BrokenError, amqp.CONNECTION_FORCED, 502),
    ConditionRow(errors.BrokenError, _microsoft("container-close"), 502),
    ConditionRow(errors.BrokenError, _microsoft("operation-cancelled"), 502),
    ConditionRow(errors.BrokenError, _microsoft("entity-disabled"), 502),
    ConditionRow(errors.BrokenError, amqp.RESOURCE_DELETED, 410),
    ConditionRow(errors.ClosedError, amqp.DETACH_FORCED, 410),
    ConditionRow(DecodeError, amqp.DECODE_ERROR, 400),
    ConditionRow(FramingError, amqp.FRAMING_ERROR, 400),
    ConditionRow(errors.RemoteProtocolError, amqp.NOT_ALLOWED, 400),
    # Our own condition: a client must not treat it as transient and attach forever.
    ConditionRow(errors.LogCorruptError, Symbol("tidegate:log-corrupt"), 500),
    ConditionRow(errors.LogFailedError, Symbol("tidegate:log-failed"), 500),
    ConditionRow(errors.LocalProtocolError, amqp.INTERNAL_ERROR, 500),
    ConditionRow(errors.TidegateError, amqp.INTERNAL_ERROR, 500),
)

_BY_ERROR: dict[type, ConditionRow] = {}
_BY_CONDITION: dict[str, ConditionRow] = {}
_BY_STATUS: dict[int, ConditionRow] = {}
for _row in CONDITIONS:
    _BY_ERROR.setdefault(_row.error, _row)
    _BY_CONDITION.setdefault(_row.condition, _row)
    _BY_STATUS.setdefault(_row.http_status, _row)
# The peer's internal error is not a protocol error of ours.
_BY_CONDITION[amqp.INTERNAL_ERROR] = _BY_ERROR[TidegateError]
_BY_STATUS[500] = _BY_ERROR[TidegateError]


def row_for(error: BaseException) -> ConditionRow:
    """The row of an error's class or nearest base. Foreign errors are internal errors."""
    for kind in type(error).__mro__:
        if kind in _BY_ERROR:
            return _BY_ERROR[kind]
    return _BY_ERROR[TidegateError]


def condition_for(error: BaseException) -> Symbol:
    """The AMQP condition of an error."""
    return row_for(error).condition


def http_status_for(error: BaseException) -> int:
    """The HTTP status of an error."""
    return row_for(error).http_status


def response_status_for(error: BaseException) -> int:
    """The ``status-code`` of an error in ``$cbs`` and ``$management``."""
    row = row_for(error)
    return row.response_status or row.http_status


def error_description(
    error: BaseException, *, tracking_id: str | None = None, now_utc: datetime | None = None
) -> str:
    """The message for the peer: the error's own, without details meant only for the operator.

    tracking_id, now_utc: if given, the suffix of Event Hubs' messages is appended.
    """
    text = "The service failed; see its log for details."
    if isinstance(error, TidegateError):
        # The message may quote the peer: replace line breaks, so that it cannot forge log lines.
        text = "".join(letter if letter.isprintable() else "?" for letter in error.remote_text or str(error))
    if tracking_id is not None:
        text += f" TrackingId:{tracking_id}, SystemTracker:tidegate"
        if now_utc is not None:
            text += f", Timestamp:{now_utc:%Y-%m-%dT%H:%M:%S}"
    return text


def to_amqp_error(
    error: BaseException, *, tracking_id: str | None = None, now_utc: datetime | None = None
) -> Error:
    """An error for a detach, end, close or rejected; see ``error_description``."""
    return Error(condition_for(error), error_description(error, tracking_id=tracking_id, now_utc=now_utc))


def error_from_condition(condition: str | None, description: str | None) -> TidegateError:
    """The error for a peer's condition. An unknown condition becomes a plain TidegateError."""
    row = _BY_CONDITION.get(condition or "", _BY_ERROR[TidegateError])
    if row.error is PositionOutOfRangeError and (description or "").startswith(PartitionNotFoundError.TEXT):
        row = _BY_ERROR[PartitionNotFoundError]
    text = description or f"The peer sent the condition {condition or 'none'} without a description."
    if row.error is TidegateError and condition:
        text = f"{text} ({condition})"
    return _make(row, text)


def error_from_amqp(error: Error | None) -> TidegateError:
    """The error for a peer's error. None, a close without a reason, becomes BrokenError."""
    if error is None:
        return BrokenError("The peer closed without giving a reason.", next_step="Connect again.")
    return error_from_condition(error.condition, error.description)


def error_from_status(status: int, description: str | None, condition: str | None = None) -> TidegateError:
    """The error for a response's status, or for its condition, which is more precise."""
    if condition in _BY_CONDITION:
        return error_from_condition(condition, description)
    row = _BY_STATUS.get(status) or _BY_STATUS[400 if 400 <= status < 500 else 500]
    return _make(row, description or f"The peer answered with status {status}.")


def _make(row: ConditionRow, text: str) -> TidegateError:
    if row.error is ServerBusyError:
        return ServerBusyError(text, retry_after_s=SERVER_BUSY_RETRY_AFTER_S)
    return row.error(text)
