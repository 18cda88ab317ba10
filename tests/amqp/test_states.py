"""The state tables: every state with every input, and the engine's answer to frames out of place."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from tests.amqp.pair import EnginePair

from tidegate.amqp.connection import Connection
from tidegate.amqp.events import ConnectionClosed, ConnectionFailed, LinkDetached, SessionEnded
from tidegate.amqp.frames import encode_frame
from tidegate.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from tidegate.amqp.states import (
    CONNECTION,
    LINK,
    SASL_CLIENT,
    SASL_SERVER,
    SESSION,
    ConnectionInput,
    IllegalStateError,
    LinkInput,
    SaslInput,
    SessionInput,
    StateTable,
)
from tidegate.model.errors import LocalProtocolError

TABLES: list[tuple[StateTable[Any, Any], type[Enum]]] = [
    (SASL_CLIENT, SaslInput),
    (SASL_SERVER, SaslInput),
    (CONNECTION, ConnectionInput),
    (SESSION, SessionInput),
    (LINK, LinkInput),
]


@pytest.mark.parametrize(("table", "inputs"), TABLES, ids=lambda value: getattr(value, "name", None))
def test_every_state_takes_or_refuses_every_input(table: StateTable[Any, Any], inputs: type[Enum]) -> None:
    """Protects the rule that what a table lacks is an error, blamed on the side whose step it is."""
    for state in type(table.initial):
        for step in inputs:
            if table.allows(state, step):
                assert table.after(state, step) in type(table.initial)
            elif step.name.startswith("RECEIVE_"):
                with pytest.raises(IllegalStateError, match=state.name):
                    table.after(state, step)
            else:
                with pytest.raises(LocalProtocolError, match=state.name):
                    table.after(state, step)


@pytest.mark.parametrize(("table", "inputs"), TABLES[2:], ids=lambda value: getattr(value, "name", None))
def test_every_state_can_be_reached(table: StateTable[Any, Any], inputs: type[Enum]) -> None:
    """Protects against rows that nothing leads to."""
    reached = {table.initial}
    while True:
        more = {after for (before, _), after in table.transitions.items() if before in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(type(table.initial).__members__.values())


FRAMES: dict[str, tuple[Performative, bytes]] = {
    "open": (Open(container_id="again"), b""),
    "begin": (Begin(next_outgoing_id=1, incoming_window=9, outgoing_window=9), b""),
    "begin answering": (
        Begin(remote_channel=0, next_outgoing_id=1, incoming_window=9, outgoing_window=9),
        b"",
    ),
    "attach sender": (
        Attach("new", 7, False, initial_delivery_count=0, source=Source(), target=Target()),
        b"",
    ),
    "attach receiver": (Attach("in", 8, True, source=Source(), target=Target()), b""),
    "attach high handle": (Attach("high", 70_000, True, source=Source(), target=Target()), b""),
    "flow": (Flow(next_incoming_id=1, incoming_window=5, next_outgoing_id=1, outgoing_window=5), b""),
    "flow of link": (
        Flow(incoming_window=5, next_outgoing_id=1, outgoing_window=5, handle=0, link_credit=3, echo=True),
        b"",
    ),
    "transfer": (Transfer(0, 1, b"t", 0, True), b"payload"),
    "transfer wrong way": (Transfer(1, 1, b"t", 0, True), b"payload"),
    "transfer without id": (Transfer(0), b"payload"),
    "disposition": (Disposition(True, 0, 4_000_000_000, True), b""),
    "disposition of sender": (Disposition(False, 0, None, True), b""),
    "detach": (Detach(0, True), b""),
    "detach unknown": (Detach(99, True), b""),
    "end": (End(), b""),
    "close": (Close(), b""),
}

STAGES = [
    "nothing",
    "opened",
    "begun",
    "attaching",
    "attached",
    "detaching",
    "ending",
    "ended",
    "closing",
]


def _server_at(stage: str) -> EnginePair:
    pair = EnginePair()
    pair.is_accepting = stage != "attaching"
    if stage == "nothing":
        pair.client.open()
        pair.client.output.clear()  # the open never arrives
        pair.pump()
        return pair
    if stage == "opened":
        pair.client.open()
        pair.pump()
        return pair
    session = pair.open()
    if stage == "begun":
        return pair
    out = session.attach_sender("out", target="hub")
    session.attach_receiver("in", source="hub")
    pair.pump()
    if stage == "detaching":
        pair.other_end(out).detach()
    elif stage == "ending":
        pair.server.sessions[0].end()
    elif stage == "ended":
        session.end()
        pair.pump()
    elif stage == "closing":
        pair.server.close()
    return pair


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.slow
def test_no_frame_in_no_stage_makes_the_engine_raise(stage: str, name: str) -> None:
    """Protects the promise that a peer's frame out of place ends in events, whole and in order."""
    pair = _server_at(stage)
    server = pair.server
    performative, payload = FRAMES[name]
    frame = encode_frame(0, encode_performative(performative) + payload)
    server.receive_data(frame + frame, now=1.0)
    _expect_orderly_end(pair, server)


def _expect_orderly_end(pair: EnginePair, server: Connection) -> None:
    sessions = server.sessions
    links = [link for session in sessions for link in session.links]
    server.receive_eof(now=2.0)
    events = []
    while (event := server.next_event()) is not None:
        events.append(event)
    assert server.is_finished
    assert isinstance(events[-1], (ConnectionClosed, ConnectionFailed))
    assert sum(isinstance(event, (ConnectionClosed, ConnectionFailed)) for event in events) == 1
    for link in links:
        assert sum(isinstance(event, LinkDetached) and event.link is link for event in events) == 1
    for session in sessions:
        assert sum(isinstance(event, SessionEnded) and event.session is session for event in events) == 1
    assert server.next_deadline() is None
