"""What event hubs share of the service: whatever one hub's clients take, others find some left. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def share_left(event_hub: str, holders: Iterable[tuple[str, int]], whole: int) -> int:
    """How much an event hub may take now: so that it never has more than it leaves. 0 or less: nothing.

    holders: who has how much; a hub may be among them often. One hub gets half of the whole, a second one
    half of the rest, and so on.
    """
    own = taken = 0
    for name, amount in holders:
        taken += amount
        own += amount if name.lower() == event_hub.lower() else 0
    return whole - taken - own
