"""Events as values: what a producer sends and what a consumer receives."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.times import time_of

VISIBLE_CONTROLS: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    9: "\\t",
    10: "\\n",
    13: "\\r",
    # The first two end a line for some programs; the others change the order in which what follows is shown
    # (Unicode Standard Annex 9, section 2).
    **{code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))},
}
"""For ``str.translate``: escapes for characters in events that must not reach a terminal, a log or a page."""

PropertyValue = None | bool | int | float | str | bytes | datetime | UUID
"""The types of an application property: simple types only (AMQP 1.0 part 3 section 3.2.5)."""


@dataclass(frozen=True, slots=True, init=False)
class EventData:
    """An event to send. The partition key is an argument of the producer, not part of the event."""

    body: bytes
    properties: Mapping[str, PropertyValue] = field(default_factory=dict)
    content_type: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None

    def __init__(
        self,
        body: bytes | str,
        properties: Mapping[str, PropertyValue] | None = None,
        content_type: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """body: text is encoded in UTF-8. Raises InvalidArgumentError for anything else than text or bytes.

        properties: their values are of the types in ``PropertyValue``.
        """
        assign = object.__setattr__
        assign(self, "body", body if type(body) is bytes else _bytes_of(body))
        assign(self, "properties", {} if properties is None else properties)
        assign(self, "content_type", content_type)
        assign(self, "message_id", message_id)
        assign(self, "correlation_id", correlation_id)


@dataclass(frozen=True, slots=True)
class EventContents:
    """The decoded contents of an event."""

    body: bytes
    """The concatenated data sections; ``body_value`` has a body of another kind (value, sequence)."""
    properties: Mapping[str, PropertyValue] = field(default_factory=dict)
    partition_key: str | None = None
    content_type: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    body_value: object = None

    def record(self, value_text: Callable[[object], str] = str) -> dict[str, object]:
        """Key, properties and body for programs; the body is in ``body_base64`` if it is not UTF-8 text.

        value_text: formats a body that is a value.
        """
        body = body_base64 = None
        if self.body_value is not None:
            body = value_text(self.body_value)
        else:
            try:
                body = self.body.decode()
            except UnicodeDecodeError:
                body_base64 = base64.b64encode(self.body).decode()
        place = {"partition_key": self.partition_key, "properties": self.properties}
        return {**place, "body": body, "body_base64": body_base64}


def _bytes_of(body: object) -> bytes:
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"The body of an event is not text: {error}.") from error
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise InvalidArgumentError(
        f"The body of an event is text or bytes, not {type(body).__name__}.",
        next_step="Encode it first, for example with json.dumps.",
    )


class ReceivedEvent:
    """An event as read from a partition; its contents are decoded on first use.

    Reading its position (sequence number, offset, enqueued time) costs nothing. ``body`` alone decodes only
    the body; the first use of ``properties``, ``partition_key`` or ``contents`` decodes everything, once.

    Any AMQP client may send bytes that are not an AMQP message. Nothing raises for such an event: it has no
    properties and no key, its body is all its bytes if they hold none, and ``decode_error`` says why. In a
    transactional handler or a pipeline, everything but ``decode_error`` raises RemoteProtocolError, and the
    event becomes a dead letter with that reason.
    """

    __slots__ = (
        "_body",
        "_contents",
        "_decode",
        "_decode_body",
        "_encoded",
        "_is_strict",
        "enqueued_time_ms",
        "offset",
        "partition_id",
        "sequence_number",
    )

    _is_strict: bool

    def __init__(
        self,
        partition_id: str,
        sequence_number: int,
        offset: str,
        enqueued_time_ms: int,
        encoded: bytes | memoryview | None = None,
        decode: Callable[[bytes | memoryview], EventContents] | None = None,
        decode_body: Callable[[bytes | memoryview], bytes | memoryview] | None = None,
        contents: EventContents | None = None,
        body: bytes | None = None,
    ) -> None:
        """Pass either ``contents``, or ``encoded`` with the function that decodes it.

        decode_body: decodes the body alone, faster. body: the body, if it is already known.
        """
        assert (contents is None) == (encoded is not None and decode is not None)
        self.partition_id = partition_id
        self.sequence_number = sequence_number
        self.offset = offset
        """Opaque; store it and pass it back unchanged."""
        self.enqueued_time_ms = enqueued_time_ms
        """When the service accepted it, in milliseconds since 1970-01-01 UTC."""
        self._encoded = encoded
        self._decode = decode
        self._decode_body = decode_body
        self._contents = contents
        self._body = body

    @property
    def enqueued_time(self) -> datetime:
        """When the service accepted it, aware, in UTC."""
        return time_of(self.enqueued_time_ms)

    @property
    def encoded(self) -> bytes | memoryview | None:
        """The event as it was received, also once it is decoded; None if it was created from contents.

        It has what ``contents`` leaves out: the publisher, other annotations, the exact types of values.
        """
        return self._encoded

    def decode(self) -> EventContents:
        """Decode everything, once. Raises RemoteProtocolError if the event is not an AMQP message."""
        contents = self._contents
        if contents is None:
            assert self._decode is not None
            assert self._encoded is not None
            contents = self._contents = self._decode(self._encoded)
        return contents

    @property
    def decode_error(self) -> str | None:
        """Why the event is not an AMQP message; None: it is one. Decodes everything, once."""
        try:
            self.decode()
        except RemoteProtocolError as error:
            return error.message
        return None

    @property
    def contents(self) -> EventContents:
        contents = self._contents
        if contents is None:
            try:
                contents = self.decode()
            except RemoteProtocolError:
                if getattr(self, "_is_strict", False):  # no constructor sets it
                    raise
                contents = EventContents(self.body)
        return contents

    @property
    def body(self) -> bytes:
        body = self._body
        if body is None:
            try:
                if self._contents is None and self._decode_body is not None:
                    assert self._encoded is not None
                    found = self._decode_body(self._encoded)
                    body = found if isinstance(found, bytes) else bytes(found)
                else:
                    body = self.decode().body
            except RemoteProtocolError:
                if getattr(self, "_is_strict", False):  # no constructor sets it
                    raise
                assert self._encoded is not None
                return bytes(self._encoded)
            self._body = body
        return body

    @property
    def properties(self) -> Mapping[str, PropertyValue]:
        # As ``contents``, without its call: programs that read properties do so for each event.
        contents = self._contents
        return (self.contents if contents is None else contents).properties

    @property
    def partition_key(self) -> str | None:
        """The key that determined the partition; None if there was none."""
        return self.contents.partition_key

    def __repr__(self) -> str:
        return (
            f"<ReceivedEvent partition={self.partition_id} sequence_number={self.sequence_number} "
            f"offset={self.offset} enqueued={self.enqueued_time.isoformat()}>"
        )


def refuse_undecodable(events: Iterable[ReceivedEvent]) -> None:
    """From here on, contents of those that are not AMQP messages raise RemoteProtocolError.

    For handlers whose failed events become dead letters: bytes of any kind must not pass for a body.
    """
    for event in events:
        event._is_strict = True
