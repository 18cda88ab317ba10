"""Fills batches by encoded size. Pure.

An encoded event is sent as one AMQP data section; a batch is a small envelope followed by data sections.
Sizes count these bytes, as the service does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from tidegate.model.errors import EventTooLargeError, InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.model.hub_properties import check_partition_id
from tidegate.model.limits import EVENT_BYTES_MAX, PARTITION_KEY_CHARACTERS_MAX
from tidegate.tracing import Tracing
from tidegate.wire.batch import DATA_SECTION_8, DATA_SECTION_32
from tidegate.wire.event_codec import encode_event

ENVELOPE_BYTES_MAX: Final = 256
"""Reserved in each batch for its header and the producer's annotations, which are smaller."""

_pack_header = struct.Struct(">II").pack
_SHORT_HEADERS: Final = tuple(struct.pack(">IB", DATA_SECTION_8, length) for length in range(256))
_HEADER_BYTES_MAX: Final = 8


class BatchAccumulator:
    """The data sections of one batch being filled, each as two parts: its header and the encoded event.

    Parts are joined only when the batch is sent, so each event's bytes are copied once.
    """

    __slots__ = ("bytes_max", "parts", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """Maximum bytes of sections, without the envelope."""
        self.parts: list[bytes] = []
        """Headers at even indexes, encoded events at odd ones."""
        self.size_bytes = 0

    def try_add(self, encoded: bytes) -> int:
        """Add an encoded event and return the bytes that it takes, or 0 if there is no room."""
        length = len(encoded)
        header = _SHORT_HEADERS[length] if length < 256 else _pack_header(DATA_SECTION_32, length)
        added_bytes = length + len(header)
        size_bytes = self.size_bytes + added_bytes
        if size_bytes > self.bytes_max:
            return 0
        self.parts += (header, encoded)
        self.size_bytes = size_bytes
        return added_bytes

    def take(self) -> list[bytes]:
        """Remove and return all parts, in order."""
        parts = self.parts
        self.parts = []
        self.size_bytes = 0
        return parts

    def __len__(self) -> int:
        """The number of events."""
        return len(self.parts) // 2


class EventDataBatch:
    """Events that are sent all or none. ``EventHubProducer.create_batch`` creates one."""

    def __init__(
        self,
        *,
        bytes_max: int,
        partition_key: str | None,
        partition_id: str | None,
        tracing: Tracing | None = None,
    ) -> None:
        """tracing: gives events the context of the current span; None: they stay as they are."""
        check_destination(partition_key, partition_id)
        self._tracing = tracing
        self.partition_key = partition_key
        self.partition_id = partition_id
        self._accumulator = BatchAccumulator(bytes_max)

    def try_add(self, event: EventData) -> bool:
        """Add an event; False if there is no room. Raises EventTooLargeError if no batch could hold it."""
        if self._tracing is not None:
            event = self._tracing.sent(event)
        encoded = encode_event(event, self.partition_key)
        if self._accumulator.try_add(encoded):
            return True
        check_size(encoded, self._accumulator.bytes_max)
        return False

    @property
    def size_bytes(self) -> int:
        """Encoded size of the events, without the envelope."""
        return self._accumulator.size_bytes

    @property
    def bytes_max(self) -> int:
        """The maximum of ``size_bytes``."""
        return self._accumulator.bytes_max

    @property
    def parts(self) -> list[bytes]:
        """A copy of the sections, as ``BatchAccumulator`` holds them."""
        return list(self._accumulator.parts)

    def __len__(self) -> int:
        return len(self._accumulator)

    def __repr__(self) -> str:
        return f"<EventDataBatch events={len(self)} bytes={self.size_bytes} of {self.bytes_max}>"


def encode_batch(
    events: Iterable[EventData], *, partition_key: str | None, partition_id: str | None, bytes_max: int
) -> EventDataBatch:
    """One batch of all ``events``. Raises EventTooLargeError, with the sizes, if they do not fit."""
    batch = EventDataBatch(bytes_max=bytes_max, partition_key=partition_key, partition_id=partition_id)
    for event in events:
        if not batch.try_add(event):
            raise EventTooLargeError(
                f"The events together exceed the maximum batch size of {bytes_max} bytes "
                f"({len(batch)} of them fit).",
                next_step="Send them in several calls, or use enqueue, which fills batches automatically.",
            )
    return batch


def check_size(encoded: bytes, bytes_max: int) -> None:
    """Raises EventTooLargeError if the event does not fit into an empty batch."""
    if len(encoded) + _HEADER_BYTES_MAX > bytes_max:
        raise EventTooLargeError(
            f"An event of {len(encoded)} encoded bytes exceeds the limit of {bytes_max - _HEADER_BYTES_MAX}.",
            next_step="Store large content elsewhere and send a reference to it.",
        )


def check_destination(partition_key: str | None, partition_id: str | None) -> None:
    """Raises InvalidArgumentError if both a key and a partition are given, or one that is none."""
    if partition_id is not None:
        check_partition_id(partition_id)
    if partition_key is not None:
        if not isinstance(partition_key, str):
            raise InvalidArgumentError(
                f"A partition key is a string, not the {type(partition_key).__name__} {partition_key!r}."
            )
        if partition_id is not None:
            raise InvalidArgumentError("Use partition_key or partition_id, not both.")
        if len(partition_key) > PARTITION_KEY_CHARACTERS_MAX:
            raise InvalidArgumentError(
                f"A partition key of {len(partition_key)} characters exceeds the limit of "
                f"{PARTITION_KEY_CHARACTERS_MAX}."
            )


def largest_batch_bytes(link_message_bytes_max: int | None) -> int:
    """Maximum bytes of a batch's sections on a link with this max-message-size (0, None: no limit)."""
    return min(link_message_bytes_max or EVENT_BYTES_MAX, EVENT_BYTES_MAX) - ENVELOPE_BYTES_MAX
