"""A scripted service in memory: the engine's server role, and orders for how to misbehave.

Stands where a test needs an answer that the real service gives only when it is in trouble: busy, a lost
acknowledgement, a link cut in the middle, another service's capabilities (none). It checks no tokens unless
told to, and forgets all when it goes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.support.responses import encode_error_response

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.events import (
    CreditGranted,
    DeliveriesReceived,
    Event,
    LinkAttaching,
    LinkDetached,
)
from tidegate.amqp.link import Link, ReceiverLink, SenderLink
from tidegate.amqp.message import decode_message
from tidegate.amqp.performatives import Accepted, Rejected, Target
from tidegate.model.errors import OutOfOrderSequenceError, PositionOutOfRangeError, TidegateError
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.model.position import EventPosition, PositionKind
from tidegate.model.times import EPOCH
from tidegate.transport.clock import SystemClock
from tidegate.transport.driver import AmqpDriver, AmqpServer, EventHandler
from tidegate.wire.addresses import NodeAddress, NodeKind
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, iter_events, split_message, wrap_event
from tidegate.wire.cbs import ACCEPTED, PutToken
from tidegate.wire.conditions import to_amqp_error
from tidegate.wire.delivery import batched_delivery_prefix, event_deliveries
from tidegate.wire.event_codec import decode_event
from tidegate.wire.management import (
    ManagementRequest,
    Operation,
    event_hub_to_map,
    partition_to_map,
)
from tidegate.wire.names import BATCH_DELIVERY_CAPABILITY, IDEMPOTENT_BATCH_CAPABILITY
from tidegate.wire.request_response import Request, encode_response
from tidegate.wire.selector import positions_from_filters

ENQUEUED_TIME_MS = 1_700_000_000_000


@dataclass
class FakePartition:
    """One partition's events, and what its producers were told."""

    events: list[bytes] = field(default_factory=list)
    begin: int = 0
    """Events below it count as removed by retention."""
    hole: range = range(0)
    """Events that compaction removed."""
    next_sequences: dict[int, int] = field(default_factory=dict)
    """By producer id: the number its next batch must have."""

    def bodies(self) -> list[bytes]:
        """The decoded bodies, in order."""
        return [decode_event(event).body for event in self.events]


@dataclass
class _Reader:
    link: SenderLink
    partition: FakePartition
    next_number: int
    is_batched: bool


class FakeService:
    """``async with FakeService(...) as service``; connect to ``service.connection_string``."""

    def __init__(
        self,
        *,
        partition_count: int = 2,
        capabilities: tuple[str, ...] = (),
        events_per_batch: int = 100,
        message_bytes_max: int = 1_048_576,
    ) -> None:
        """capabilities: what links are offered, of the extensions."""
        self.partitions = [FakePartition() for _ in range(partition_count)]
        self.capabilities = capabilities
        self.events_per_batch = events_per_batch
        self.message_bytes_max = message_bytes_max
        self.refusals: deque[TidegateError | None] = deque()
        """The fate of the batches that come next, one each: an error to reject with, or None to store."""
        self.lost_acknowledgements = 0
        """So many batches are stored, and the line cut instead of an acknowledgement."""
        self.attach_refusals: deque[TidegateError | None] = deque()
        """The fate of the attaches that come next on partitions."""
        self.token_error: TidegateError | None = None
        self.is_acknowledging = True
        """False: batches are stored and nothing is said."""
        self.breaks_after_attach: deque[TidegateError] = deque()
        """Taken from the left by each receiver that is accepted: it is detached at once, with this error."""
        self.batch_sizes: list[int] = []
        """Events of each batch that came, in order of coming."""
        self.tokens: list[PutToken] = []
        self.connection_count = 0
        self.port = 0
        self._server: AmqpServer | None = None
        self._reply_links: dict[str, SenderLink] = {}
        self._nodes: dict[Link, NodeAddress] = {}
        self._readers: dict[Link, _Reader] = {}
        self._unanswered: list[tuple[ReceiverLink, int]] = []

    @property
    def connection_string(self) -> str:
        """With the event hub ``hub``."""
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=p;SharedAccessKey=k;"
            "UseDevelopmentEmulator=true;EntityPath=hub"
        )

    async def __aenter__(self) -> Self:
        configuration = ConnectionConfiguration(
            container_id="fake", sasl_mechanisms=("ANONYMOUS",), max_frame_size=65536
        )
        self._server = AmqpServer(configuration, clock=SystemClock(), on_connection=self._on_connection)
        _, self.port = await self._server.listen("127.0.0.1", self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await self._server.close(timeout_s=1.0)

    def cut_lines(self) -> int:
        """End every connection without a word; returns how many there were."""
        assert self._server is not None
        drivers = list(self._server.drivers)
        for driver in drivers:
            stream = driver._stream
            if stream is not None:
                stream.abort()
        return len(drivers)

    def detach_readers(self, error: TidegateError) -> None:
        """Detach every receiver with ``error``."""
        for link in list(self._readers):
            link.detach(to_amqp_error(error))
        self._flush()

    def acknowledge(self) -> None:
        """Accept what was stored without a word."""
        self.is_acknowledging = True
        unanswered, self._unanswered = self._unanswered, []
        for link, delivery_id in unanswered:
            link.settle(delivery_id, delivery_id, Accepted())
        self._flush()

    def store(self, partition_id: int, events: list[bytes]) -> None:
        """Put encoded events into a partition, and wake its readers."""
        self.partitions[partition_id].events += events
        for reader in list(self._readers.values()):
            self._serve(reader)
        self._flush()

    # --- inside -------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        assert self._server is not None
        for driver in list(self._server.drivers):
            driver.flush()

    def _on_connection(self, driver: AmqpDriver) -> EventHandler:
        self.connection_count += 1

        def on_event(event: Event) -> None:
            match event:
                case LinkAttaching(link=link):
                    self._on_attaching(link)
                case DeliveriesReceived(link=link, deliveries=deliveries):
                    for delivery in deliveries:
                        if not self._on_message(
                            link, delivery.delivery_id, delivery.message_format, delivery.payload
                        ):
                            stream = driver._stream
                            assert stream is not None
                            stream.abort()
                            return
                case CreditGranted(link=link):
                    if link in self._readers:
                        self._serve(self._readers[link])
                case LinkDetached(link=link):
                    self._readers.pop(link, None)
                    self._nodes.pop(link, None)
                case _:
                    pass

        return on_event

    def _on_attaching(self, link: Link) -> None:
        attach = link.remote_attach
        if isinstance(link, ReceiverLink):
            assert isinstance(attach.target, Target)
            text = attach.target.address
        else:
            text = attach.source.address if attach.source else None
        node = NodeAddress.parse(text or "")
        is_partition = node.kind in (NodeKind.PARTITION, NodeKind.CONSUMER)
        refusal = self.attach_refusals.popleft() if is_partition and self.attach_refusals else None
        if refusal is not None:
            link.refuse(to_amqp_error(refusal))
            return
        self._nodes[link] = node
        offered = tuple(name for name in self.capabilities if name in attach.desired_capabilities)
        if isinstance(link, ReceiverLink):
            link.accept(max_message_size=self.message_bytes_max, offered_capabilities=offered)
            link.grant_credit(1000)
        elif node.kind is NodeKind.CONSUMER:
            self._accept_reader(link, node, offered)
        else:
            link.accept()
            assert isinstance(attach.target, Target)
            self._reply_links[attach.target.address or ""] = link  # type: ignore[assignment]

    def _accept_reader(self, link: Link, node: NodeAddress, offered: tuple[str, ...]) -> None:
        assert isinstance(link, SenderLink)
        partition = self.partitions[int(node.partition_id or 0)]
        source = link.remote_attach.source
        (position,) = positions_from_filters(source.filter if source else {})
        start = _resolve(position, partition)
        if start > len(partition.events):
            error = PositionOutOfRangeError(f"The supplied sequence number '{start}' is invalid.")
            link.refuse(to_amqp_error(error))
            return
        link.accept(offered_capabilities=offered)
        is_batched = BATCH_DELIVERY_CAPABILITY in offered
        if self.breaks_after_attach:
            link.detach(to_amqp_error(self.breaks_after_attach.popleft()))
            return
        self._readers[link] = _Reader(link, partition, max(start, partition.begin), is_batched)

    def _serve(self, reader: _Reader) -> None:
        events, link = reader.partition.events, reader.link
        hole = reader.partition.hole
        reader.next_number = max(reader.next_number, reader.partition.begin)
        while reader.next_number < len(events) and link.sendable > 0:
            if reader.next_number in hole:
                reader.next_number = hole.stop
                continue
            start = reader.next_number
            if reader.is_batched:
                until = start + self.events_per_batch
                chunk = events[start : min(until, hole.start) if start < hole.start else until]
                prefix = batched_delivery_prefix(
                    first_sequence_number=start, enqueued_time_ms=ENQUEUED_TIME_MS, event_count=len(chunk)
                )
                payload = prefix + b"".join(map(wrap_event, chunk))
                link.send(payload, message_format=BATCH_MESSAGE_FORMAT, settled=True)
                reader.next_number += len(chunk)
            else:
                section = wrap_event(events[start])
                (payload,) = event_deliveries(
                    section, [len(section)], first_sequence_number=start, enqueued_time_ms=ENQUEUED_TIME_MS
                )
                link.send(payload, settled=True)
                reader.next_number += 1

    def _on_message(self, link: ReceiverLink, delivery_id: int, message_format: int, payload: bytes) -> bool:
        """Handle one message; False where the line is to be cut."""
        node = self._nodes[link]
        if node.kind in (NodeKind.CBS, NodeKind.MANAGEMENT):
            link.settle(delivery_id, delivery_id, Accepted())
            request = Request.from_message(decode_message(payload))
            answer = self._answer(node, request)
            self._reply_links[request.reply_to or ""].send(answer, settled=True)
            return True
        refusal = self.refusals.popleft() if self.refusals else None
        if refusal is None:
            refusal = self._store(node, payload, message_format)
        if refusal is not None:
            link.settle(delivery_id, delivery_id, Rejected(to_amqp_error(refusal)))
            return True
        if self.lost_acknowledgements:
            self.lost_acknowledgements -= 1
            return False
        if self.is_acknowledging:
            link.settle(delivery_id, delivery_id, Accepted())
        else:
            self._unanswered.append((link, delivery_id))
        return True

    def _store(self, node: NodeAddress, payload: bytes, message_format: int) -> TidegateError | None:
        *_, batch = split_message(payload, message_format)
        assert batch is not None
        partition = self.partitions[int(node.partition_id or 0)]
        self.batch_sizes.append(len(batch.lengths))
        if batch.producer_id is not None:
            assert IDEMPOTENT_BATCH_CAPABILITY in self.capabilities
            number = batch.producer_sequence_number
            assert number is not None
            expected = partition.next_sequences.get(batch.producer_id, 0)
            if number < expected:
                return None
            if number > expected:
                return OutOfOrderSequenceError(f"{number} where {expected} was due")
            partition.next_sequences[batch.producer_id] = number + len(batch.lengths)
        partition.events += [bytes(event) for event in iter_events(batch.payload, batch.lengths)]
        for reader in list(self._readers.values()):
            self._serve(reader)
        return None

    def _answer(self, node: NodeAddress, request: Request) -> bytes:
        if node.kind is NodeKind.CBS:
            self.tokens.append(PutToken.from_request(request))
            if self.token_error is not None:
                return encode_error_response(request.message_id, self.token_error)
            return encode_response(request.message_id, ACCEPTED)
        asked = ManagementRequest.from_request(request)
        ids = tuple(str(number) for number in range(len(self.partitions)))
        if asked.operation is not Operation.READ_PARTITION:
            return encode_response(
                request.message_id, 200, event_hub_to_map(EventHubProperties("hub", EPOCH, ids))
            )
        partition = self.partitions[int(asked.partition_id or 0)]
        last = len(partition.events) - 1
        ends = PartitionEnds(
            event_hub="hub",
            partition_id=asked.partition_id or "0",
            begin_sequence_number=partition.begin,
            next_sequence_number=last + 1,
            last_enqueued_offset=str(last),
            last_enqueued_time_ms=ENQUEUED_TIME_MS if last >= 0 else None,
        )
        return encode_response(request.message_id, 200, partition_to_map(ends))


async def until(is_reached: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Return once ``is_reached()``; TimeoutError where it never is."""
    async with asyncio.timeout(timeout_s):
        while not is_reached():  # noqa: ASYNC110 - what tests wait for has no event of its own
            await asyncio.sleep(0.001)


def _resolve(position: EventPosition, partition: FakePartition) -> int:
    match position.kind:
        case PositionKind.SEQUENCE_NUMBER:
            assert isinstance(position.value, int)
            return position.value if position.is_inclusive else position.value + 1
        case PositionKind.LATEST:
            return len(partition.events)
        case _:
            return partition.begin
