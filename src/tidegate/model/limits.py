"""Quotas, each with its unit and its source. No other module holds a limit of Event Hubs as a number."""

from __future__ import annotations

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
