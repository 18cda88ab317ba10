"""``EventHubConsumer``: reads a hub's properties and its partitions' events for a consumer group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, Self, Unpack

from tidegate.client.closing import AsyncClosing
from tidegate.client.connector import Connector
from tidegate.client.event_hub_receiver import EventHubReceiver
from tidegate.client.management import ask, read_event_hub, read_partition, read_partitions
from tidegate.client.namespace import ConnectionOptions, Namespace, event_hub_of
from tidegate.client.receiver import PREFETCH_BYTES, PREFETCH_EVENTS, PartitionReceiver
from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.model.history import history_of
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds, check_partition_id
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.model.position import EventPosition, PositionKind
from tidegate.wire.addresses import NodeAddress, entity_audience
from tidegate.wire.administration import AdministrationRequest

_ROWS_TOGETHER: Final = 500
"""Partitions that one request reports: it may have 4,096 values, and a partition is five of them."""


_EARLIEST: Final = EventPosition.earliest()


class EventHubConsumer(AsyncClosing):
    """Reads one event hub. Use ``async with``, or ``close`` it, which also ends its receivers.

    ``async for event in consumer`` is ``receive()``: all partitions, from the oldest event on. All receivers
    share one connection. Not thread-safe: use it on one event loop.
    """

    def __init__(
        self,
        namespace: Namespace,
        event_hub: str,
        *,
        consumer_group: str = DEFAULT_CONSUMER_GROUP,
        is_batch_delivery_wanted: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Connects when first used.

        is_batch_delivery_wanted: False requests one delivery per event, even from Tidegate.
        """
        self.event_hub = event_hub
        self.consumer_group = consumer_group
        self._connector = Connector(namespace, clock=clock)
        self._hub_audience = entity_audience(namespace.host, event_hub)
        # The form that azure-eventhub 5.15.1 uses for consumers.
        self._group_audience = f"{self._hub_audience}/consumergroups/{consumer_group}"
        self._is_batch_delivery_wanted = is_batch_delivery_wanted

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        event_hub: str | None = None,
        *,
        consumer_group: str = DEFAULT_CONSUMER_GROUP,
        is_batch_delivery_wanted: bool = True,
        **options: Unpack[ConnectionOptions],
    ) -> Self:
        """A consumer of ``event_hub`` (None: the connection string's EntityPath).

        The other arguments are those of the constructor.
        """
        return cls(
            Namespace.from_connection_string(connection_string, **options),
            event_hub_of(connection_string, event_hub),
            consumer_group=consumer_group,
            is_batch_delivery_wanted=is_batch_delivery_wanted,
        )

    async def get_event_hub_properties(self) -> EventHubProperties:
        """The hub's name, age and partitions.

        Raises NotFoundError, UnauthorizedError, BrokenError, OperationTimeoutError.
        """
        return await read_event_hub(self._connector, self._hub_audience, self.event_hub)

    async def report(
        self, owner: str, sequence_numbers: Mapping[str, int | None], *, released: Iterable[str] = ()
    ) -> None:
        """Report to the service, for owners and lag of a group whose leases and checkpoints are elsewhere.

        owner: the host's name. sequence_numbers: by each partition that it owns, of the last processed event;
        None: none is known. released: what it owns no longer; its number, if given as well, is the last one.
        Azure does not have this. Raises NotFoundError, UnauthorizedError, InvalidArgumentError,
        QuotaExceededError, BrokenError, OperationTimeoutError.
        """
        gone = dict.fromkeys(released)
        ids = [*gone, *(each for each in sequence_numbers if each not in gone)]
        parameters = {"hub": self.event_hub, "group": self.consumer_group}
        for start in range(0, len(ids), _ROWS_TOGETHER):
            some = ids[start : start + _ROWS_TOGETHER]
            values: dict[str, object] = {
                "owner": owner,
                "partitions": [
                    {"partition_id": each, "sequence_number": sequence_numbers[each]}
                    for each in some
                    if each in sequence_numbers
                ],
                "released": [each for each in some if each in gone],
            }
            request = AdministrationRequest("reportConsumer", parameters, values)
            await ask(self._connector, self._hub_audience, request, lambda answer: None)

    async def get_partition_properties(self, partition_id: str) -> PartitionEnds:
        """A partition's current first and last events. Raises as ``get_event_hub_properties``."""
        check_partition_id(partition_id)
        return await read_partition(self._connector, self._hub_audience, self.event_hub, partition_id)

    async def get_all_partition_properties(
        self, event_hub: EventHubProperties | None = None
    ) -> list[PartitionEnds]:
        """The same for all partitions, in the order of their ids.

        event_hub: the hub's properties, if known; None reads them first.
        """
        found = event_hub or await self.get_event_hub_properties()
        return await read_partitions(self._connector, self._hub_audience, found)

    def receive(
        self,
        position: EventPosition | Mapping[str, EventPosition] = _EARLIEST,
        *,
        partition_ids: Iterable[str] | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        is_peeking: bool = True,
    ) -> EventHubReceiver:
        """A receiver of all partitions, also of those that are added to the hub later; it opens when used.

        position: of each partition; or one per partition, as ``EventHubReceiver.positions`` returns them.
        partition_ids: read only these. prefetch_bytes: approximate prefetch limit of all partitions together.
        is_peeking: as in ``open_receiver``; False does not read beside hosts.
        """

        async def read_partition_ids() -> Sequence[str]:
            return (await self.get_event_hub_properties()).partition_ids

        return EventHubReceiver(
            self.open_receiver,
            read_partition_ids,
            self._connector.tasks,
            event_hub=self.event_hub,
            position=position,
            partition_ids=partition_ids,
            prefetch_bytes=prefetch_bytes,
            is_peeking=is_peeking,
        )

    async def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        """Every event of every partition, from the oldest on. Raises as ``EventHubReceiver.receive``."""
        async with self.receive() as receiver:
            async for event in receiver:
                yield event

    async def open_receiver(
        self,
        partition_id: str,
        position: EventPosition,
        *,
        owner_level: int | None = None,
        receiver_name: str | None = None,
        prefetch_events: int = PREFETCH_EVENTS,
        prefetch_bytes: int = PREFETCH_BYTES,
        must_start_at_position: bool = False,
        until_sequence_number: int | None = None,
        is_peeking: bool = False,
    ) -> PartitionReceiver:
        """Open a receiver of one partition that starts at ``position``.

        position: ``EventPosition.latest()`` means after the partition's present last event. owner_level:
        makes the receiver exclusive (epoch): receivers of the group with the same or a lower level get
        ReceiverStolenError; None shares the partition. receiver_name: shown in the service's messages.
        prefetch_events, prefetch_bytes: approximate prefetch limits (with batched delivery, bytes only).
        must_start_at_position: raise PositionOutOfRangeError if retention removed the starting sequence
        number, instead of starting at the first event held. until_sequence_number: fetch little beyond it.
        is_peeking: read beside an owner, without disturbing it; a service that cannot (Azure) treats the
        receiver as any without owner level.

        Raises NotFoundError, UnauthorizedError, ReceiverStolenError (a higher level reads),
        QuotaExceededError (a 6th shared receiver), PositionOutOfRangeError (beyond the end),
        LogDivergedError (the position has a history that is not the log's), BrokenError,
        OperationTimeoutError.
        """
        check_partition_id(partition_id)
        if not isinstance(position, EventPosition):
            raise InvalidArgumentError(
                f"A position is an EventPosition, not {position!r}.",
                next_step="Write EventPosition.earliest(), .latest() or .from_sequence_number(NUMBER).",
            )
        if position.kind is PositionKind.LATEST:
            position = await self._pin_latest(partition_id)
        address = NodeAddress.for_receiving(
            self.event_hub, consumer_group=self.consumer_group, partition_id=partition_id
        )
        receiver = PartitionReceiver(
            self._connector,
            event_hub=self.event_hub,
            partition_id=partition_id,
            address=address.format(),
            audience=self._group_audience,
            hub_audience=self._hub_audience,
            position=position,
            owner_level=owner_level,
            receiver_name=receiver_name,
            prefetch_events=prefetch_events,
            prefetch_bytes=prefetch_bytes,
            is_batch_delivery_wanted=self._is_batch_delivery_wanted,
            must_start_at_position=must_start_at_position,
            until_sequence_number=until_sequence_number,
            is_peeking=is_peeking,
        )
        await receiver.start()
        return receiver

    async def close(self) -> None:
        """Close the connection and all receivers. Idempotent."""
        await self._connector.close()

    def __repr__(self) -> str:
        return f"<EventHubConsumer {self.event_hub}/{self.consumer_group}>"

    async def _pin_latest(self, partition_id: str) -> EventPosition:
        """The partition's present end as a sequence number, so that a reconnection skips no event."""
        properties = await self.get_partition_properties(partition_id)
        if properties.last_enqueued_sequence_number < 0:
            return EventPosition.earliest()
        last = properties.last_enqueued_sequence_number
        history_id = history_of(last, properties.histories)
        return EventPosition.from_sequence_number(last, is_inclusive=False, history_id=history_id)
