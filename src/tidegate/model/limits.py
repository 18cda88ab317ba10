"""Quotas, each with its unit and source. No other module holds a limit of Event Hubs as a number."""

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
"""Consumer groups per hub, beside ``$Default`` (Dedicated tier; Azure "Event Hubs quotas", 2026-09)."""

ADDRESS_CHARACTERS_MAX: Final = 2048
"""Length of an address and of an audience in characters (our choice: more than the longest names need with
each byte percent-encoded)."""

NAME_CHARACTERS_MAX: Final = 1024
"""Length of any name in a request, whether there is such an entity or not (our choice: no entity's name is
half as long)."""

NON_EPOCH_RECEIVERS_MAX: Final = 5
"""Receivers without owner level per partition and consumer group (Azure "Event Hubs quotas", 2026-09)."""

PARTITION_KEY_CHARACTERS_MAX: Final = 128
"""Length of a partition key in characters (Azure "Event Hubs quotas", 2026-09)."""

RETENTION_HOURS_DEFAULT: Final = 168
RETENTION_HOURS_MAX: Final = 2160
"""Hours that events are kept: 7 days (Standard's maximum) by default, at most 90 days (Premium)."""

DEFAULT_CONSUMER_GROUP: Final = "$Default"
"""The consumer group that every hub has from the start, as named by Event Hubs."""


def spelled_group(name: str) -> str:
    """A consumer group's name; the default group's as it is shown, in whatever case it is kept."""
    return DEFAULT_CONSUMER_GROUP if name.lower() == DEFAULT_CONSUMER_GROUP.lower() else name


EVENT_BYTES_MIN: Final = 1024
"""The lowest limit on events that a hub can have, in bytes (our choice: room for an event's envelope)."""

USER_METADATA_CHARACTERS_MAX: Final = 1024
"""Characters of an event hub's user metadata (Azure REST "Event Hubs", userMetadata, 2026-09)."""

POLICIES_MAX: Final = 12
"""Policies per namespace and per hub (authorization rules; Azure "Event Hubs quotas", 2026-09)."""

POLICY_NAME_CHARACTERS_MAX: Final = 50
"""Length of a policy's name in characters (authorizationRules; Azure "Naming rules and restrictions",
2026-09)."""

POLICY_KEY_BYTES_SAFE: Final = 32
"""A chosen key with fewer bytes is accepted with a warning, because it can be guessed."""

POLICY_KEY_CHARACTERS_MIN: Final = 8
POLICY_KEY_CHARACTERS_MAX: Final = 256
"""Length of a chosen key, in characters (our choice; a generated one has 44)."""

PUBLISHER_NAME_CHARACTERS_MAX: Final = 128
"""Length of a publisher's name in characters: it is the partition key of the publisher's events."""

REVOKED_PUBLISHERS_MAX: Final = 10_000
"""Publishers revoked per hub at a time (our choice: the catalog stays small)."""

REVOKED_PUBLISHERS_BYTES_MAX: Final = 256_000
"""Bytes of the names of a hub's revoked publishers (our choice: each change of the hub writes them)."""

PUBLISHERS_SEEN_MAX: Final = 10_000
"""Publishers per hub, with an address of their own, that the service remembers since its start; the one not
seen for longest is forgotten first (our choice: 4 MB of memory with short names, 7 MB with the longest in
ASCII, 15 MB with any)."""

PUBLISHERS_STATED_MAX: Final = 1_000
"""Publishers per hub remembered in the same way, but known only from events sent to the hub's own address
(our choice: any sender can make these names up, so they get at most 1.5 MB of memory)."""

THROUGHPUT_UNITS_MAX: Final = 1000
"""Throughput units of a namespace (our choice; Azure's Standard tier has 40, on shared machines)."""

INGRESS_BYTES_PER_UNIT: Final = 1_048_576
INGRESS_EVENTS_PER_UNIT: Final = 1000
"""Ingress per throughput unit and second, whichever is reached first (Azure "Throughput units", 2026-09: 1
MB, interpreted as the maximum size of one event)."""

EGRESS_BYTES_PER_UNIT: Final = 2_097_152
EGRESS_EVENTS_PER_UNIT: Final = 4096
"""Egress per throughput unit and second, whichever is reached first (Azure "Throughput units", 2026-09)."""


class Tier(Enum):
    """The tier of Event Hubs whose limits apply to a namespace."""

    __hash__ = object.__hash__  # limits are looked up for each small batch, and ``Enum`` hashes in Python

    BASIC = "Basic"
    STANDARD = "Standard"
    PREMIUM = "Premium"
    DEDICATED = "Dedicated"

    @classmethod
    def _missing_(cls, value: object) -> Tier | None:
        return next((each for each in cls if each.value.lower() == str(value).lower()), None)


@dataclass(frozen=True, slots=True)
class TierLimits:
    """The limits that differ between tiers."""

    event_bytes_max: int
    """Largest event or batch, encoded, in bytes; a hub may be given less."""
    partitions_max: int
    """Partitions per hub."""
    consumer_groups_max: int
    """Consumer groups per hub, beside ``$Default``."""
    retention_hours_max: int
    """Hours that events are kept, at most."""
    can_add_partitions: bool
    """Whether an existing hub can get more partitions (Azure "Dynamically add partitions", 2026-09)."""

    @property
    def retention_hours_default(self) -> int:
        """Hours that events are kept by default."""
        return min(RETENTION_HOURS_DEFAULT, self.retention_hours_max)


TIER_LIMITS: Final[Mapping[Tier, TierLimits]] = {
    Tier.BASIC: TierLimits(262_144, 32, 0, 24, False),
    Tier.STANDARD: TierLimits(EVENT_BYTES_MAX, 32, 20, 168, False),
    Tier.PREMIUM: TierLimits(EVENT_BYTES_MAX, 100, 100, RETENTION_HOURS_MAX, True),
    Tier.DEDICATED: TierLimits(
        EVENT_BYTES_MAX, PARTITIONS_MAX, CONSUMER_GROUPS_MAX, RETENTION_HOURS_MAX, True
    ),
}
"""The limits of each tier (Azure "Event Hubs quotas", Basic vs. Standard vs. Premium vs. Dedicated, 2026-09).
Not included: the numbers of hubs and of connections, and Dedicated's large messages of 20 MB."""

TIER_DEFAULT: Final = Tier.DEDICATED
"""The default tier (our choice: the machine is not shared with other owners)."""

CAPTURE_SIZE_WINDOW_BYTES_MIN: Final = 10_485_760
CAPTURE_SIZE_WINDOW_BYTES_MAX: Final = 524_288_000
CAPTURE_SIZE_WINDOW_BYTES_DEFAULT: Final = 314_572_800
"""Bytes of events after which Capture closes a file (Azure REST "CaptureDescription", sizeLimitInBytes,
2024-01-01; the default is the portal's 300 MB)."""

CAPTURE_EVENT_OVERHEAD_BYTES: Final = 150
"""Counted in a window's size for each event, besides its bytes as stored (our choice: a captured event of one
malformed byte takes 145 bytes, an empty one 63)."""

CAPTURE_TIME_WINDOW_S_MIN: Final = 60
CAPTURE_TIME_WINDOW_S_MAX: Final = 900
CAPTURE_TIME_WINDOW_S_DEFAULT: Final = 300
"""Seconds after which Capture closes a file (Azure REST "CaptureDescription", intervalInSeconds, 2024-01-01;
the default is the portal's 5 minutes)."""

CAPTURE_FILES_LISTED_BYTES_MAX: Final = 4_194_304
"""Maximum size in bytes of a hub's list of capture files (our choice: 6,000 to 12,000 files with names of
usual length; the older half is dropped at once)."""

RETENTION_BYTES_MAX: Final = (1 << 63) - 1
"""The largest limit in bytes on what a partition keeps: clients receive it as AMQP's long."""
