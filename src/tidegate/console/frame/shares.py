"""What event hubs share of the service: whatever one hub's clients take, others find some left. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")


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


def oldest_of_most(hubs: Mapping[K, str], *, newcomer: str) -> K:
    """Which of the things kept, by event hub and oldest first, makes room for a newcomer's: the oldest of the
    hub that has most."""
    counts = Counter(hub.lower() for hub in hubs.values())
    if newcomer.lower() in counts:
        counts[newcomer.lower()] += 1
    ((most, _),) = counts.most_common(1)
    return next(each for each, hub in hubs.items() if hub.lower() == most)
