"""Quotas, each with its unit and its source. No other module holds a limit of Event Hubs as a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

EVENT_BYTES_MAX: Final = 1_048_576
"""Largest event or batch, encoded, in bytes (Standard tier and above; Azure "Event Hubs quotas", 2026-09)."""

PARTITIONS_MAX: Final = 1024
"""Partitions per hub, at most (Dedicated tier; Azure "Event Hubs quotas", 2026-09)."""

HUB_NAME_CHARACTERS_MAX: Final = 256
CONSUMER_GROUP_NAME_CHARACTERS_MAX: Final = 50
"""Lengths of names in characters (Azure "Event Hubs quotas", 2026-09)."""

CONSUMER_GROUPS_MAX: Final = 1000
"""Consumer groups per hub, ``$Default`` included (Dedicated tier; Azure "Event Hubs quotas", 2026-09)."""

NON_EPOCH_RECEIVERS_MAX: Final = 5
"""Receivers without owner level per partition and consumer group (Azure "Event Hubs quotas", 2026-09)."""

PARTITION_KEY_CHARACTERS_MAX: Final = 128
"""Length of a partition key in characters (Azure "Event Hubs quotas", 2026-09)."""

RETENTION_HOURS_DEFAULT: Final = 168
RETENTION_HOURS_MAX: Final = 2160
"""Hours that events are kept: 7 days (Standard's most) by default, 90 days at most (Premium)."""

DEFAULT_CONSUMER_GROUP: Final = "$Default"
"""The consumer group that every hub has from the start; its name is Event Hubs' own."""

EVENT_BYTES_MIN: Final = 1024
"""The lowest limit on events that a hub can be given, in bytes (our choice: room for an event's envelope)."""

USER_METADATA_CHARACTERS_MAX: Final = 1024
"""Characters of an event hub's user metadata (Azure REST "Event Hubs", userMetadata, 2026-09)."""

POLICIES_MAX: Final = 12
"""Policies per namespace and per hub (authorization rules; Azure "Event Hubs quotas", 2026-09)."""

POLICY_NAME_CHARACTERS_MAX: Final = 50
"""Length of a policy's name in characters (authorizationRules; Azure "Naming rules and restrictions",
2026-09)."""

POLICY_KEY_BYTES_SAFE: Final = 32
"""A chosen key with fewer is taken, with a warning: it may be found by guessing."""

POLICY_KEY_CHARACTERS_MIN: Final = 8
POLICY_KEY_CHARACTERS_MAX: Final = 256
"""Length of a key that somebody chooses, in characters (our choice; one made by the service has 44)."""

PUBLISHER_NAME_CHARACTERS_MAX: Final = 128
"""Length of a publisher's name in characters: it is the partition key of the publisher's events."""

REVOKED_PUBLISHERS_MAX: Final = 10_000
"""Publishers revoked per hub at a time (our choice: the catalog stays a small file)."""

REVOKED_PUBLISHERS_BYTES_MAX: Final = 256_000
"""Bytes of the names of a hub's revoked publishers (our choice: each change writes the whole catalog)."""

PUBLISHERS_SEEN_MAX: Final = 10_000
"""Publishers with an address of their own, per hub, that the service remembers having seen since its start
(our choice: 4 MB of memory with short names, 7 MB with the longest in ASCII, 15 MB with any; the one not seen
for longest falls out)."""

PUBLISHERS_STATED_MAX: Final = 1_000
"""Names of publishers, per hub, that only events sent to the hub's own address say and that are remembered in
the same way (our choice: whoever may send can make them up, so they get 1.5 MB of memory at most)."""

THROUGHPUT_UNITS_MAX: Final = 1000
"""Throughput units of a namespace (our choice; Azure's Standard tier has 40, shared machines as they are)."""

INGRESS_BYTES_PER_UNIT: Final = 1_048_576
INGRESS_EVENTS_PER_UNIT: Final = 1000
"""What one throughput unit lets in per second: whichever is reached first (Azure "Throughput units", 2026-09:
1 MB, taken as the size that one event may have)."""

EGRESS_BYTES_PER_UNIT: Final = 2_097_152
EGRESS_EVENTS_PER_UNIT: Final = 4096
"""What one throughput unit lets out per second: whichever is reached first (Azure "Throughput units",
2026-09)."""


class Tier(Enum):
    """The tier of Event Hubs whose limits a namespace keeps."""

    BASIC = "Basic"
    STANDARD = "Standard"
    PREMIUM = "Premium"
    DEDICATED = "Dedicated"


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What differs between the tiers."""

    event_bytes_max: int
    """Largest event or batch, encoded, in bytes; a hub may be given less."""
    partitions_max: int
    """Partitions per hub."""
    consumer_groups_max: int
    """Consumer groups per hub, ``$Default`` included."""
    retention_hours_max: int
    """Hours that events are kept, at most."""

    @property
    def retention_hours_default(self) -> int:
        """Hours that events are kept where nobody says for how long."""
        return min(RETENTION_HOURS_DEFAULT, self.retention_hours_max)


TIER_LIMITS: Final[Mapping[Tier, TierLimits]] = {
    Tier.BASIC: TierLimits(262_144, 32, 1, 24),
    Tier.STANDARD: TierLimits(EVENT_BYTES_MAX, 32, 20, 168),
    Tier.PREMIUM: TierLimits(EVENT_BYTES_MAX, 100, 100, RETENTION_HOURS_MAX),
    Tier.DEDICATED: TierLimits(EVENT_BYTES_MAX, PARTITIONS_MAX, CONSUMER_GROUPS_MAX, RETENTION_HOURS_MAX),
}
"""What a namespace of each tier allows, at most (Azure "Event Hubs quotas", Basic vs. Standard vs. Premium
vs. Dedicated, 2026-09). Not taken over: the numbers of hubs and of connections, and the 20 MB of Dedicated's
large messages."""

TIER_DEFAULT: Final = Tier.DEDICATED
"""The tier of a namespace whose owner chose none (our choice: a machine of one's own is not shared)."""

CAPTURE_SIZE_WINDOW_BYTES_MIN: Final = 10_485_760
CAPTURE_SIZE_WINDOW_BYTES_MAX: Final = 524_288_000
CAPTURE_SIZE_WINDOW_BYTES_DEFAULT: Final = 314_572_800
"""Bytes of events after which Capture closes a file (Azure REST "CaptureDescription", sizeLimitInBytes,
2024-01-01; the default is the portal's 300 MB)."""

CAPTURE_TIME_WINDOW_S_MIN: Final = 60
CAPTURE_TIME_WINDOW_S_MAX: Final = 900
CAPTURE_TIME_WINDOW_S_DEFAULT: Final = 300
"""Seconds after which Capture closes a file (Azure REST "CaptureDescription", intervalInSeconds, 2024-01-01;
the default is the portal's 5 minutes)."""

CAPTURE_FILES_LISTED_BYTES_MAX: Final = 4_194_304
"""Bytes that a hub's list of written capture files may take (our choice: 6,000 to 12,000 files with names of
usual length; the older half is dropped at once)."""

RETENTION_BYTES_MAX: Final = (1 << 63) - 1
"""Bytes that a partition may be told to keep: what AMQP's long holds, in which clients are told it."""
