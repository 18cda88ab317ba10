"""The names under which official processors keep leases and checkpoints in Blob Storage.

    {namespace}/{hub}/{group}/ownership/{partition}     metadata: ownerid; renewed: Last-Modified
    {namespace}/{hub}/{group}/checkpoint/{partition}    metadata: offset, sequencenumber

All in lower case. The namespace is the host name that the processor connects to, perhaps with a port.
Source: azure-eventhub-checkpointstoreblob 1.2.0, @azure/eventhubs-checkpointstore-blob 2.1.0, 2026-11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)
"""Ids of as many partitions as a hub may have, and some."""


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

    @property
    def text(self) -> str:
        """The name."""
        return "/".join(
            (self.namespace, self.event_hub, self.consumer_group, self.kind.value, self.partition_id)
        )

    @classmethod
    def parse(cls, name: str) -> RecordName | None:
        """The parts of a blob's name; None for any other name."""
        if name.count("/") != 4:  # before it is split into a thousand
            return None
        parts = name.split("/")
        if not all(parts) or _PARTITION.fullmatch(parts[4]) is None:
            return None
        namespace, event_hub, consumer_group, kind, partition_id = parts
        if kind == RecordKind.OWNERSHIP.value:
            return cls(namespace, event_hub, consumer_group, RecordKind.OWNERSHIP, partition_id)
        if kind == RecordKind.CHECKPOINT.value:
            return cls(namespace, event_hub, consumer_group, RecordKind.CHECKPOINT, partition_id)
        return None
