"""The consumer groups of the database, for metrics: what the console shows, as numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.gateway.metrics import StoredGroup
from tidegate.model.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers

READ_S_MAX: Final = 2.0
"""Seconds that a scrape waits for the database (our choice: Prometheus gives up after 10)."""

_log: Final = logging.getLogger(__name__)


async def read_stored_groups(consumers: Consumers) -> Sequence[StoredGroup] | None:
    """Those of hosts and pipelines; None if the database cannot be read, or takes longer."""
    try:
        groups = await consumers.groups(None, at_most_s=READ_S_MAX)
    except TidegateError as error:
        _log.info("no metrics of consumer groups: %s", type(error).__name__)
        return None
    if groups is None:
        return None
    return [
        StoredGroup(
            each.event_hub,
            each.consumer_group,
            each.lag.events if each.is_hub_here else None,
            each.owned_count,
            each.owner_count,
            each.open_dead_letters,
        )
        for each in groups
        if not each.is_kept
    ]
