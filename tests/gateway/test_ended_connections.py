"""Connections that have ended: nothing of them is left for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.transport.test_driver import Recorder, _tls_contexts

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.events import ConnectionOpened, CreditGranted, DeliveriesReceived, DeliveriesSettled
from tidegate.amqp.message import Message, encode_message
from tidegate.broker import ROOT_POLICY_NAME
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.server.opening import open_broker
from tidegate.transport.clock import SystemClock
from tidegate.transport.driver import AmqpDriver, connect_amqp

WAIT_S = 30.0


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """The collector looks for cycles no more: what it would find, stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _use(driver: AmqpDriver, recorder: Recorder) -> None:
    """Send an event, receive it, and attach to where requests go."""
    session = driver.connection.begin_session()
    sender = session.attach_sender("out", target="hub/Partitions/0")
    receiver = session.attach_receiver("in", source="hub/ConsumerGroups/$Default/Partitions/0", target="c")
    receiver.grant_credit(10)
    session.attach_sender("requests", target="$management")
    session.attach_receiver("answers", source="$management", target="c")
    driver.flush()
    await recorder.until(lambda: recorder.has(CreditGranted))
    sender.send(encode_message(Message(data=(b"x",))))
    driver.flush()
    await recorder.until(lambda: recorder.has(DeliveriesReceived) and recorder.has(DeliveriesSettled))


@pytest.mark.slow
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["closed", "cut"])
@pytest.mark.usefixtures("_no_collections")
async def test_an_ended_connection_leaves_no_cycles(tmp_path: Path, is_tls: bool, is_cut: bool) -> None:
    """Protects the event loop when thousands of connections end: a collection that walks what they have left
    stops everybody."""
    server_ssl, client_ssl = _tls_contexts(tmp_path) if is_tls else (None, None)
    broker = await open_broker(tmp_path / "data", clock=SystemClock())
    await broker.create_event_hub("hub", partition_count=1)
    gateway = AmqpGateway(broker, clock=SystemClock(), unacknowledged_bytes_max=1 << 20)
    _, port = await gateway.listen("127.0.0.1", 0, ssl_context=server_ssl)
    key = broker.policy(None, ROOT_POLICY_NAME).key
    configuration = ConnectionConfiguration(
        "c", sasl_mechanism="PLAIN", sasl_initial_response=f"\0{ROOT_POLICY_NAME}\0{key}".encode()
    )
    recorder = Recorder()
    connect = partial(connect_amqp, "127.0.0.1", port, ssl=client_ssl)
    driver = await connect(configuration=configuration, clock=SystemClock(), on_event=recorder)
    await recorder.until(lambda: recorder.has(ConnectionOpened))
    await _use(driver, recorder)
    (handler,) = gateway._handlers
    assert isinstance(handler._driver, AmqpDriver)
    parts = (handler, handler._driver, handler._connection, handler.claims, *handler._nodes.values())
    left = {repr(type(part)): weakref.ref(part) for part in parts}
    assert len(left) == 8
    del handler, parts
    if is_cut:
        assert driver._stream is not None
        driver._stream.abort()
    await driver.close()
    async with asyncio.timeout(WAIT_S):
        while gateway._handlers or gateway._server.drivers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    assert [name for name, part in left.items() if part() is not None] == []
    await gateway.close()
    await broker.close()
