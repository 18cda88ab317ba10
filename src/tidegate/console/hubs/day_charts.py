"""What the charts of 24 hours show: of the namespace, an event hub, or a consumer group. Pure."""

from __future__ import annotations

from typing import Any, Final

from tidegate.console.frame.rendering import bytes_text, duration, number
from tidegate.console.hubs.day import Day
from tidegate.console.hubs.recorder import lag_name

_EVENTS: Final = {"in": "incoming_events", "out": "outgoing_events"}
_BYTES: Final = {"in": "incoming_bytes", "out": "outgoing_bytes"}
_LOAD_CHARTS: Final = (
    ("events", "Events per second", "Chart of events in and out per second"),
    ("bytes", "Bytes per second", "Chart of bytes in and out per second"),
)
_LAG_CHARTS: Final = (
    ("events", "Lag in events", "Chart of the events that are not processed yet"),
    ("seconds", "Lag in time", "Chart of how far the group is behind in time"),
)


def load_charts(day: Day, hub_id: str) -> dict[str, Any]:
    """The load of a hub, or (empty) the namespace."""
    return {
        "events": day.chart(hub_id, _EVENTS, "events/s"),
        "bytes": day.chart(hub_id, _BYTES, "bytes/s"),
    }


def lag_charts(day: Day, hub_id: str, group: str) -> dict[str, Any]:
    """The lag of a consumer group."""
    return {unit: day.chart(hub_id, {"lag": lag_name(unit, group)}, unit) for unit in ("events", "seconds")}


def load_context(day: Day, hub_id: str, address: str) -> dict[str, Any]:
    """For ``hubs/day_charts.html``. address: of the charts' JSON."""
    events_in, events_out = (day.most(hub_id, name) for name in _EVENTS.values())
    bytes_in, bytes_out = (day.most(hub_id, name) for name in _BYTES.values())
    words = "Nothing is known of the last 24 hours yet: values are added each minute."
    if events_in is not None:
        words = (
            f"At most in the last 24 hours, as means of a minute: in {number(events_in)} events and "
            f"{bytes_text(bytes_in)}"
        )
        if events_out is not None:
            words += f", out {number(events_out)} events and {bytes_text(bytes_out)}"
        words += " per second."
    return {"charts_address": address, "charts": _LOAD_CHARTS, "day_words": words}


def lag_context(day: Day, hub_id: str, group: str, address: str) -> dict[str, Any]:
    """As ``load_context``, of a group's lag."""
    events, seconds = (day.most(hub_id, lag_name(unit, group)) for unit in ("events", "seconds"))
    words = "No lag is known of the last 24 hours: it is noted each minute."
    if events is not None:
        words = f"At most in the last 24 hours: {number(events)} events, and {duration(seconds)} in time."
    return {"charts_address": address, "charts": _LAG_CHARTS, "day_words": words}
