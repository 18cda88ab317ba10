"""Encoded responses as a service sends them, and the lengths of sections as it stores them."""

from __future__ import annotations

from array import array

from tests.support.batches import split_batch

from tidegate.amqp.message import MessageId
from tidegate.model.errors import TidegateError
from tidegate.wire.batch import batch_envelope
from tidegate.wire.conditions import condition_for, error_description, response_status_for
from tidegate.wire.request_response import encode_response


def encode_error_response(
    correlation_id: MessageId | None, error: TidegateError, *, tracking_id: str | None = None
) -> bytes:
    """The response to a request that failed."""
    return encode_response(
        correlation_id,
        response_status_for(error),
        status_description=error_description(error, tracking_id=tracking_id),
        error_condition=condition_for(error),
    )


def section_lengths(stored: bytes | memoryview) -> array[int]:
    """The lengths of contiguous stored sections."""
    return split_batch(batch_envelope() + bytes(stored)).lengths
