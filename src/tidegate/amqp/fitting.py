"""Shortens performatives to the peer's frame size.

    performative           omitted if the frame would be too large
    open                   properties and capabilities
    attach                 link properties, the longest first
    disposition            the end of an error's description, then all of the state but its name
    detach, end, close     the end of the error's description

Transfers are split instead (``transfers``); begin and flow are always small. Source: AMQP 1.0 part 2 section
2.7.1, max-frame-size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import FrameTooSmallError
from tidegate.amqp.frames import FRAME_HEADER_BYTES
from tidegate.amqp.performatives import (
    Attach,
    Close,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Error,
    Modified,
    Open,
    Performative,
    Rejected,
    encode_performative,
)

REFUSAL_BYTES: Final = 64
"""Room for everything but the name in the attach that refuses a link (45 bytes are used)."""

_ELLIPSIS: Final = "…"


def encode_within(performative: Performative, frame_bytes_max: int) -> bytes:
    """Encode a performative, shortened if its frame would be larger than ``frame_bytes_max``.

    Raises FrameTooSmallError if the rest does not fit.
    """
    bytes_max = frame_bytes_max - FRAME_HEADER_BYTES
    body = encode_performative(performative)
    if len(body) > bytes_max:
        body = encode_performative(_shortened(performative, len(body) - bytes_max))
        if len(body) > bytes_max:
            raise FrameTooSmallError(
                f"The {type(performative).__name__} of {len(body)} bytes does not fit into a "
                f"frame of {frame_bytes_max} bytes, the peer's maximum."
            )
    return body


def _shortened(performative: Performative, excess: int) -> Performative:
    match performative:
        case Open():
            return replace(performative, properties={}, offered_capabilities=(), desired_capabilities=())
        case Attach(properties=properties):
            return replace(performative, properties=_without_longest(properties, excess))
        case Disposition(state=state):
            return replace(performative, state=_shorter_state(state, excess))
        case Detach(error=error) | End(error=error) | Close(error=error) if error is not None:
            return replace(performative, error=_shorter_error(error, excess))
    return performative


def _without_longest(properties: dict[object, object], excess: int) -> dict[object, object]:
    """Omit as few of the longest entries as needed to save ``excess`` bytes."""
    sizes = {key: len(encode_value(key)) + len(encode_value(value)) for key, value in properties.items()}
    left_out = set()
    for key in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if excess <= 0:
            break
        left_out.add(key)
        excess -= sizes[key]
    return {key: value for key, value in properties.items() if key not in left_out}


def _shorter_state(state: DeliveryState | None, excess: int) -> DeliveryState | None:
    match state:
        case Rejected(error=Error(description=str(description)) as error) if (
            len(description.encode()) > excess
        ):
            return Rejected(_shorter_error(error, excess))
        case Rejected():
            return Rejected()
        case Modified():
            return replace(state, message_annotations={})
    return None


def _shorter_error(error: Error, excess: int) -> Error:
    encoded = (error.description or "").encode()
    kept = encoded[: max(0, len(encoded) - excess - len(_ELLIPSIS.encode()))]
    return replace(error, description=kept.decode(errors="ignore") + _ELLIPSIS, info={})
