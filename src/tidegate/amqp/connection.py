"""The engine of an AMQP connection: bytes in, events out, time passed in.

The owner passes what it reads to ``receive_data``, takes events from ``next_event`` until there are none,
writes the buffers of ``data_to_send``, and calls ``handle_deadline`` at ``next_deadline``. None of these
raises because of the peer: a peer's error ends its session or the connection, and is reported in an event.

An owner with other connections to serve calls ``feed_data`` instead, and ``process_slice`` while there is
input (``has_input``). A slice is about a millisecond's work; slicing does not change what a peer sees.

    bytes -> Negotiation (headers, SASL) -> FrameSplitter -> Connection (open, close, begin, end)
          -> Session (windows, attach, flow, disposition) -> Link (credit, deliveries)

All output goes to ``output``, in order; links append to it directly.
Source: AMQP 1.0 part 2.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.errors import FramingError, ResourceLimitError, condition_of
from tidegate.amqp.events import ConnectionClosed, ConnectionFailed, ConnectionOpened, Event
from tidegate.amqp.fitting import encode_within
from tidegate.amqp.frames import (
    AMQP_FRAME,
    EMPTY_FRAME,
    FRAME_BYTES_MIN,
    FrameSplitter,
    encode_frame,
)
from tidegate.amqp.limits import (
    COST_BYTES,
    DELIVERY_COST,
    FRAME_COST,
    LINK_BYTES,
    PERFORMATIVE_COST_BYTES,
    SLICE_COST,
    SLICE_EVENTS_MAX,
    FreeNumbers,
    PeerAccount,
    Silence,
    compacted,
)
from tidegate.amqp.negotiation import SASL_FRAME_BYTES_MAX, Negotiation
from tidegate.amqp.performatives import (
    Begin,
    Close,
    End,
    Error,
    Open,
    Performative,
    Transfer,
    decode_performative,
)
from tidegate.amqp.session import Session
from tidegate.amqp.states import (
    CONNECTION,
    ConnectionInput,
    ConnectionState,
    IllegalStateError,
    SessionState,
)
from tidegate.amqp.transfers import (
    Payload,
    Run,
    is_own_transfer,
    is_transfer,
    is_usual_transfer,
    parse_flow,
    run_address,
    take_run,
    take_usual,
)
from tidegate.amqp.types import Symbol
from tidegate.model.errors import (
    BrokenError,
    LocalProtocolError,
    OperationTimeoutError,
    RemoteProtocolError,
    TidegateError,
    UnauthorizedError,
)

UNDECIDED_BYTES_MAX: Final = 16384
"""Bytes that a client may pipeline after a SASL response that is still undecided (our choice)."""

_SHOWN_CHARACTERS: Final = 80
"""Of a peer's container id."""


class Connection:
    def __init__(self, configuration: ConnectionConfiguration, *, role: Role, now: float) -> None:
        is_server = role is Role.SERVER
        mechanisms = configuration.sasl_mechanisms
        if not is_server:
            mechanisms = (configuration.sasl_mechanism,) if configuration.sasl_mechanism else ()
        self.configuration = configuration
        self.role = role
        self.state = CONNECTION.initial
        self.is_finished = False
        """Nothing more is received or, after ``data_to_send``, sent: close the byte stream."""
        self.remote_open: Open | None = None
        """The peer's open, but for what is long: 4 KB of properties can take 0.3 MB."""
        self.frame_bytes_max = FRAME_BYTES_MIN if is_server else configuration.max_frame_size
        """The largest frame that the peer accepts. (A client pipelines attaches before it knows.)"""
        self.events: deque[Event] = deque()
        self.output: list[Payload] = []
        """AMQP frames, sent after the negotiation's output."""
        self.accepting: list[Session] = []
        """Sessions with accepted deliveries that are not encoded yet."""

        self.has_input = False
        """Fed input is still unprocessed: call ``process_slice``."""
        self._negotiation = Negotiation(
            is_server=is_server,
            mechanisms=mechanisms,
            initial_response=configuration.sasl_initial_response,
            hostname=configuration.hostname,
        )
        self._splitter = FrameSplitter(frame_bytes_max=SASL_FRAME_BYTES_MAX)
        self._channels = FreeNumbers()
        self._sessions: dict[int, Session] = {}  # by our channel
        self._sessions_by_remote_channel: dict[int, Session] = {}
        self._ended_channels = 0  # the peer's: a bit for each
        self.account = PeerAccount(configuration.stranger_limits or configuration.peer_limits, now=now)
        """What the peer makes this side hold; sessions and links count in it."""
        self._local_error: Error | None = None
        self._final_event: ConnectionClosed | ConnectionFailed | None = None  # after those of the sessions

        self._silence = Silence(now, configuration.handshake_timeout_s, configuration.idle_timeout_s)

    def __repr__(self) -> str:
        peer = f"{self.remote_open.container_id if self.remote_open else None!r}"
        return f"<Connection {self.role.value} {self.state.name} peer={peer} sessions={len(self._sessions)}>"

    # --- for the owner ---

    @property
    def sasl_mechanism(self) -> str | None:
        """The negotiated SASL mechanism; None: none yet, or the peer skipped SASL."""
        return self._negotiation.mechanism

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions that have not ended."""
        return tuple(self._sessions.values())

    @property
    def held_bytes(self) -> int:
        """Approximate bytes kept for the peer: incomplete input, frames that wait for a session's window,
        sessions and links. Excludes ``output``."""
        return self._splitter.buffered_bytes + self.account.held_bytes + LINK_BYTES * len(self._sessions)

    @property
    def blocked_bytes(self) -> int:
        """Bytes of frames that wait for their session's window."""
        return self.account.blocked_bytes

    def admit_peer(self) -> None:
        """Apply ``peer_limits`` instead of ``stranger_limits``: the peer has authenticated."""
        self.account.set_limits(self.configuration.peer_limits, now=self._silence.received_at)
        if self._negotiation.is_done:
            self._limit_frames()

    def open(self) -> None:
        """Client: start. Sessions and links may be started immediately; their frames are pipelined."""
        self._step(ConnectionInput.SEND_HEADER)
        self._negotiation.start()
        self._send_open()

    def begin_session(self, *, incoming_window: int | None = None) -> Session:
        """Begin a session; ``SessionBegun`` follows.

        incoming_window: transfer frames; None: the configuration's.
        Raises LocalProtocolError if the connection is not open(ing), or all channels are in use.
        """
        if not self.can_send_frames:
            raise LocalProtocolError(f"A session cannot begin: the connection is {self.state.name}.")
        session = self._make_session(incoming_window)
        if session is None:
            raise LocalProtocolError("All channels of the connection are in use.")
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Close the connection. ``ConnectionClosed`` follows when the peer has answered, or immediately if no
        open was sent yet. Does nothing when closing or closed."""
        if self.is_finished or self._is_close_sent():
            return
        self._local_error = error
        if CONNECTION.allows(self.state, ConnectionInput.SEND_CLOSE):
            self._send_close(error)
        else:
            self._finish(ConnectionClosed(error))

    def abort(self, error: TidegateError) -> None:
        """End the connection without waiting for the peer; ``ConnectionFailed(error)`` follows."""
        self._fail(error)

    def complete_sasl(self, is_accepted: bool) -> None:
        """Server: decide about an undecided ``SaslReceived``. Raises LocalProtocolError if there is none."""
        if self.is_finished:
            return
        self._negotiation.complete_sasl(is_accepted)
        if is_accepted:
            self._splitter.feed(b"")  # process what the client has pipelined
            self.process_slice()
        else:
            self._fail(UnauthorizedError("The client's SASL response was refused."))

    def receive_data(self, data: bytes | bytearray | memoryview, *, now: float) -> None:
        """Process the bytes of one read; ``data`` may then be reused. Never raises because of the peer."""
        self.feed_data(data, now=now)
        while self.has_input:
            self.process_slice()

    def feed_data(self, data: bytes | bytearray | memoryview, *, now: float) -> None:
        """Accept the bytes of one read, for ``process_slice``; ``data`` may be reused afterwards."""
        if self.is_finished or not data:
            return
        self._silence.received_at = now
        self._splitter.feed(data)
        self.has_input = True

    def drop_input(self) -> None:
        """Discard fed input that is not processed yet."""
        self.has_input = False
        self._splitter.drop()

    def process_slice(self) -> None:
        """Process about a millisecond's worth of the input; ``has_input`` says whether more is left."""
        self.has_input = False
        if self.is_finished:
            return
        try:
            if not self._negotiation.is_done:
                self._negotiate()
            if self._negotiation.is_done:
                self._receive_frames()
        except (RemoteProtocolError, UnauthorizedError) as error:
            self._fail(error)
        finally:
            if not self.has_input:
                self._splitter.release()

    def receive_eof(self, *, now: float, error: TidegateError | None = None) -> None:
        """The peer ended the byte stream, or it broke with ``error``."""
        if self.is_finished:
            return
        self._silence.received_at = now
        if self._is_close_sent():
            self._finish(ConnectionClosed(self._local_error))
        else:
            self._finish(
                ConnectionFailed(error or BrokenError("The peer ended the connection without closing it."))
            )

    def next_event(self) -> Event | None:
        """The next event, or None."""
        if not self.events:
            if self._final_event is None:
                return None
            self._end_next()
        return self.events.popleft()

    @property
    def has_events(self) -> bool:
        return bool(self.events) or self._final_event is not None

    @property
    def has_data_to_send(self) -> bool:
        negotiation = self._negotiation
        return bool(negotiation.output) or (negotiation.is_header_sent and bool(self.output))

    def data_to_send(self) -> list[Payload]:
        """Remove and return the buffers to write next, in order."""
        negotiation = self._negotiation
        for session in self.accepting:
            session.encode_accepted()
        self.accepting.clear()
        chunks: list[Payload] = []
        if negotiation.output:
            chunks += negotiation.output
            negotiation.output.clear()
        if negotiation.is_header_sent:
            chunks += self.output
            self.output.clear()
        return chunks

    def next_deadline(self) -> float | None:
        """When to call ``handle_deadline`` next, on the clock of ``now``; None: not at all."""
        return None if self.is_finished else self._silence.next_deadline()

    def handle_deadline(self, *, now: float) -> None:
        """Send an empty frame if due, or fail the connection of a silent peer. Early calls do nothing."""
        if self.is_finished:
            return
        try:
            if self._silence.is_heartbeat_due(now):
                self.output.append(EMPTY_FRAME)
        except (OperationTimeoutError, BrokenError) as error:
            self._fail(error)

    def excuse_silence(self, *, now: float) -> None:
        """Restart the peer's idle time-out: this side was not reading."""
        self._silence.received_at = now

    # --- for sessions (``session.SessionConnection``) ---

    @property
    def can_send_frames(self) -> bool:
        """Whether frames of sessions may be sent. True from our open on: they are pipelined."""
        if self.state is ConnectionState.OPENED:
            return True
        return not self.is_finished and CONNECTION.allows(self.state, ConnectionInput.SEND_FRAME)

    def send_performative(self, channel: int, performative: Performative) -> None:
        """Queue one frame, shortened to the peer's limit. Raises FrameTooSmallError, with nothing sent."""
        self.output.append(encode_frame(channel, encode_within(performative, self.frame_bytes_max)))

    def forget_session(self, session: Session) -> None:
        if self._sessions.pop(session.local_channel, None) is not None:
            self._channels.give_back(session.local_channel)
        if session.remote_channel is not None:
            self._sessions_by_remote_channel.pop(session.remote_channel, None)
            self._ended_channels |= 1 << session.remote_channel
        self._sessions = compacted(self._sessions)
        self._sessions_by_remote_channel = compacted(self._sessions_by_remote_channel)

    # --- receiving ---

    def _negotiate(self) -> None:
        """Process what precedes AMQP: few headers and frames. More of them are a protocol error."""
        event = self._negotiation.receive(self._splitter)
        while event is not None:
            self.events.append(event)
            event = self._negotiation.receive(self._splitter)
        if self._negotiation.is_done:
            self._begin_amqp()
        elif self._splitter.buffered_bytes > UNDECIDED_BYTES_MAX:
            raise FramingError("The client sent too much after its undecided SASL response.")

    def _limit_frames(self) -> None:
        bytes_max = self.account.limits.frame_bytes_max
        self._splitter.frame_bytes_max = min(self.configuration.max_frame_size, bytes_max)

    def _begin_amqp(self) -> None:
        self._limit_frames()
        self._step(ConnectionInput.RECEIVE_HEADER)
        if self.role is Role.SERVER:
            self._step(ConnectionInput.SEND_HEADER)

    def _receive_frames(self) -> None:
        """Process whole frames for one slice. Deliveries of one frame are recognised by their first bytes and
        taken in runs; all other frames one by one."""
        splitter, cost_left = self._splitter, SLICE_COST
        events_until = len(self.events) + SLICE_EVENTS_MAX
        while not self.is_finished:
            if cost_left <= 0 or len(self.events) >= events_until:
                self.has_input = True
                return
            view, position = splitter.peek()
            data = view.obj
            assert type(data) is bytes  # the splitter keeps only bytes
            # Fast path: runs of deliveries.
            if self.state is ConnectionState.OPENED and is_usual_transfer(data, position):
                cost = self._receive_runs(data, position, cost_left, events_until - len(self.events))
                cost_left -= cost
                if cost:
                    continue
            # General path: one frame.
            frame = splitter.next_frame()
            if frame is None:
                return
            if frame.frame_type != AMQP_FRAME:
                raise FramingError(f"Received a frame of type {frame.frame_type} on an open connection.")
            if frame.body:
                account = self.account
                account.count_frames(1, now=self._silence.received_at)
                until, partial_bytes = splitter.peek()[1], account.partial_bytes
                start = until - len(frame.body)
                self._receive_body(frame.channel, data, start, until)
                cost_left -= FRAME_COST
                if not is_transfer(data, start):
                    cost_left -= len(frame.body) // PERFORMATIVE_COST_BYTES
                elif account.partial_bytes <= partial_bytes:  # else its bytes are only kept
                    cost_left -= len(frame.body) // COST_BYTES
            else:  # only keeps the connection alive
                cost_left -= 1
                self.account.count_heartbeats(1 + splitter.skip_empty_frames(), now=self._silence.received_at)

    def _receive_runs(self, data: bytes, position: int, cost_max: int, events_max: int) -> int:
        """Process deliveries of one frame each, on one channel. Returns their cost; 0 if there were none."""
        channel, handle = run_address(data, position)
        session = self._sessions_by_remote_channel.get(channel)
        if session is None or not session.is_receiving:
            return 0  # the general path handles it
        frame_bytes_max, bytes_max = self._splitter.frame_bytes_max, cost_max * COST_BYTES
        runs: list[Run] = []
        count = each = 0
        if is_own_transfer(data, position):  # settled, of one link
            deliveries, until = take_run(data, position, frame_bytes_max, cost_max, bytes_max)
            if deliveries:
                runs, count, each = [(handle, deliveries)], len(deliveries), 1
        if not runs:
            count_max = min(events_max, max(1, cost_max // DELIVERY_COST))
            runs, until = take_usual(data, position, frame_bytes_max, count_max, bytes_max)
            if not runs:
                return 0
            count, each = sum([len(deliveries) for _, deliveries in runs]), DELIVERY_COST
        self.account.count_frames(count, now=self._silence.received_at)
        self._splitter.skip_to(until)
        session.receive_runs(runs)
        return max(count * each, (until - position) // COST_BYTES)

    def _receive_body(self, channel: int, data: bytes, start: int, until: int) -> None:
        """Process a frame whose performative starts at ``start`` and whose payload ends at ``until``."""
        if is_transfer(data, start):
            self._receive_transfer(channel, data, start, until)
            return
        if until - start > self.account.limits.performative_bytes_max:
            raise ResourceLimitError(
                f"A frame of {until - start} bytes that is not a transfer exceeds the limit "
                f"of {self.account.limits.performative_bytes_max}."
            )
        performative: Performative | None = parse_flow(data, start, until)
        if performative is None:
            body = memoryview(data)[start:until]
            performative, end = decode_performative(body)
            if isinstance(performative, Transfer):  # with an unusual descriptor
                self._receive_transfer(channel, data, start, until)
                return
            if end != len(body):
                raise FramingError(
                    f"A frame has {len(body) - end} bytes after its {type(performative).__name__}."
                )
        if isinstance(performative, Open):
            self._receive_open(performative)
        elif isinstance(performative, Close):
            self._receive_close(performative)
        else:
            self._step(ConnectionInput.RECEIVE_FRAME)
            if self.state is ConnectionState.CLOSE_SENT:
                return  # dropped
            if isinstance(performative, Begin):
                self._receive_begin(performative, channel)
                return
            session = self._session_at(channel)
            if session is None:
                return
            if isinstance(performative, End):
                session.receive_end(performative)
            else:
                session.receive_performative(performative)

    def _receive_transfer(self, channel: int, data: bytes, start: int, until: int) -> None:
        self._step(ConnectionInput.RECEIVE_FRAME)
        session = self._session_at(channel)
        if session is not None and self.state is not ConnectionState.CLOSE_SENT:
            session.receive_transfer(data, start, until)

    def _receive_open(self, remote: Open) -> None:
        self._step(ConnectionInput.RECEIVE_OPEN)
        if remote.max_frame_size < FRAME_BYTES_MIN:
            raise FramingError(f"max-frame-size {remote.max_frame_size} is below {FRAME_BYTES_MIN}.")
        self.remote_open = Open(
            remote.container_id[:_SHOWN_CHARACTERS],
            max_frame_size=remote.max_frame_size,
            channel_max=remote.channel_max,
            idle_time_out=remote.idle_time_out,
        )
        self.frame_bytes_max = remote.max_frame_size
        self._silence.note_open(remote.idle_time_out)
        if self.state is ConnectionState.OPEN_RCVD:
            self._send_open()
        if self.state is ConnectionState.OPENED:
            self.events.append(ConnectionOpened(remote))

    def _receive_close(self, close: Close) -> None:
        self._step(ConnectionInput.RECEIVE_CLOSE)
        if self.state is ConnectionState.CLOSE_RCVD:
            self._send_close(None)
        self._finish(ConnectionClosed(close.error or self._local_error))

    def _receive_begin(self, begin: Begin, channel: int) -> None:
        if channel > self.configuration.channel_max:
            raise FramingError(
                f"Channel {channel} exceeds the negotiated maximum of {self.configuration.channel_max}."
            )
        if channel in self._sessions_by_remote_channel:
            raise IllegalStateError(f"A session has already begun on channel {channel}.")
        if begin.remote_channel is None:
            session = self._make_session(None)
            if session is None:
                raise FramingError("No channel is left for another session.")
        else:
            answered = self._sessions.get(begin.remote_channel)
            if answered is None or answered.state not in (SessionState.BEGIN_SENT, SessionState.END_PIPE):
                raise IllegalStateError(
                    f"No session is waiting for a begin on channel {begin.remote_channel}."
                )
            session = answered
        self._ended_channels &= ~(1 << channel)
        self._sessions_by_remote_channel[channel] = session
        session.receive_begin(begin, channel)

    def _session_at(self, channel: int) -> Session | None:
        """The session that the peer began there; None if it has ended.

        The official Python client sends detaches after its end: frames on an ended channel are dropped.
        """
        session = self._sessions_by_remote_channel.get(channel)
        if session is None and not self._ended_channels >> channel & 1:
            raise IllegalStateError(f"No session has begun on channel {channel}.")
        return session

    # --- helpers ---

    def _is_close_sent(self) -> bool:
        return self.state in (
            ConnectionState.CLOSE_SENT,
            ConnectionState.CLOSE_PIPE,
            ConnectionState.OC_PIPE,
        )

    def _step(self, step: ConnectionInput) -> None:
        self.state = CONNECTION.after(self.state, step)

    def _make_session(self, incoming_window: int | None) -> Session | None:
        """A session on the lowest free channel; None if all are in use."""
        configuration = self.configuration
        channel_max = configuration.channel_max
        if self.remote_open is not None:
            channel_max = min(channel_max, self.remote_open.channel_max)
        channel = self._channels.take(channel_max)
        if channel is None:
            return None
        session = Session(
            self,
            channel,
            incoming_window=incoming_window or configuration.incoming_window,
            handle_max=configuration.handle_max,
            message_bytes_max=configuration.message_bytes_max,
        )
        self._sessions[channel] = session
        return session

    def _send_open(self) -> None:
        self._step(ConnectionInput.SEND_OPEN)
        configuration = self.configuration
        milliseconds = int(configuration.idle_timeout_s * 1000)
        local = Open(
            container_id=configuration.container_id,
            hostname=configuration.hostname,
            max_frame_size=configuration.max_frame_size,
            channel_max=configuration.channel_max,
            idle_time_out=milliseconds or None,
            offered_capabilities=tuple(map(Symbol, configuration.offered_capabilities)),
            desired_capabilities=tuple(map(Symbol, configuration.desired_capabilities)),
            properties=dict(configuration.properties.items()),
        )
        # The peer's frame size is known only after its own open.
        self.output.append(encode_frame(0, encode_within(local, FRAME_BYTES_MIN)))

    def _send_close(self, error: Error | None) -> None:
        self._step(ConnectionInput.SEND_CLOSE)
        self.send_performative(0, Close(error))

    def _fail(self, error: TidegateError) -> None:
        """End the connection with an error: notify the owner and, if the connection is that far, the peer."""
        if self.is_finished:
            return
        if self.state in (ConnectionState.HDR_EXCH, ConnectionState.OPEN_RCVD):
            self._send_open()  # a close must come after an open
        if self._negotiation.is_done and CONNECTION.allows(self.state, ConnectionInput.SEND_CLOSE):
            self._send_close(Error(condition=condition_of(error), description=str(error)))
        self._finish(ConnectionFailed(error))

    def _finish(self, event: ConnectionClosed | ConnectionFailed) -> None:
        """End the connection; ``next_event`` still reports links, sessions and, last, the connection."""
        self._final_event = event
        self.state = ConnectionState.END
        self.is_finished = True
        self.has_input = False

    def _end_next(self) -> None:
        """Report the end of one session, or of the connection: thousands of links end in many steps."""
        event = self._final_event
        assert event is not None
        session = next(iter(self._sessions.values()), None)
        if session is None:
            self._final_event = None
            self.events.append(event)
        elif isinstance(event, ConnectionClosed):
            session.finish(event.error)
        else:
            session.finish(Error(condition=condition_of(event.error), description=str(event.error)))
