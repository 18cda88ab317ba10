"""``wire.batch.split_message`` in one step."""

from __future__ import annotations

from tidegate.amqp.decode import Buffer
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, BatchSections, split_message


def split_batch(payload: Buffer) -> BatchSections:
    """The events in a batch."""
    return _split(payload, BATCH_MESSAGE_FORMAT)


def split_single(payload: Buffer) -> BatchSections:
    """A single message as a batch of one."""
    return _split(payload, 0)


def _split(payload: Buffer, message_format: int) -> BatchSections:
    *_, sections = split_message(payload, message_format)
    assert sections is not None
    return sections
