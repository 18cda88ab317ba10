"""Everything before AMQP itself: protocol headers and the SASL dialogue, in both roles.

    client: SASL header -> mechanisms <- init -> outcome <- AMQP header
    server: SASL header <- ... the mirror image, or only the AMQP header if the client skips SASL

The connection feeds ``Negotiation`` until ``is_done``, and sends its output before any AMQP frame.
Source: AMQP 1.0 part 2 section 2.2, part 5 section 5.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.amqp.errors import FramingError
from tidegate.amqp.events import SaslReceived
from tidegate.amqp.frames import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    FrameSplitter,
    ProtocolHeader,
    encode_frame,
)
from tidegate.amqp.sasl import (
    OUTCOME_AUTH,
    OUTCOME_OK,
    PLAIN,
    SaslChallenge,
    SaslFrameBody,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
    encode_sasl,
)
from tidegate.amqp.states import SASL_CLIENT, SASL_SERVER, SaslInput, SaslState
from tidegate.amqp.types import Symbol
from tidegate.model.errors import LocalProtocolError, RemoteProtocolError, UnauthorizedError

SASL_FRAME_BYTES_MAX: Final = 4096
"""The specification says 512 (part 5 section 5.3.1). Our choice is generous, but limited."""


class Negotiation:
    """One side's negotiation of the layers below AMQP."""

    def __init__(
        self,
        *,
        is_server: bool,
        mechanisms: Sequence[str],
        initial_response: bytes = b"",
        hostname: str | None = None,
    ) -> None:
        self.is_done = False
        """Both AMQP headers are exchanged: AMQP frames follow."""
        self.is_header_sent = False
        """Our AMQP header is in ``output``: AMQP frames may follow it."""
        self.is_undecided = False
        """Server: a PLAIN response waits for ``complete_sasl``; nothing more is read until then."""
        self.mechanism: str | None = None
        """The negotiated SASL mechanism; None: none."""
        self.output: list[bytes] = []
        self._is_server = is_server
        self._mechanisms = tuple(map(Symbol, mechanisms))
        """Server: the mechanisms it offers. Client: the one it wants, or none."""
        self._initial_response = initial_response
        self._hostname = hostname
        self._table = SASL_SERVER if is_server else SASL_CLIENT
        self.sasl_state = self._table.initial
        self._is_header_due = True

    def start(self) -> None:
        """Client: send the first bytes of the connection."""
        if self._mechanisms:
            self._step(SaslInput.SEND_HEADER)
            self.output.append(SASL_HEADER.encode())
        else:
            self._send_amqp_header()

    def receive(self, splitter: FrameSplitter) -> SaslReceived | None:
        """Process the available bytes until ``is_done`` or an event.

        Raises RemoteProtocolError or UnauthorizedError if the connection cannot continue.
        """
        while not self.is_done and not self.is_undecided:
            if self._is_header_due:
                header = self._next_header(splitter)
                if header is None:
                    return None
                self._receive_header(header, splitter)
                continue
            frame = splitter.next_frame()
            if frame is None:
                return None
            if frame.frame_type != SASL_FRAME:
                raise FramingError("Received an AMQP frame during SASL negotiation.")
            event = self._receive_body(decode_sasl(frame.body))
            if event is not None:
                return event
        return None

    def complete_sasl(self, is_accepted: bool) -> None:
        """Server: decide about the PLAIN response. Raises LocalProtocolError if there is none."""
        if not self.is_undecided:
            raise LocalProtocolError("There is no SASL response to decide about.")
        self.is_undecided = False
        self._send_outcome(is_accepted)

    def _next_header(self, splitter: FrameSplitter) -> ProtocolHeader | None:
        try:
            return splitter.next_header()
        except FramingError:
            self._answer_wrong_header()
            raise

    def _answer_wrong_header(self) -> None:
        """Answer with the header that a server would have accepted (part 2 section 2.2)."""
        if self._is_server:
            is_sasl = self._mechanisms and self.sasl_state is SaslState.START
            self.output.append((SASL_HEADER if is_sasl else AMQP_HEADER).encode())

    def _receive_header(self, header: ProtocolHeader, splitter: FrameSplitter) -> None:
        if header == AMQP_HEADER and self.sasl_state in (SaslState.START, SaslState.SUCCEEDED):
            if self._is_server:
                self._send_amqp_header()
            self.is_done = True
        elif header == SASL_HEADER and self._mechanisms and self.sasl_state is not SaslState.SUCCEEDED:
            self._step(SaslInput.RECEIVE_HEADER)
            splitter.frame_bytes_max = SASL_FRAME_BYTES_MAX
            self._is_header_due = False
            if self._is_server:
                self._step(SaslInput.SEND_MECHANISMS)
                self.output.append(SASL_HEADER.encode())
                self._send(SaslMechanisms(self._mechanisms))
        else:
            self._answer_wrong_header()
            raise FramingError(f"The peer asked for protocol {header.encode()!r}, which is not supported.")

    def _receive_body(self, body: SaslFrameBody) -> SaslReceived | None:
        if isinstance(body, SaslMechanisms):
            self._step(SaslInput.RECEIVE_MECHANISMS)
            self._send_init(body)
        elif isinstance(body, SaslInit):
            self._step(SaslInput.RECEIVE_INIT)
            return self._receive_init(body)
        elif isinstance(body, SaslOutcome):
            self._receive_outcome(body)
        else:
            is_challenge = isinstance(body, SaslChallenge)
            assert is_challenge or isinstance(body, SaslResponse)
            self._step(SaslInput.RECEIVE_CHALLENGE if is_challenge else SaslInput.RECEIVE_RESPONSE)
        return None

    def _send_init(self, offer: SaslMechanisms) -> None:
        wanted = self._mechanisms[0]
        if wanted not in offer.mechanisms:
            raise RemoteProtocolError(
                f"The service offers SASL mechanisms {', '.join(offer.mechanisms) or '(none)'}, not {wanted}."
            )
        self._step(SaslInput.SEND_INIT)
        self.mechanism = wanted
        self._send(SaslInit(wanted, self._initial_response, self._hostname))

    def _receive_init(self, init: SaslInit) -> SaslReceived:
        if init.mechanism not in self._mechanisms:
            self._send_outcome(False)
            raise UnauthorizedError(
                f"The client wants SASL mechanism {init.mechanism[:40]!r}, which is not offered."
            )
        self.mechanism = init.mechanism
        self.is_undecided = init.mechanism == PLAIN
        if not self.is_undecided:
            self._send_outcome(True)
        return SaslReceived(
            init.mechanism, init.initial_response or b"", init.hostname, not self.is_undecided
        )

    def _receive_outcome(self, outcome: SaslOutcome) -> None:
        if outcome.code != OUTCOME_OK:
            self._step(SaslInput.RECEIVE_OUTCOME_REFUSED)
            raise UnauthorizedError(
                f"The service refused SASL {self.mechanism} (outcome {outcome.code}).",
                next_step="Check the credentials.",
            )
        self._step(SaslInput.RECEIVE_OUTCOME_OK)
        self._is_header_due = True
        self._send_amqp_header()

    def _send_outcome(self, is_accepted: bool) -> None:
        self._step(SaslInput.SEND_OUTCOME_OK if is_accepted else SaslInput.SEND_OUTCOME_REFUSED)
        self._send(SaslOutcome(OUTCOME_OK if is_accepted else OUTCOME_AUTH))
        self._is_header_due = True

    def _send_amqp_header(self) -> None:
        self.is_header_sent = True
        self.output.append(AMQP_HEADER.encode())

    def _send(self, body: SaslFrameBody) -> None:
        self.output.append(encode_frame(0, encode_sasl(body), SASL_FRAME))

    def _step(self, step: SaslInput) -> None:
        self.sasl_state = self._table.after(self.sasl_state, step)
