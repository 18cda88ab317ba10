"""The names under which official processors keep leases and checkpoints in Blob Storage.

    {namespace}/{hub}/{group}/ownership/{partition}     metadata: ownerid; renewed: Last-Modified
    {namespace}/{hub}/{group}/checkpoint/{partition}    metadata: offset, sequencenumber

All in lower case. The namespace is the host name that the processor connects to, perhaps with a port.
Source: azure-eventhub-checkpointstoreblob 1.2.0, @azure/eventhubs-checkpointstore-blob 2.1.0, 2026-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RecordKind(Enum):
    """What a blob of this layout holds."""

    OWNERSHIP = "ownership"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class RecordName:
    """The name of a blob of this layout, in its parts."""

    namespace: str
    event_hub: str
    consumer_group: str
    kind: RecordKind
    partition_id: str

    @classmethod
    def parse(cls, name: str) -> RecordName | None:
        """The parts of a blob's name; None for any other name."""
        parts = name.split("/")
        if len(parts) != 5 or not all(parts) or not parts[4].isdecimal():
            return None
        namespace, event_hub, consumer_group, kind, partition_id = parts
        if kind == RecordKind.OWNERSHIP.value:
            return cls(namespace, event_hub, consumer_group, RecordKind.OWNERSHIP, partition_id)
        if kind == RecordKind.CHECKPOINT.value:
            return cls(namespace, event_hub, consumer_group, RecordKind.CHECKPOINT, partition_id)
        return None
