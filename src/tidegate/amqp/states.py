"""The state machines of SASL, connection, session and link, as tables.

A step that a table lacks is a protocol error: ours (a ``SEND_`` input) or the peer's (a ``RECEIVE_`` input).
Names are the specification's; states that it omits, because it describes no pipelining there, end in
``_PIPE``. Source: AMQP 1.0 part 2 sections 2.4.6 (connection), 2.5.5 (session), 2.6.3 (link), part 5 section
5.3.2 (SASL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from tidegate.amqp.errors import ILLEGAL_STATE
from tidegate.amqp.types import Symbol
from tidegate.model.errors import LocalProtocolError, RemoteProtocolError


class IllegalStateError(RemoteProtocolError):
    """The peer sent a frame that its state does not allow. The connection ends."""

    condition = ILLEGAL_STATE


class SessionViolationError(RemoteProtocolError):
    """The peer broke a rule of one session: that session ends, the connection continues."""

    def __init__(self, condition: Symbol, message: str) -> None:
        super().__init__(message)
        self.condition = condition


class Step(Enum):
    """A state or an input. Hashed by identity: ``Enum`` hashes in Python, several times for each frame."""

    __hash__ = object.__hash__


S = TypeVar("S", bound=Enum)
I = TypeVar("I", bound=Enum)  # noqa: E741


@dataclass(frozen=True, slots=True)
class StateTable(Generic[S, I]):
    """The allowed steps of one state machine."""

    name: str
    initial: S
    transitions: Mapping[tuple[S, I], S]

    def after(self, state: S, step: I) -> S:
        """The state after ``step``. Raises LocalProtocolError or IllegalStateError if the table lacks it."""
        following = self.transitions.get((state, step))
        if following is not None:
            return following
        text = f"{step.name.lower().replace('_', ' ')} is not allowed while the {self.name} is {state.name}."
        if step.name.startswith("RECEIVE_"):
            raise IllegalStateError(f"The peer violated the protocol: {text}")
        raise LocalProtocolError(text[0].upper() + text[1:])

    def allows(self, state: S, step: I) -> bool:
        return (state, step) in self.transitions


# --- SASL: the client sends header and init, the server header, mechanisms and outcome -----------------


class SaslState(Step):
    """One machine for both roles; each role uses its half of the steps."""

    START = auto()
    HEADER_SENT = auto()
    HEADER_EXCHANGED = auto()
    MECHANISMS_EXCHANGED = auto()
    INIT_EXCHANGED = auto()
    SUCCEEDED = auto()
    FAILED = auto()


class SaslInput(Step):
    SEND_HEADER = auto()
    RECEIVE_HEADER = auto()
    SEND_MECHANISMS = auto()
    RECEIVE_MECHANISMS = auto()
    SEND_INIT = auto()
    RECEIVE_INIT = auto()
    RECEIVE_CHALLENGE = auto()
    RECEIVE_RESPONSE = auto()
    SEND_OUTCOME_OK = auto()
    SEND_OUTCOME_REFUSED = auto()
    RECEIVE_OUTCOME_OK = auto()
    RECEIVE_OUTCOME_REFUSED = auto()


SASL_CLIENT: Final = StateTable(
    "SASL dialogue",
    SaslState.START,
    {
        (SaslState.START, SaslInput.SEND_HEADER): SaslState.HEADER_SENT,
        (SaslState.HEADER_SENT, SaslInput.RECEIVE_HEADER): SaslState.HEADER_EXCHANGED,
        (SaslState.HEADER_EXCHANGED, SaslInput.RECEIVE_MECHANISMS): SaslState.MECHANISMS_EXCHANGED,
        (SaslState.MECHANISMS_EXCHANGED, SaslInput.SEND_INIT): SaslState.INIT_EXCHANGED,
        (SaslState.INIT_EXCHANGED, SaslInput.RECEIVE_OUTCOME_OK): SaslState.SUCCEEDED,
        (SaslState.INIT_EXCHANGED, SaslInput.RECEIVE_OUTCOME_REFUSED): SaslState.FAILED,
    },
)
"""All supported mechanisms have one message, so a challenge is an error."""

SASL_SERVER: Final = StateTable(
    "SASL dialogue",
    SaslState.START,
    {
        (SaslState.START, SaslInput.RECEIVE_HEADER): SaslState.HEADER_EXCHANGED,
        (SaslState.HEADER_EXCHANGED, SaslInput.SEND_MECHANISMS): SaslState.MECHANISMS_EXCHANGED,
        (SaslState.MECHANISMS_EXCHANGED, SaslInput.RECEIVE_INIT): SaslState.INIT_EXCHANGED,
        (SaslState.INIT_EXCHANGED, SaslInput.SEND_OUTCOME_OK): SaslState.SUCCEEDED,
        (SaslState.INIT_EXCHANGED, SaslInput.SEND_OUTCOME_REFUSED): SaslState.FAILED,
    },
)


# --- connection ----------------------------------------------------------------------------------------


class ConnectionState(Step):
    """Part 2 section 2.4.6."""

    START = auto()
    HDR_SENT = auto()
    HDR_RCVD = auto()
    HDR_EXCH = auto()
    OPEN_PIPE = auto()
    """Header and open sent, nothing received."""
    OC_PIPE = auto()
    """Header, open and close sent, nothing received."""
    OPEN_SENT = auto()
    OPEN_RCVD = auto()
    CLOSE_PIPE = auto()
    """Open and close sent, the peer's header received."""
    OPENED = auto()
    CLOSE_RCVD = auto()
    CLOSE_SENT = auto()
    END = auto()


class ConnectionInput(Step):
    """``FRAME`` stands for every performative that belongs to a session."""

    SEND_HEADER = auto()
    RECEIVE_HEADER = auto()
    SEND_OPEN = auto()
    RECEIVE_OPEN = auto()
    SEND_FRAME = auto()
    RECEIVE_FRAME = auto()
    SEND_CLOSE = auto()
    RECEIVE_CLOSE = auto()


_CS, _CI = ConnectionState, ConnectionInput

CONNECTION: Final = StateTable(
    "connection",
    _CS.START,
    {
        (_CS.START, _CI.SEND_HEADER): _CS.HDR_SENT,
        (_CS.START, _CI.RECEIVE_HEADER): _CS.HDR_RCVD,
        (_CS.HDR_SENT, _CI.RECEIVE_HEADER): _CS.HDR_EXCH,
        (_CS.HDR_SENT, _CI.SEND_OPEN): _CS.OPEN_PIPE,
        (_CS.HDR_RCVD, _CI.SEND_HEADER): _CS.HDR_EXCH,
        (_CS.HDR_EXCH, _CI.SEND_OPEN): _CS.OPEN_SENT,
        (_CS.HDR_EXCH, _CI.RECEIVE_OPEN): _CS.OPEN_RCVD,
        (_CS.OPEN_PIPE, _CI.SEND_FRAME): _CS.OPEN_PIPE,
        (_CS.OPEN_PIPE, _CI.RECEIVE_HEADER): _CS.OPEN_SENT,
        (_CS.OPEN_PIPE, _CI.SEND_CLOSE): _CS.OC_PIPE,
        (_CS.OC_PIPE, _CI.RECEIVE_HEADER): _CS.CLOSE_PIPE,
        (_CS.OPEN_SENT, _CI.SEND_FRAME): _CS.OPEN_SENT,
        (_CS.OPEN_SENT, _CI.RECEIVE_OPEN): _CS.OPENED,
        (_CS.OPEN_SENT, _CI.SEND_CLOSE): _CS.CLOSE_PIPE,
        (_CS.OPEN_RCVD, _CI.RECEIVE_FRAME): _CS.OPEN_RCVD,
        (_CS.OPEN_RCVD, _CI.SEND_OPEN): _CS.OPENED,
        (_CS.CLOSE_PIPE, _CI.RECEIVE_OPEN): _CS.CLOSE_SENT,
        (_CS.OPENED, _CI.SEND_FRAME): _CS.OPENED,
        (_CS.OPENED, _CI.RECEIVE_FRAME): _CS.OPENED,
        (_CS.OPENED, _CI.SEND_CLOSE): _CS.CLOSE_SENT,
        (_CS.OPENED, _CI.RECEIVE_CLOSE): _CS.CLOSE_RCVD,
        (_CS.CLOSE_RCVD, _CI.SEND_CLOSE): _CS.END,
        (_CS.CLOSE_SENT, _CI.RECEIVE_FRAME): _CS.CLOSE_SENT,
        (_CS.CLOSE_SENT, _CI.RECEIVE_CLOSE): _CS.END,
    },
)


# --- session -------------------------------------------------------------------------------------------


class SessionState(Step):
    """Part 2 section 2.5.5. Its DISCARDING is END_SENT here: after our end, only the peer's counts."""

    UNMAPPED = auto()
    BEGIN_SENT = auto()
    BEGIN_RCVD = auto()
    END_PIPE = auto()
    """Begin and end sent, nothing received."""
    MAPPED = auto()
    END_SENT = auto()
    END_RCVD = auto()
    ENDED = auto()


class SessionInput(Step):
    """``FRAME`` stands for attach, flow, transfer, disposition and detach."""

    SEND_BEGIN = auto()
    RECEIVE_BEGIN = auto()
    SEND_FRAME = auto()
    RECEIVE_FRAME = auto()
    SEND_END = auto()
    RECEIVE_END = auto()


_SS, _SI = SessionState, SessionInput

SESSION: Final = StateTable(
    "session",
    _SS.UNMAPPED,
    {
        (_SS.UNMAPPED, _SI.SEND_BEGIN): _SS.BEGIN_SENT,
        (_SS.UNMAPPED, _SI.RECEIVE_BEGIN): _SS.BEGIN_RCVD,
        (_SS.BEGIN_SENT, _SI.SEND_FRAME): _SS.BEGIN_SENT,
        (_SS.BEGIN_SENT, _SI.RECEIVE_BEGIN): _SS.MAPPED,
        (_SS.BEGIN_SENT, _SI.SEND_END): _SS.END_PIPE,
        (_SS.END_PIPE, _SI.RECEIVE_BEGIN): _SS.END_SENT,
        (_SS.BEGIN_RCVD, _SI.SEND_BEGIN): _SS.MAPPED,
        (_SS.MAPPED, _SI.SEND_FRAME): _SS.MAPPED,
        (_SS.MAPPED, _SI.RECEIVE_FRAME): _SS.MAPPED,
        (_SS.MAPPED, _SI.SEND_END): _SS.END_SENT,
        (_SS.MAPPED, _SI.RECEIVE_END): _SS.END_RCVD,
        (_SS.END_RCVD, _SI.SEND_END): _SS.ENDED,
        (_SS.END_SENT, _SI.RECEIVE_FRAME): _SS.END_SENT,
        (_SS.END_SENT, _SI.RECEIVE_END): _SS.ENDED,
    },
)


# --- link ----------------------------------------------------------------------------------------------


class LinkState(Step):
    """Part 2 section 2.6.3."""

    UNATTACHED = auto()
    ATTACH_SENT = auto()
    ATTACH_RCVD = auto()
    DETACH_PIPE = auto()
    """Attach and detach sent, nothing received."""
    ATTACHED = auto()
    DETACH_SENT = auto()
    DETACH_RCVD = auto()
    DETACHED = auto()


class LinkInput(Step):
    """Dispositions belong to the session, not to a link."""

    SEND_ATTACH = auto()
    RECEIVE_ATTACH = auto()
    SEND_FLOW = auto()
    RECEIVE_FLOW = auto()
    SEND_TRANSFER = auto()
    RECEIVE_TRANSFER = auto()
    SEND_DETACH = auto()
    RECEIVE_DETACH = auto()


_LS, _LI = LinkState, LinkInput

LINK: Final = StateTable(
    "link",
    _LS.UNATTACHED,
    {
        (_LS.UNATTACHED, _LI.SEND_ATTACH): _LS.ATTACH_SENT,
        (_LS.UNATTACHED, _LI.RECEIVE_ATTACH): _LS.ATTACH_RCVD,
        (_LS.ATTACH_SENT, _LI.RECEIVE_ATTACH): _LS.ATTACHED,
        (_LS.ATTACH_SENT, _LI.SEND_DETACH): _LS.DETACH_PIPE,
        (_LS.DETACH_PIPE, _LI.RECEIVE_ATTACH): _LS.DETACH_SENT,
        (_LS.ATTACH_RCVD, _LI.SEND_ATTACH): _LS.ATTACHED,
        (_LS.ATTACH_RCVD, _LI.RECEIVE_FLOW): _LS.ATTACH_RCVD,
        (_LS.ATTACH_RCVD, _LI.RECEIVE_DETACH): _LS.DETACH_RCVD,
        (_LS.ATTACHED, _LI.SEND_FLOW): _LS.ATTACHED,
        (_LS.ATTACHED, _LI.RECEIVE_FLOW): _LS.ATTACHED,
        (_LS.ATTACHED, _LI.SEND_TRANSFER): _LS.ATTACHED,
        (_LS.ATTACHED, _LI.RECEIVE_TRANSFER): _LS.ATTACHED,
        (_LS.ATTACHED, _LI.SEND_DETACH): _LS.DETACH_SENT,
        (_LS.ATTACHED, _LI.RECEIVE_DETACH): _LS.DETACH_RCVD,
        (
            _LS.DETACH_RCVD,
            _LI.SEND_ATTACH,
        ): _LS.DETACH_RCVD,  # the peer detached before we answered its attach
        (_LS.DETACH_RCVD, _LI.SEND_DETACH): _LS.DETACHED,
        (_LS.DETACH_SENT, _LI.RECEIVE_FLOW): _LS.DETACH_SENT,
        (_LS.DETACH_SENT, _LI.RECEIVE_TRANSFER): _LS.DETACH_SENT,
        (_LS.DETACH_SENT, _LI.RECEIVE_DETACH): _LS.DETACHED,
    },
)
