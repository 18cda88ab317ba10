"""Node addresses, in every form that clients use.

    hub                                      send, the service picks the partition
    hub/Partitions/0                         send to one partition
    hub/Publishers/p                         send as a named publisher
    hub/ConsumerGroups/g/Partitions/0        receive
    $cbs, $management, hub/$management       requests

Python's client sends full URIs (``amqps://host[:port]/hub/…``), .NET a leading slash, JavaScript neither.
Keywords are case-insensitive; names keep their case.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from tidegate.model.audience import EntityPath, entity_path
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import ADDRESS_CHARACTERS_MAX
from tidegate.wire.names import CBS_NODE, MANAGEMENT_NODE

_PARTS_MAX: Final = 5
"""Of the path of a consumer, the longest."""


class NodeKind(Enum):
    """What a link can be attached to."""

    EVENT_HUB = "event hub"
    PARTITION = "partition"
    PUBLISHER = "publisher"
    CONSUMER = "consumer"
    CBS = "cbs"
    MANAGEMENT = "management"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A parsed address. Create it with ``parse``, ``for_sending`` or ``for_receiving``."""

    kind: NodeKind
    event_hub: str = ""
    """Empty for ``$cbs``, and for ``$management`` without a hub."""
    partition_id: str | None = None
    consumer_group: str | None = None
    publisher: str | None = None

    @classmethod
    def for_sending(
        cls, event_hub: str, *, partition_id: str | None = None, publisher: str | None = None
    ) -> NodeAddress:
        """The address for a producer: a hub, and at most one of partition and publisher."""
        assert partition_id is None or publisher is None
        if publisher is not None:
            return cls(NodeKind.PUBLISHER, event_hub, publisher=publisher)
        if partition_id is None:
            return cls(NodeKind.EVENT_HUB, event_hub)
        return cls(NodeKind.PARTITION, event_hub, partition_id=partition_id)

    @classmethod
    def for_receiving(cls, event_hub: str, *, consumer_group: str, partition_id: str) -> NodeAddress:
        return cls(NodeKind.CONSUMER, event_hub, partition_id=partition_id, consumer_group=consumer_group)

    @classmethod
    def parse(cls, text: str) -> NodeAddress:
        """Parse an address. Raises InvalidArgumentError for an unknown form."""
        if len(text) > ADDRESS_CHARACTERS_MAX:
            raise InvalidArgumentError(
                f"The address {text[:200]!r} has more than {ADDRESS_CHARACTERS_MAX} characters, the maximum."
            )
        _, separator, rest = text.partition("://")
        path = rest.partition("/")[2] if separator else text
        encoded = [part for part in path.split("/") if part]
        # Decoded only if there are not too many: this may be anything, and its sender without a token.
        parts = [unquote(part) for part in encoded] if len(encoded) <= _PARTS_MAX else []
        match [
            part.lower() if index % 2 or part.startswith("$") else part for index, part in enumerate(parts)
        ]:
            case [node] if node == CBS_NODE:
                return cls(NodeKind.CBS)
            case [node] if node == MANAGEMENT_NODE:
                return cls(NodeKind.MANAGEMENT)
            case [_]:
                return cls(NodeKind.EVENT_HUB, parts[0])
            case [_, node] if node == MANAGEMENT_NODE:
                return cls(NodeKind.MANAGEMENT, parts[0])
            case [_, node] if node == CBS_NODE:
                return cls(NodeKind.CBS, parts[0])
            case [_, "partitions", _]:
                return cls(NodeKind.PARTITION, parts[0], partition_id=parts[2])
            case [_, "publishers", _]:
                return cls(NodeKind.PUBLISHER, parts[0], publisher=parts[2])
            case [_, "consumergroups", _, "partitions", _]:
                return cls(NodeKind.CONSUMER, parts[0], partition_id=parts[4], consumer_group=parts[2])
        raise InvalidArgumentError(
            f"The address {text[:200]!r} is not an Event Hubs address.",
            next_step="Send to HUB or HUB/Partitions/ID; receive from HUB/ConsumerGroups/G/Partitions/ID.",
        )

    @property
    def entity(self) -> EntityPath:
        """The entity that a claim for this node must cover."""
        return entity_path(*self._names())

    def format(self) -> str:
        """The relative form, which every peer accepts. Parsing it gives an equal address."""
        return "/".join(quote(name, safe="$") for name in self._names())

    def _names(self) -> tuple[str, ...]:
        hub = (self.event_hub,) if self.event_hub else ()
        partition = ("Partitions", self.partition_id or "")
        match self.kind:
            case NodeKind.CBS:
                return (*hub, CBS_NODE)
            case NodeKind.MANAGEMENT:
                return (*hub, MANAGEMENT_NODE)
            case NodeKind.PARTITION:
                return (*hub, *partition)
            case NodeKind.PUBLISHER:
                return (*hub, "Publishers", self.publisher or "")
            case NodeKind.CONSUMER:
                return (*hub, "ConsumerGroups", self.consumer_group or "", *partition)
        return hub

    def __str__(self) -> str:
        return self.format()


def entity_audience(host: str, event_hub: str = "") -> str:
    """The audience of a token for a hub, or for the whole namespace."""
    return f"sb://{host}/{event_hub}" if event_hub else f"sb://{host}"
