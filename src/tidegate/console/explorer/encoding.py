"""Encodes events that the console sends, each property with its given AMQP type. Pure.

The producers' ``wire.event_codec`` chooses the type by value, as the official Python client does; here a long
stays a long, however small, so that a copied event is the same.
"""

from __future__ import annotations

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import EncodeError
from tidegate.amqp.message import Header, Message, Properties, encode_message
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.batch import wrap_event
from tidegate.wire.names import PARTITION_KEY

_ANNOTATIONS = b"\x00\x53\x72"
"""The start of a message annotations section (AMQP 1.0 part 3 section 3.2.3)."""


class EventEncoder:
    """Encodes events with common properties, which are encoded once."""

    def __init__(self, message: Message) -> None:
        """message: its header and properties. Raises InvalidArgumentError for a value that AMQP cannot
        represent.
        """
        header = None if message.header == Header() else message.header
        standard = None if message.properties == Properties() else message.properties
        properties = Message(properties=standard, application_properties=message.application_properties)
        try:
            self._header = encode_message(Message(header=header))
            self._properties = encode_message(properties)
        except EncodeError as error:
            raise InvalidArgumentError(f"The properties have no AMQP form: {error}") from error

    def encode(self, body: bytes, partition_key: str | None) -> bytes:
        """An event for ``wire.batch.wrap_event``. Raises InvalidArgumentError for the key."""
        annotations = b"" if partition_key is None else _annotations(partition_key)
        # A data section is the same whether its bytes are a message or not.
        return b"".join((self._header, annotations, self._properties, wrap_event(body)))


def _annotations(partition_key: str) -> bytes:
    try:
        return _ANNOTATIONS + encode_value({PARTITION_KEY: partition_key})
    except EncodeError as error:
        raise InvalidArgumentError(f"The partition key has no AMQP form: {error}") from error
