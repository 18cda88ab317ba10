"""SASL frames: both roles' bodies, as the official Python client reads and writes them, secrets unseen."""

from __future__ import annotations

import pytest
from azure.eventhub._pyamqp import _decode, _encode, performatives

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.sasl import (
    ANONYMOUS,
    MSSBCBS,
    OUTCOME_OK,
    SaslChallenge,
    SaslFrameBody,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
    encode_sasl,
)

BODIES: list[SaslFrameBody] = [
    SaslMechanisms((MSSBCBS, ANONYMOUS)),
    SaslInit(ANONYMOUS, b"\0name", "host"),
    SaslChallenge(b"c"),
    SaslResponse(b"r"),
    SaslOutcome(OUTCOME_OK),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_body_comes_back(body: SaslFrameBody) -> None:
    """Protects each SASL frame in both directions."""
    assert decode_sasl(encode_sasl(body)) == body
    with pytest.raises(DecodeError):
        decode_sasl(encode_sasl(body) + b"\x40")


def test_the_official_client_finds_its_mechanism() -> None:
    """Protects the offer: azure-eventhub 5.15.1 needs an array that has ANONYMOUS in it."""
    theirs = _decode.decode_frame(memoryview(encode_sasl(SaslMechanisms((MSSBCBS, ANONYMOUS)))))
    assert theirs == (0x40, [[b"MSSBCBS", b"ANONYMOUS"]])
    assert _decode.decode_frame(memoryview(encode_sasl(SaslOutcome(OUTCOME_OK)))) == (0x44, [0, None])


def test_the_official_clients_init_is_read() -> None:
    """Protects reading the choice of azure-eventhub 5.15.1."""
    _, body = _encode.encode_frame(performatives.SASLInit(b"ANONYMOUS", b"", "host"), b"\x01")
    assert body is not None
    assert decode_sasl(bytes(body)) == SaslInit(ANONYMOUS, b"", "host")


def test_a_password_is_not_in_a_repr() -> None:
    """Protects secrets from logs."""
    assert "secret" not in repr(SaslInit(ANONYMOUS, b"\0u\0secret")) + repr(SaslResponse(b"secret"))


def test_a_performative_is_no_sasl_body() -> None:
    """Protects the SASL layer from frames of the layer above."""
    with pytest.raises(DecodeError):
        decode_sasl(bytes.fromhex("00531745"))
