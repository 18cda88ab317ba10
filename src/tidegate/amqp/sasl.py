"""SASL frames, for both roles: mechanisms, init, challenge, response, outcome.

Event Hubs authenticates at ``$cbs`` once the connection is open; SASL before it is a formality, usually
ANONYMOUS. Source: AMQP 1.0 part 5 section 5.3.
"""

# ruff: noqa: RUF009  (``composite_field`` makes dataclass fields, which ruff cannot see)

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.amqp.decode import Buffer
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.performatives import (
    BINARY,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    composite,
    composite_field,
    decode_composite,
    encode_composite,
)
from tidegate.amqp.types import Symbol

ANONYMOUS: Final = Symbol("ANONYMOUS")
PLAIN: Final = Symbol("PLAIN")
EXTERNAL: Final = Symbol("EXTERNAL")
MSSBCBS: Final = Symbol("MSSBCBS")
"""Mechanisms that Event Hubs clients request. With the last, .NET sends its token later, at $cbs."""

OUTCOME_OK: Final = 0
OUTCOME_AUTH: Final = 1
"""Values of ``SaslOutcome.code`` (part 5 section 5.3.3.6)."""


@composite(0x40, "sasl-mechanisms")
@dataclass(frozen=True, slots=True)
class SaslMechanisms:
    """The mechanisms that the server offers."""

    mechanisms: tuple[Symbol, ...] = composite_field(SYMBOLS)


@composite(0x41, "sasl-init")
@dataclass(frozen=True, slots=True)
class SaslInit:
    """The mechanism that the client chose."""

    mechanism: Symbol = composite_field(SYMBOL)
    initial_response: bytes | None = composite_field(BINARY, None)
    hostname: str | None = composite_field(STRING, None)

    def __repr__(self) -> str:  # the response of PLAIN is a password
        return f"SaslInit(mechanism={self.mechanism!r}, hostname={self.hostname!r})"


@composite(0x42, "sasl-challenge")
@dataclass(frozen=True, slots=True)
class SaslChallenge:
    challenge: bytes = composite_field(BINARY)


@composite(0x43, "sasl-response")
@dataclass(frozen=True, slots=True)
class SaslResponse:
    response: bytes = composite_field(BINARY)

    def __repr__(self) -> str:
        return "SaslResponse()"


@composite(0x44, "sasl-outcome")
@dataclass(frozen=True, slots=True)
class SaslOutcome:
    """The end of the dialogue; ``code`` OUTCOME_OK lets the client continue."""

    code: int = composite_field(UBYTE)
    additional_data: bytes | None = composite_field(BINARY, None)


SaslFrameBody = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome

_BODIES = (SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)


def encode_sasl(body: SaslFrameBody) -> bytes:
    return encode_composite(body)


def decode_sasl(data: Buffer, offset: int = 0) -> SaslFrameBody:
    """Decode a SASL frame's body. Raises DecodeError if it is invalid, or has bytes after it."""
    value, end = decode_composite(data, offset)
    if not isinstance(value, _BODIES):
        raise DecodeError(f"A SASL frame holds {type(value).__name__}.")
    if end != len(data):
        raise DecodeError(f"A SASL frame has {len(data) - end} bytes after its body.")
    return value
