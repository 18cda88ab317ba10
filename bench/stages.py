"""The stages of the data path, each against a real service in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from azure.eventhub import EventData as SdkEventData
from azure.eventhub import EventHubConsumerClient, EventHubProducerClient, PartitionContext

from bench.measure import Measurement, timed
from tidegate.client import BlockingConsumer, EventHubConsumer, EventHubProducer
from tidegate.client.namespace import ConnectionOptions
from tidegate.client.receiver import PREFETCH_BYTES, PartitionReceiver
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess

PROPERTIES = {"device": "d-1", "kind": "reading"}
_RECEIVE_TIMEOUT_S = 60.0
_SDK_BATCH_BYTES = 1_000_000


def ingest(
    service: HubProcess,
    hub: str,
    bodies: Sequence[bytes],
    partition_count: int,
    *,
    devices: int | None = 1,
    is_tls_used: bool = False,
    is_warm: bool = False,
) -> Measurement:
    """Our producer encodes and publishes events with two properties; each acknowledgement follows an fsync.

    devices: distinct values of one of them; None: events without properties. Encoding is inside the
    measurement, making the ``EventData`` values is not. is_warm: an event to each partition comes first, for
    which the links are opened and the partitions' files made.
    """
    connection_string, options = _connection(service, is_tls_used=is_tls_used)

    async def publish() -> Measurement:
        events = [
            EventData(body, PROPERTIES | {"device": f"d-{index % devices + 1}"} if devices else None)
            for index, body in enumerate(bodies)
        ]
        share = len(events) // partition_count
        async with EventHubProducer.from_connection_string(connection_string, hub, **options) as producer:
            partition_ids = [str(index) for index in range(partition_count)]
            await producer.start()
            started = time.perf_counter()
            if is_warm:
                await asyncio.gather(
                    *(producer.enqueue_many(events[:1], partition_id=each) for each in partition_ids)
                )
                await producer.flush()
            opening_s = time.perf_counter() - started
            with timed(
                "ingest, our producer",
                events=share * partition_count,
                payload_bytes=sum(map(len, bodies[: share * partition_count])),
                service_pid=service.process_id,
            ) as measurement:
                # Side by side, as a program with a task for each partition would.
                await asyncio.gather(
                    *(
                        producer.enqueue_many(events[index * share : (index + 1) * share], partition_id=each)
                        for index, each in enumerate(partition_ids)
                    )
                )
                await producer.flush()
            measurement.opening_s = opening_s if is_warm else 0.0
        return measurement

    return asyncio.run(publish())


def delivery(
    service: HubProcess,
    hub: str,
    event_bytes: int,
    partition_count: int,
    *,
    are_properties_read: bool = False,
    is_tls_used: bool = False,
    is_warm: bool = False,
) -> Measurement:
    """Our consumer reads every partition side by side and looks at each body, and at properties if asked.

    is_warm: the receivers are opened first, with the prefetch limit of a reader of the whole hub. Of a
    partition whose first batch is one event (``ingest`` with is_warm), no more than that arrives before.
    """
    connection_string, options = _connection(service, is_tls_used=is_tls_used)
    prefetch_bytes = PREFETCH_BYTES // (partition_count if is_warm else 1)

    async def open_one(consumer: EventHubConsumer, partition_id: str) -> tuple[PartitionReceiver, int]:
        until = (await consumer.get_partition_properties(partition_id)).next_sequence_number
        receiver = await consumer.open_receiver(
            partition_id, EventPosition.earliest(), prefetch_bytes=prefetch_bytes
        )
        return receiver, until

    async def drain(receiver: PartitionReceiver, until: int) -> int:
        received = payload_bytes = 0
        while received < until:
            events = await receiver.receive(10_000, _RECEIVE_TIMEOUT_S)
            assert events, f"partition {receiver.partition_id} stopped at {received} of {until}"
            for event in events:
                payload_bytes += len(event.body)
            assert not are_properties_read or all(event.properties["device"] for event in events)
            received += len(events)
            assert events[-1].sequence_number == received - 1
        assert payload_bytes == received * event_bytes
        return received

    async def consume() -> Measurement:
        async with EventHubConsumer.from_connection_string(connection_string, hub, **options) as consumer:
            await consumer.get_event_hub_properties()
            opening = asyncio.gather(*(open_one(consumer, str(index)) for index in range(partition_count)))
            started = time.perf_counter()
            readers = await opening if is_warm else []
            opening_s = time.perf_counter() - started
            arrived = sum(receiver.buffered_event_count for receiver, _ in readers)
            with timed(
                "delivery, our consumer", events=0, payload_bytes=0, service_pid=service.process_id
            ) as measurement:
                readers = readers or await opening
                counts = await asyncio.gather(*(drain(*reader) for reader in readers))
        measurement.opening_s = opening_s if is_warm else 0.0
        measurement.events = sum(counts) - arrived
        measurement.payload_bytes = measurement.events * event_bytes
        return measurement

    return asyncio.run(consume())


def _connection(service: HubProcess, *, is_tls_used: bool) -> tuple[str, ConnectionOptions]:
    if not is_tls_used:
        return service.connection_string, {}
    return service.ready.connection_string, {"ca_file": service.ready.ca_file}


def arrow_delivery(
    service: HubProcess, hub: str, event_bytes: int, partition_count: int, columns: Sequence[str]
) -> Measurement:
    """Our consumer reads every partition as record batches of these columns."""
    with BlockingConsumer(service.hub_connection_string(hub)) as consumer:
        next(iter(consumer.read_arrow(columns, partition_ids=["0"])))  # imports pyarrow and more
        name = "all columns" if columns == EVENT_COLUMNS else ", ".join(columns)
        with timed(
            f"record batches ({name})", events=0, payload_bytes=0, service_pid=service.process_id
        ) as measurement:
            rows = [0] * partition_count
            for batch in consumer.read_arrow(columns):
                rows[int(batch.column("partition")[0].as_py())] += len(batch)
        assert min(rows) == max(rows) > 0
    measurement.events = sum(rows)
    measurement.payload_bytes = measurement.events * event_bytes
    return measurement


def sdk_delivery(
    name: str, connection_string: str, service_pid: int, hub: str, events: int, event_bytes: int
) -> Measurement:
    """The unmodified official SDK reads one partition from its beginning and looks at each field."""
    received = 0
    client = EventHubConsumerClient.from_connection_string(connection_string, "$Default", eventhub_name=hub)

    def on_event_batch(context: PartitionContext, batch: list[SdkEventData]) -> None:
        nonlocal received
        for event in batch:
            _ = (event.sequence_number, event.offset, event.body_as_str("latin-1"), event.properties)
        received += len(batch)
        if received >= events:
            client.close()

    with timed(name, events=0, payload_bytes=0, service_pid=service_pid) as measurement:
        client.receive_batch(on_event_batch, max_batch_size=300, partition_id="0", starting_position="-1")
    measurement.events = received
    measurement.payload_bytes = received * event_bytes
    return measurement


def sdk_ingest(
    name: str, connection_string: str, service_pid: int, hub: str, bodies: Sequence[bytes]
) -> Measurement:
    """The unmodified official SDK fills batches of 1 MB and sends each to one partition."""
    client = EventHubProducerClient.from_connection_string(connection_string, eventhub_name=hub)
    with client:
        # The link is opened by the first send, which is not measured. The size is given, because the SDK
        # would ask the service for it.
        client.send_batch([SdkEventData(bodies[0])], partition_id="1")
        with timed(
            name, events=len(bodies), payload_bytes=sum(map(len, bodies)), service_pid=service_pid
        ) as measurement:
            batch = client.create_batch(partition_id="1", max_size_in_bytes=_SDK_BATCH_BYTES)
            for body in bodies:
                event = SdkEventData(body)
                event.properties.update(PROPERTIES)
                try:
                    batch.add(event)
                except ValueError:
                    client.send_batch(batch)
                    batch = client.create_batch(partition_id="1", max_size_in_bytes=_SDK_BATCH_BYTES)
                    batch.add(event)
            client.send_batch(batch)
    return measurement
