"""First programs that are written wrongly: one error at once, which says what to write instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tidegate.client import EventHubConsumer, EventHubProducer, RetryPolicy
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, ConnectionStringError, InvalidArgumentError, TlsError
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubService


@pytest.fixture
def connection_string(hub_service: HubService, event_hub: str) -> ConnectionString:
    return ConnectionString.parse(hub_service.hub_connection_string(event_hub))


@pytest.mark.parametrize(
    ("send", "words"),
    [
        (lambda it: it.send(["x"]), r"is an EventData, not str\. Write EventData\(body\)"),
        (lambda it: it.enqueue("x"), "is an EventData, not str"),
        (lambda it: it.send([EventData("x")], partition_id=0), r'not the int 0\. Write "0"\.'),
        (lambda it: it.enqueue(EventData("x"), partition_id=0), r'not the int 0\. Write "0"\.'),
        (lambda it: it.create_batch(partition_id=1), r'not the int 1\. Write "1"\.'),
        (lambda it: it.send([EventData("x")], partition_key=5), "partition key is a string, not the int 5"),
        (lambda it: it.enqueue(EventData("x"), partition_key=5), "partition key is a string, not the int 5"),
    ],
)
@pytest.mark.slow
async def test_what_is_sent_and_where_have_the_right_types(
    connection_string: ConnectionString, send: Callable[[EventHubProducer], Any], words: str
) -> None:
    """The argument at fault is named, before anything is sent."""
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        with pytest.raises(InvalidArgumentError, match=words):
            await send(producer)


async def test_places_have_the_right_types(connection_string: ConnectionString) -> None:
    """A partition is a string, a position no word and no number."""
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        with pytest.raises(InvalidArgumentError, match=r'not the int 0\. Write "0"\.'):
            await consumer.open_receiver(0, EventPosition.earliest())  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r'not the int 0\. Write "0"\.'):
            await consumer.get_partition_properties(0)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"not 'latest'\. Write EventPosition\.earliest"):
            await consumer.receive("latest").receive()  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"not 5\. Write EventPosition"):
            await consumer.receive({"0": 5}).receive()  # type: ignore[dict-item]


def test_a_connection_string_that_is_not_set() -> None:
    """As ``os.environ.get`` returns it."""
    with pytest.raises(ConnectionStringError, match="Is the environment variable set"):
        EventHubProducer.from_connection_string(None)  # type: ignore[arg-type]


async def test_the_plain_port_without_its_flag(connection_string: ConnectionString) -> None:
    """One try, although others are allowed: no later one would find TLS there."""
    wrong = replace(connection_string, use_development_emulator=False)
    patient = RetryPolicy(retries_max=10, delay_s=60.0, delay_s_max=60.0)
    async with asyncio.timeout(30), EventHubProducer.from_connection_string(wrong, retry=patient) as producer:
        with pytest.raises(TlsError, match=r"does not speak TLS.*add ;UseDevelopmentEmulator=true"):
            await producer.send(EventData("x"))


async def test_the_tls_port_with_the_flag(
    hub_service: HubService, connection_string: ConnectionString
) -> None:
    """The port ends such a connection without a word."""
    assert hub_service.ready.amqps is not None
    port = int(hub_service.ready.amqps.rpartition(":")[2])
    wrong, once = replace(connection_string, port=port), RetryPolicy(retries_max=0)
    async with EventHubProducer.from_connection_string(wrong, retry=once) as producer:
        with pytest.raises(BrokenError, match="If this is a TLS port, take UseDevelopmentEmulator=true out"):
            await producer.send(EventData("x"))
