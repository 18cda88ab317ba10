"""Programs with Azure's official Python SDK, and with our host, that run until they are killed.

They print one JSON object per line, which the suites mixed_group and long_runs judge; their settings are in
the environment (tests/interop/suites/lasting.py).

    python -m tests.interop.lasting member    a processor: {"partition": "0", "numbers": [sequence numbers]}
                                              before each checkpoint
    python -m tests.interop.lasting host      the same with Tidegate's EventProcessorHost
    python -m tests.interop.lasting client    a producer and a consumer: {"sent": N}, {"received": N},
                                              {"error": ..., "code": ..., "of": ...}
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from azure.core.credentials import AccessToken
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import ReceivedEvent
from tidegate.model.sas import make_sas_token
from tidegate.processor import (
    EventProcessorHost,
    EventProcessorOptions,
    PartitionContext,
    PartitionManagerOptions,
)
from tidegate.processor.stores.blob import BlobStore

_ADDRESS = os.environ["TIDEGATE_CONNECTION_STRING"]
_HUB = os.environ["TIDEGATE_HUB"]


def _tell(**said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _tell_error(of: str, error: BaseException) -> None:
    _tell(error=str(error), code=type(error).__name__, of=of)


async def run_member() -> None:
    """The official processor."""
    store = BlobCheckpointStore.from_connection_string(
        os.environ["AZURITE_CONNECTION_STRING"], os.environ["TIDEGATE_CONTAINER"]
    )
    client = AsyncConsumerClient.from_connection_string(
        _ADDRESS,
        "$Default",
        eventhub_name=_HUB,
        checkpoint_store=store,
        load_balancing_interval=1,
        partition_ownership_expiration_interval=float(os.environ["TIDEGATE_LEASE_S"]),
    )

    async def process(context: Any, events: Sequence[Any]) -> None:
        if events:
            _tell(partition=context.partition_id, numbers=[event.sequence_number for event in events])
            await context.update_checkpoint(events[-1])

    async def note(context: Any, error: Exception) -> None:
        _tell_error("receive", error)

    await client.receive_batch(
        process, on_error=note, max_batch_size=50, max_wait_time=0.5, starting_position="-1"
    )


async def run_host() -> None:
    """Our host."""
    store = BlobStore.from_connection_string(
        os.environ["AZURITE_CONNECTION_STRING"],
        os.environ["TIDEGATE_CONTAINER"],
        fully_qualified_namespace=os.environ["TIDEGATE_NAMESPACE"],
    )

    async def process(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        _tell(partition=context.partition_id, numbers=[event.sequence_number for event in events])
        await context.checkpoint()

    host = EventProcessorHost(
        "host",
        connection_string=f"{_ADDRESS};EntityPath={_HUB}",
        store=store,
        options=EventProcessorOptions(max_batch_size=50, receive_timeout_s=0.5),
        manager_options=PartitionManagerOptions(
            lease_duration_s=float(os.environ["TIDEGATE_LEASE_S"]), renew_interval_s=1.0
        ),
    )
    async with host.running(process):
        await asyncio.Event().wait()


def run_client() -> None:
    """The official producer and consumer."""
    threading.Thread(target=_send, daemon=True).start()
    # With retries the SDK's consumer tries for ever and reports nothing (azure-sdk-for-python#27137, which
    # azure-eventhub 5.15.1 names in _consumer.py, receive).
    consumer = _open(
        EventHubConsumerClient, consumer_group="$Default", retry_total=0, load_balancing_interval=5
    )
    delay_s = int(os.environ["TIDEGATE_RECEIVE_DELAY_MS"]) / 1000

    def process(context: Any, events: Sequence[Any]) -> None:
        for event in events:
            _tell(received=int(event.body_as_str()))
            time.sleep(delay_s)

    while True:
        try:
            consumer.receive_batch(
                process,
                on_error=lambda _, error: _tell_error("receive", error),
                max_batch_size=10,
                max_wait_time=1,
                starting_position="-1",
            )
        except Exception as error:
            _tell_error("receive", error)
        time.sleep(1)


class _ShortLived:
    """Makes tokens that run out soon, as often as the SDK asks for one."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, address: ConnectionString) -> None:
        self._address = address

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        """One for the audience that the SDK names."""
        key_name, key = self._address.shared_access_key_name, self._address.shared_access_key
        assert key_name is not None
        assert key is not None
        expiry = int(time.time()) + int(os.environ["TIDEGATE_TOKEN_S"])  # noqa: TID251 - as the service
        return AccessToken(
            make_sas_token(audience=scopes[0], key_name=key_name, key=key, expiry=expiry), expiry
        )


def _open(kind: Any, **options: Any) -> Any:
    """A client, with a key or with tokens that run out."""
    if not int(os.environ["TIDEGATE_TOKEN_S"]):
        return kind.from_connection_string(_ADDRESS, eventhub_name=_HUB, **options)
    address = ConnectionString.parse(_ADDRESS)
    namespace, credential = f"{address.host}:{address.port}", _ShortLived(address)
    options |= {"eventhub_name": _HUB, "credential": credential, "use_tls": False}
    return kind(fully_qualified_namespace=namespace, **options)


def _send() -> None:
    producer = _open(EventHubProducerClient)
    padding = " " * int(os.environ["TIDEGATE_EVENT_BYTES"])
    interval_s, number = int(os.environ["TIDEGATE_SEND_INTERVAL_MS"]) / 1000, 0
    while True:
        try:
            producer.send_batch([EventData(f"{number}{padding}")], partition_id="0")
        except Exception as error:
            _tell_error("send", error)
            time.sleep(1)
            continue
        _tell(sent=number)
        number += 1
        time.sleep(interval_s)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("azure.core").setLevel(logging.WARNING)
    match sys.argv[1]:
        case "member":
            asyncio.run(run_member())
        case "host":
            asyncio.run(run_host())
        case _:
            run_client()
