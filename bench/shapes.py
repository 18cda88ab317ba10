"""Events of different shapes in turns: properties, sizes, TLS, numbers of partitions.

A shape's ratio is to what it differs from in one thing, in the same round.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import stages
from bench.measure import Figure, Found, Measurement, median, median_beside
from tidegate.client import EventHubAdministrator
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.testing.hub import HubProcess

UNIQUE: Final = 0
"""Instead of a number of devices: each event has one of its own."""
_ROUNDS: Final = 3
"""In a quick benchmark, too: one takes half a minute. Our choice."""
_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the events are, and the way that they take."""

    name: str
    devices: int | None = 1
    """Distinct values of one of two properties; UNIQUE; None: no properties."""
    event_bytes: int = 1024
    partitions: int = 4
    times: int = 1
    """As many events as of the others, read by receivers that are open: so that of many partitions, too, what
    counts is not the opening."""
    is_tls_used: bool = False
    compared_with: str | None = None
    """The name of another shape."""


ALIKE: Final = "two properties"
_MANY: Final = "1,024 partitions"
SHAPES: Final = (
    # What is compared is measured soon after: the machine's speed changes within a minute.
    Shape(ALIKE),
    Shape("TLS", is_tls_used=True, compared_with=ALIKE),
    Shape("no properties", devices=None, compared_with=ALIKE),
    Shape("100 B, no properties", devices=None, event_bytes=100, compared_with="no properties"),
    Shape("500 devices", devices=500, compared_with=ALIKE),
    Shape("20,000 devices", devices=20_000, compared_with=ALIKE),
    Shape("unique properties", devices=UNIQUE, compared_with=ALIKE),
    Shape("1 partition", partitions=1, times=5, compared_with=ALIKE),
    Shape("32 partitions", partitions=32, times=5, compared_with="1 partition"),
    Shape(_MANY, partitions=1_024, times=5, compared_with="1 partition"),
)


def measure(directory: Path, events: int) -> Found:
    """Each shape is written and read, in rounds of which the first does not count; medians, also of ratios.

    The opening of many partitions' links is a figure of its own; only for record batches it is in the rate.
    events: of each shape and round; of each partition the same number, so a few may be left out.
    """
    found: dict[tuple[str, str], list[Measurement]] = {}
    with HubProcess(directory / "data", is_tls_used=True) as service:
        for number in range(_ROUNDS + 1):
            for shape in SHAPES:
                _progress.print(f"round {number} of {_ROUNDS}: {shape.name} …")
                for way, one in _round(service, shape, events).items():
                    found.setdefault((way, shape.name), []).extend([one] if number else [])
    compared_with = {shape.name: shape.compared_with for shape in SHAPES}
    medians = []
    for (way, name), each in found.items():
        others = found.get((way, compared_with[name] or ""))
        medians.append(median(each) if others is None else median_beside(each, others))
    return Found(
        stages=medians, figures=[_opening(each) for each in medians if _MANY in each.name and each.opening_s]
    )


def _opening(stage: Measurement) -> Figure:
    return Figure(f"{stage.name}: their links are opened in", stage.opening_s * 1000, "ms")


def _round(service: HubProcess, shape: Shape, events: int) -> dict[str, Measurement]:
    """By the way of it what was measured, into a hub that is deleted afterwards."""
    hub = service.create_hub(partition_count=shape.partitions)
    events *= shape.times
    bodies: Sequence[bytes] = [os.urandom(shape.event_bytes)] * events
    devices = events if shape.devices == UNIQUE else shape.devices
    ways = {
        "ingest": stages.ingest(
            service, hub, bodies, shape.partitions,
            devices=devices, is_tls_used=shape.is_tls_used, is_warm=True,
        ),
        "delivery": stages.delivery(
            service, hub, shape.event_bytes, shape.partitions,
            are_properties_read=devices is not None, is_tls_used=shape.is_tls_used,
            is_warm=shape.times > 1,  # of few events, all would be fetched ahead
        ),
    }  # fmt: skip
    if not shape.is_tls_used:
        ways["record batches"] = stages.arrow_delivery(
            service, hub, shape.event_bytes, shape.partitions, EVENT_COLUMNS
        )
    for way, measurement in ways.items():
        measurement.name = f"{way}, {shape.name}"
    asyncio.run(_delete(service, hub))
    return ways


async def _delete(service: HubProcess, hub: str) -> None:
    async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
        await administrator.delete_event_hub(hub)
