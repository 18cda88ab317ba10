"""The lag of consumer groups each minute, for the charts of 24 hours."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.broker import Broker
from tidegate.console.hubs.day import SERIES_MAX, SeriesKey
from tidegate.console.hubs.recorder import lag_name
from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers

GROUPS_PER_HUB_MAX: Final = 16
"""Groups of one hub that are charted: one hub's users leave others room. Our choice."""
_GROUPS_MAX: Final = SERIES_MAX // 4
"""Of all hubs: two series each, half of all."""
_PATIENCE_S: Final = 20.0


async def find_lags(
    broker: Broker, open_consumers: Callable[[], Consumers], *, has_database: bool
) -> Mapping[SeriesKey, float]:
    """The lag of the groups that are kept anywhere, in events and in seconds; what is not known is left out.

    Without a database, and if no official processor keeps checkpoints here, nothing is asked or loaded.
    """
    if not has_database and not await _is_any_kept(broker):
        return {}
    await asyncio.to_thread(importlib.import_module, "tidegate.console.consumers.groups")
    found = await open_consumers().groups(None, at_most_s=_PATIENCE_S)
    values: dict[SeriesKey, float] = {}
    counts = Counter[str]()
    for each in () if found is None else found.groups:
        summary = each.summary
        try:
            hub_id = broker.event_hub(summary.event_hub).description.hub_id
        except NotFoundError:
            continue
        if counts[hub_id] >= GROUPS_PER_HUB_MAX or counts.total() >= _GROUPS_MAX:
            continue
        counts[hub_id] += 1  # not of those left out: one hub has up to a thousand
        for unit, value in (("events", summary.lag.events), ("seconds", summary.lag.seconds)):
            if value is not None:
                values[SeriesKey(hub_id, lag_name(unit, summary.consumer_group))] = float(value)
    return values


async def _is_any_kept(broker: Broker) -> bool:
    for hub in broker.list_event_hubs():
        if next(broker.kept_groups(hub, is_newest_only=True), None) is not None:
            return True
        await asyncio.sleep(0)
    return False
