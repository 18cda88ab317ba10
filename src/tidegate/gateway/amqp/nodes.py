"""Attaches: opens the node that serves a client's link, or refuses the link.

Refusals are errors; the connection handler answers them as Event Hubs does (null source and target, detach).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tidegate.amqp.link import Link, ReceiverLink, SenderLink
from tidegate.amqp.performatives import SND_UNSETTLED, Attach, Source, Target
from tidegate.amqp.types import Int, Short, Symbol
from tidegate.broker import Broker, Claim, EventHub, Partition
from tidegate.gateway.amqp.egress import EgressLink
from tidegate.gateway.amqp.ingress import IngressLink
from tidegate.gateway.amqp.owner import LinkNode, NodeOwner
from tidegate.gateway.amqp.request_node import RequestLink, RequestNodes, ResponseLink
from tidegate.model.clock import Clock
from tidegate.model.errors import ClosedError, InvalidArgumentError
from tidegate.model.position import EventPosition
from tidegate.transport.at_once import at_once
from tidegate.wire.addresses import NodeAddress, NodeKind
from tidegate.wire.management import histories_to_list
from tidegate.wire.names import (
    BATCH_DELIVERY_CAPABILITY,
    EPOCH,
    HISTORIES,
    HISTORY_CAPABILITY,
    HISTORY_ID,
    IDEMPOTENT_BATCH_CAPABILITY,
    IDEMPOTENT_PRODUCER_CAPABILITY,
    PEEK_CAPABILITY,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQUENCE_NUMBER,
    PRODUCERS_KNOWN_SINCE,
    RECEIVER_NAME,
    REQUEST_BYTES_MAX,
    RUNTIME_METRIC_CAPABILITY,
    STRANGER_REQUEST_BYTES_MAX,
)
from tidegate.wire.selector import honoured_filters, positions_from_filters


@dataclass(frozen=True, slots=True)
class OpenedNode:
    """A node, and the contents of the answer to the attach."""

    node: LinkNode
    message_bytes_max: int | None
    offered_capabilities: tuple[Symbol, ...] = ()
    properties: Mapping[str, object] = field(default_factory=dict)
    """Link properties that the client did not name, or left to the service to choose."""
    filters: Mapping[object, object] = field(default_factory=dict)
    """The client's filters that the service applies (AMQP 1.0 part 3 section 3.5.3)."""
    source_address: str | None = None
    """Set if the client asked the service for an address."""


class NodeOpener:
    """Opens the nodes of one connection."""

    def __init__(self, owner: NodeOwner, broker: Broker, clock: Clock, requests: RequestNodes) -> None:
        self._owner = owner
        self._broker = broker
        self._clock = clock
        self._requests = requests
        self._ingress = partial(IngressLink, owner, find_hub=broker.event_hub)

    def open(self, link: Link, attach: Attach) -> OpenedNode | Awaitable[OpenedNode]:
        """The node for an attach, or (if that takes time) an awaitable of it.

        Raises InvalidArgumentError (address, filter, link property), NotFoundError, UnauthorizedError,
        ReceiverStolenError, ProducerEpochStolenError, QuotaExceededError, PositionOutOfRangeError,
        LogDivergedError; the awaitable raises the same, and ClosedError; nothing is left open then.
        """
        # Our end of a link on which the client sends is the receiving one.
        if isinstance(link, ReceiverLink):
            return self._open_for_sending(link, attach)
        assert isinstance(link, SenderLink)
        return at_once(self._open_for_receiving(link, attach))

    def close(self) -> None:
        """The connection has ended."""
        self._requests.close()

    def _open_for_sending(self, link: ReceiverLink, attach: Attach) -> OpenedNode | Awaitable[OpenedNode]:
        if not isinstance(attach.target, Target) or not attach.target.address:
            raise InvalidArgumentError(
                "The attach names no target address.",
                next_step="Send to an event hub; transactions are not served.",
            )
        address = NodeAddress.parse(attach.target.address)
        if address.kind in (NodeKind.CBS, NodeKind.MANAGEMENT):
            is_small = address.kind is NodeKind.CBS or self._owner.claims.is_empty
            bytes_max = STRANGER_REQUEST_BYTES_MAX if is_small else REQUEST_BYTES_MAX
            return OpenedNode(RequestLink(self._requests, link, address.kind), bytes_max)
        if address.kind is NodeKind.CONSUMER:
            raise InvalidArgumentError(
                f"'{address}' is for receiving.",
                next_step="Send to HUB, HUB/Partitions/ID or HUB/Publishers/NAME.",
            )
        # Claims first: a client that may not send does not learn which hubs exist.
        publisher = address.publisher
        self._owner.claims.require(address.entity, Claim.SEND)
        event_hub = self._broker.event_hub(address.event_hub)
        if publisher is not None:
            event_hub.check_publisher(publisher)
            node = self._ingress(link, event_hub, None, publisher=publisher)
            return OpenedNode(node, event_hub.event_bytes_max)
        partition = None if address.partition_id is None else event_hub.partition(address.partition_id)
        if partition is not None and IDEMPOTENT_PRODUCER_CAPABILITY in attach.desired_capabilities:
            return self._open_producer(link, attach, event_hub, partition)
        # Numbered batches need one partition: the numbers count per partition.
        is_idempotent = partition is not None and IDEMPOTENT_BATCH_CAPABILITY in attach.desired_capabilities
        if partition is not None and is_idempotent and PRODUCER_ID in attach.properties:
            return self._open_repeatable_producer(link, attach, event_hub, partition)
        node = self._ingress(link, event_hub, partition, is_idempotent=is_idempotent)
        return OpenedNode(
            node, event_hub.event_bytes_max, (IDEMPOTENT_BATCH_CAPABILITY,) if is_idempotent else ()
        )

    async def _open_producer(
        self, link: ReceiverLink, attach: Attach, event_hub: EventHub, partition: Partition
    ) -> OpenedNode:
        node = self._ingress(link, event_hub, partition)
        producer = await node.open_producer(
            producer_id=_number(attach, PRODUCER_ID),
            epoch=_number(attach, PRODUCER_EPOCH),
            last_sequence_number=_number(attach, PRODUCER_SEQUENCE_NUMBER),
        )
        properties: dict[str, object] = {
            PRODUCER_ID: producer.producer_id,
            PRODUCER_EPOCH: Short(producer.epoch),
            PRODUCER_SEQUENCE_NUMBER: Int(producer.last_sequence_number),
        }
        return OpenedNode(node, event_hub.event_bytes_max, (IDEMPOTENT_PRODUCER_CAPABILITY,), properties)

    async def _open_repeatable_producer(
        self, link: ReceiverLink, attach: Attach, event_hub: EventHub, partition: Partition
    ) -> OpenedNode:
        """A sender of numbered batches that names itself, to learn how many of its events are stored."""
        node = self._ingress(link, event_hub, partition, is_idempotent=True)
        producer = await node.open_producer(
            producer_id=_number(attach, PRODUCER_ID),
            epoch=_number(attach, PRODUCER_EPOCH) or 0,
            last_sequence_number=None,
        )
        properties: dict[str, object] = {
            PRODUCER_SEQUENCE_NUMBER: Int(producer.stored_count - 1),
            PRODUCERS_KNOWN_SINCE: producer.known_since,
        }
        return OpenedNode(node, event_hub.event_bytes_max, (IDEMPOTENT_BATCH_CAPABILITY,), properties)

    async def _open_for_receiving(self, link: SenderLink, attach: Attach) -> OpenedNode:
        if isinstance(attach.source, Source) and attach.source.dynamic and not attach.source.address:
            # Qpid Proton's way to receive responses (AMQP 1.0 part 3 section 3.5.3).
            responses = ResponseLink(self._requests, link, None)
            return OpenedNode(responses, None, source_address=responses.dynamic_address)
        if not isinstance(attach.source, Source) or not attach.source.address:
            raise InvalidArgumentError(
                "The attach names no source address.",
                next_step="Receive from HUB/ConsumerGroups/GROUP/Partitions/ID.",
            )
        address = NodeAddress.parse(attach.source.address)
        if address.kind in (NodeKind.CBS, NodeKind.MANAGEMENT):
            return OpenedNode(ResponseLink(self._requests, link, address.kind), None)
        if address.consumer_group is None or address.partition_id is None:
            raise InvalidArgumentError(
                f"'{address}' is not for receiving.",
                next_step="Receive from HUB/ConsumerGroups/GROUP/Partitions/ID.",
            )
        self._owner.claims.require(address.entity, Claim.LISTEN)
        event_hub = self._broker.event_hub(address.event_hub)
        partition = event_hub.partition(address.partition_id)
        filters = honoured_filters(attach.source.filter)
        positions = _positions(attach, filters)
        is_history_wanted = HISTORY_CAPABILITY in attach.desired_capabilities
        are_metrics_wanted = RUNTIME_METRIC_CAPABILITY in attach.desired_capabilities
        # Slices of batches carry no metrics: a client that wants both gets single events.
        is_batched = BATCH_DELIVERY_CAPABILITY in attach.desired_capabilities and not are_metrics_wanted
        is_lost_refused = self._broker.is_lost_position_refused
        owner_level = _owner_level(attach)
        is_peeking = PEEK_CAPABILITY in attach.desired_capabilities and owner_level is None
        starts = [await partition.resolve(each, is_lost_refused=is_lost_refused) for each in positions]
        node = EgressLink(
            self._owner,
            link,
            event_hub,
            partition,
            address=address,
            clock=self._clock,
            start_sequence_number=max(starts),
            is_lost_refused=is_lost_refused,
            is_batched=is_batched,
            is_settled=attach.snd_settle_mode != SND_UNSETTLED,
            are_metrics_wanted=are_metrics_wanted,
        )
        # The log may answer late, and a new receiver detaches others: also one that replaced this link.
        if link.has_ended:
            raise ClosedError("The link ended before its attach was answered.")
        node.check_usable()
        node.open_receiver(
            address.consumer_group,
            name=_receiver_name(attach),
            owner_level=owner_level,
            is_peeking=is_peeking,
        )
        offered = [
            name
            for name, is_offered in (
                (BATCH_DELIVERY_CAPABILITY, is_batched),
                (RUNTIME_METRIC_CAPABILITY, are_metrics_wanted),
                (HISTORY_CAPABILITY, is_history_wanted),
                (PEEK_CAPABILITY, is_peeking),
            )
            if is_offered
        ]
        histories = histories_to_list(partition.known_ends().histories)
        properties: dict[str, object] = {HISTORIES: histories} if is_history_wanted else {}
        return OpenedNode(node, None, tuple(offered), properties, filters=filters)


def _owner_level(attach: Attach) -> int | None:
    level = attach.properties.get(EPOCH)
    if level is None:
        return None
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level < 1 << 63:
        raise InvalidArgumentError(f"The owner level must be an integer of 0 or more, got {level!r:.40}.")
    return int(level)


def _positions(attach: Attach, filters: Mapping[object, object]) -> tuple[EventPosition, ...]:
    positions = positions_from_filters(filters)
    history_id = attach.properties.get(HISTORY_ID)
    if history_id is None or HISTORY_CAPABILITY not in attach.desired_capabilities:
        return positions
    if not isinstance(history_id, str):
        raise InvalidArgumentError(f"The id of a history must be a string, got {history_id!r:.40}.")
    return tuple(replace(position, history_id=history_id) for position in positions)


def _number(attach: Attach, name: str) -> int | None:
    value = attach.properties.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidArgumentError(f"The link property {name} must be an integer, got {value!r:.40}.")
    return value


def _receiver_name(attach: Attach) -> str | None:
    """The name that the receiver gave itself, made safe for errors and logs: one line, at most 256
    characters."""
    value = attach.properties.get(RECEIVER_NAME)
    if not isinstance(value, str):
        return None
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in value[:256])
