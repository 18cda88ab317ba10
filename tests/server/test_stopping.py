"""A stop under load: what was acknowledged is there, and nobody who is connected is left hanging."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import EventHubError
from tests.access.support import token_for

from tidegate.broker import ROOT_POLICY_NAME
from tidegate.client import EventHubConsumer, RetryPolicy
from tidegate.gateway.administration import operations
from tidegate.gateway.http import server
from tidegate.model.errors import TidegateError
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess, HubService

_PRODUCERS = 4
_BATCHES_BEFORE = 15
_BATCH_EVENTS = 50


class _Producers:
    """Official producers, each on a connection of its own, that send numbered batches until it breaks."""

    def __init__(self, connection_string: str) -> None:
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        """By producer: the numbers of the batches that were acknowledged."""
        self._connection_string = connection_string

    async def run(self, name: str, are_running: asyncio.Event) -> None:
        """Send until the service refuses or is gone, without any retry."""
        producer = EventHubProducerClient.from_connection_string(self._connection_string, retry_total=0)
        async with producer:
            with suppress(EventHubError):
                number = 0
                while True:
                    bodies = [f"{name} {number} {index}" for index in range(_BATCH_EVENTS)]
                    events: list[EventData | AmqpAnnotatedMessage] = [EventData(body) for body in bodies]
                    await producer.send_batch(events, partition_key=name)
                    self.acknowledged[name].append(number)
                    number += 1
                    if len(self.acknowledged) == _PRODUCERS and all(
                        len(numbers) >= _BATCHES_BEFORE for numbers in self.acknowledged.values()
                    ):
                        are_running.set()


async def _stored(service: HubProcess, hub: str) -> dict[str, list[tuple[int, int]]]:
    """By producer: the numbers of batch and event, in the order of the log."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    async with EventHubConsumer.from_connection_string(service.connection_string, hub) as consumer:
        properties = await consumer.get_event_hub_properties()
        for partition_id in properties.partition_ids:
            until = (await consumer.get_partition_properties(partition_id)).next_sequence_number
            receiver = await consumer.open_receiver(partition_id, EventPosition.earliest())
            seen = 0
            while seen < until:
                for event in await receiver.receive(until - seen, 30.0):
                    name, batch, index = event.body.decode().split()
                    found[name].append((int(batch), int(index)))
                    seen += 1
    return found


@pytest.mark.sdk
@pytest.mark.timeout(180)
async def test_a_stop_under_load_loses_nothing_and_leaves_nobody_hanging() -> None:
    """SIGTERM while official producers send, one receiver waits, one connection says nothing at all and one
    keeps its HTTP connection: the service ends in order by itself, no connection has to be cut off, and every
    acknowledged batch is there, whole, once and in order."""
    service = HubProcess(is_http_used=True)
    hub = service.create_hub(partition_count=2)
    with service:
        producers = _Producers(service.hub_connection_string(hub))
        assert service.ready.amqp is not None
        host, _, port = service.ready.amqp.rpartition(":")
        web = http.client.HTTPConnection(str(service.ready.http))
        with closing(web), socket.create_connection((host, int(port))):
            await asyncio.to_thread(_ask_for_health, web)
            are_running = asyncio.Event()
            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                for index in range(_PRODUCERS):
                    group.create_task(producers.run(f"producer-{index}", are_running))
                waiting = group.create_task(_wait_for_nothing(service, hub))
                await are_running.wait()
                await asyncio.to_thread(service.stop)
                await waiting
        log = service.log_file.read_text()
        assert "the service has stopped" in log
        assert "cut off" not in log
        assert "Traceback" not in log
        service.start()
        stored = await _stored(service, hub)
    for name, numbers in producers.acknowledged.items():
        batches = stored[name]
        expected = [(batch, index) for batch in numbers for index in range(_BATCH_EVENTS)]
        assert batches[: len(expected)] == expected
        # Beyond that, at most the batch that was under way, whole.
        assert len(batches) - len(expected) in (0, _BATCH_EVENTS)


@pytest.mark.slow
def test_requests_that_are_cut_off_take_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not a traceback each, as if the service had failed."""
    begun = threading.Event()

    def endless(*_: object) -> Iterator[None]:
        begun.set()
        while True:
            yield None

    monkeypatch.setattr(operations, "consumer_rows", endless)
    monkeypatch.setattr(server, "SHUTDOWN_TIMEOUT_S", 0)
    with ExitStack() as clients, HubService(is_http_used=True) as service:
        hub = service.create_hub()
        key = service.ask(lambda server: server.broker.policy(None, ROOT_POLICY_NAME)).key
        headers = {"Authorization": token_for("sb://127.0.0.1/", ROOT_POLICY_NAME, key)}
        web = clients.enter_context(closing(http.client.HTTPConnection(str(service.ready.http))))
        web.request("GET", f"/api/v1/event-hubs/{hub}/consumers", headers=headers)
        assert begun.wait(60)
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert [each.message for each in errors] == [
        "Cancel 1 running task(s), timeout graceful shutdown exceeded"
    ]


def _ask_for_health(web: http.client.HTTPConnection) -> None:
    web.request("GET", "/health")
    assert web.getresponse().read()


async def _wait_for_nothing(service: HubProcess, hub: str) -> None:
    """A receiver of a position where nothing comes: it is told that the service ends."""
    async with EventHubConsumer.from_connection_string(
        service.connection_string, hub, retry=RetryPolicy(retries_max=0)
    ) as consumer:
        receiver = await consumer.open_receiver("0", EventPosition.latest())
        with suppress(TidegateError):
            while True:
                await receiver.receive(1000, 60.0)
