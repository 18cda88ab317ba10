"""Errors of AMQP itself, and the conditions that AMQP defines.

Errors about the peer's bytes have the condition to close the connection with. The product's own errors and
their conditions are in ``tidegate.wire.conditions``.
"""

from __future__ import annotations

from typing import ClassVar, Final

from tidegate.amqp.types import Symbol
from tidegate.model.errors import (
    BrokenError,
    LocalProtocolError,
    OperationTimeoutError,
    RemoteProtocolError,
    TidegateError,
)

INTERNAL_ERROR: Final = Symbol("amqp:internal-error")
NOT_FOUND: Final = Symbol("amqp:not-found")
UNAUTHORIZED_ACCESS: Final = Symbol("amqp:unauthorized-access")
DECODE_ERROR: Final = Symbol("amqp:decode-error")
RESOURCE_LIMIT_EXCEEDED: Final = Symbol("amqp:resource-limit-exceeded")
NOT_ALLOWED: Final = Symbol("amqp:not-allowed")
INVALID_FIELD: Final = Symbol("amqp:invalid-field")
PRECONDITION_FAILED: Final = Symbol("amqp:precondition-failed")
RESOURCE_DELETED: Final = Symbol("amqp:resource-deleted")
ILLEGAL_STATE: Final = Symbol("amqp:illegal-state")
FRAME_SIZE_TOO_SMALL: Final = Symbol("amqp:frame-size-too-small")
"""AMQP 1.0 part 2 section 2.8.15 (amqp-error)."""

CONNECTION_FORCED: Final = Symbol("amqp:connection:forced")
FRAMING_ERROR: Final = Symbol("amqp:connection:framing-error")
"""AMQP 1.0 part 2 section 2.8.16 (connection-error)."""

ERRANT_LINK: Final = Symbol("amqp:session:errant-link")
HANDLE_IN_USE: Final = Symbol("amqp:session:handle-in-use")
UNATTACHED_HANDLE: Final = Symbol("amqp:session:unattached-handle")
"""AMQP 1.0 part 2 section 2.8.17 (session-error)."""

DETACH_FORCED: Final = Symbol("amqp:link:detach-forced")
MESSAGE_SIZE_EXCEEDED: Final = Symbol("amqp:link:message-size-exceeded")
STOLEN: Final = Symbol("amqp:link:stolen")
"""AMQP 1.0 part 2 section 2.8.18 (link-error)."""


class DecodeError(RemoteProtocolError):
    """Bytes that are not an AMQP value, or not the expected one."""

    condition: ClassVar[Symbol] = DECODE_ERROR


class FramingError(RemoteProtocolError):
    """Bytes that are not a frame: wrong header, impossible size, larger than agreed."""

    condition: ClassVar[Symbol] = FRAMING_ERROR


class ResourceLimitError(RemoteProtocolError):
    """The peer exceeded a limit of the connection."""

    condition: ClassVar[Symbol] = RESOURCE_LIMIT_EXCEEDED


class FrameTooSmallError(LocalProtocolError):
    """A performative of ours that does not fit into the peer's frames, even shortened."""

    condition: ClassVar[Symbol] = FRAME_SIZE_TOO_SMALL


class EncodeError(LocalProtocolError):
    """A value that AMQP has no encoding for: a wrong type, or out of its type's range."""


def condition_of(error: TidegateError) -> Symbol:
    """The condition to close with: the error's own, if it has one."""
    condition = getattr(error, "condition", None)
    if isinstance(condition, Symbol):
        return condition
    if isinstance(error, RemoteProtocolError):
        return FRAMING_ERROR
    if isinstance(error, (BrokenError, OperationTimeoutError)):
        return CONNECTION_FORCED
    return INTERNAL_ERROR
