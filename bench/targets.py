"""The targets of rates, each beside what this run reached.

Rates are targets of a quiet machine of two cores; ratios are of the same run and hold anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.measure import Measurement

READ_EVENTS_PER_S: Final = 500_000
READ: Final = "Spark read → no-op"
KAFKA_READ: Final = "Kafka: Spark read → no-op"
"""What a read by Spark's own Kafka source is called."""
EXACTLY_ONCE_RATIO: Final = 0.7
KAFKA_RATIO: Final = 1.5
_BULK: Final = ("SQLite executemany", "PostgreSQL executemany", "PostgreSQL COPY")
HOMES_STATE_EVENTS_PER_S: Final = 89_000
"""A hand-written probe: keyed state with 20,000 keys a batch, no sink."""
WINDOWS_BY_HAND: Final = "windows by hand → PostgreSQL"
"""What a hand-written probe of one-minute windows, in the same run, is called (``bench.probes``); with the
size of its micro-batches behind it, where it is compared with the ledger sink."""
_RATES: Final = {
    "home security, keyed state": HOMES_STATE_EVENTS_PER_S,
    "ingest, our producer": 400_000,
    "delivery, our consumer": 500_000,
    "record batches (all columns)": 1_000_000,
    "ingest, no properties": 500_000,
    "ingest, 20,000 devices": 400_000,
    "ingest, unique properties": 400_000,
    "ingest, 100 B, no properties": 1_000_000,
    "delivery, no properties": 600_000,
    "delivery, 20,000 devices": 500_000,
    "delivery, unique properties": 500_000,
    "delivery, 100 B, no properties": 2_000_000,
    "record batches, 100 B, no properties": 2_000_000,
}
_RATIOS: Final = {
    ("ingest, our producer", "ingest, NATS"): 3.0,
    ("delivery, our consumer", "delivery, NATS"): 1.2,
    ("delivery, our consumer", "delivery, Redis"): 1.2,
    ("delivery, our consumer", "delivery, Kafka"): 1.2,
    ("ingest, our producer, 100 B", "ingest, Kafka, 100 B"): 1.2,
    ("ingest, TLS", "ingest, two properties"): 0.7,
    ("delivery, TLS", "delivery, two properties"): 0.7,
    ("ingest, 1,024 partitions", "ingest, 1 partition"): 0.9,
    ("delivery, 1,024 partitions", "delivery, 1 partition"): 0.9,
    ("record batches, 1,024 partitions", "record batches, 1 partition"): 0.9,
    ("ingest, official SDK", "official SDK → sink"): 0.9,
    ("delivery, official SDK", "source → official SDK"): 0.9,
    ("host, Pipeline → SQLite", "SQLite executemany"): 0.4,
    ("host, context.insert → SQLite", "SQLite executemany"): 0.4,
    ("host, Pipeline → PostgreSQL", "PostgreSQL COPY"): 0.4,
    ("host, context.insert → PostgreSQL", "PostgreSQL COPY"): 0.4,
}
"""Of a stage to a baseline; 1 KB events with two properties where nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a stage has to reach, and what it reached."""

    stage: str
    compared_with: str
    reached: float
    wanted: float

    @property
    def is_met(self) -> bool:
        """Whether it has reached it."""
        return self.reached >= self.wanted


def targets_of(stages: Sequence[Measurement]) -> list[Target]:
    """The targets of those stages that have one."""
    found: list[Target] = []
    for stage in stages:
        rate = READ_EVENTS_PER_S if stage.name.startswith(READ) else _RATES.get(stage.name)
        if rate is not None:
            found.append(Target(stage.name, f"{rate:,} events/s", stage.events_per_s / rate, 1.0))
        found += [
            Target(stage.name, peer, ratio, _RATIOS[stage.name, peer])
            for peer, ratio in stage.baselines.items()
            if (stage.name, peer) in _RATIOS
        ]
        found += [
            Target(stage.name, peer, ratio, KAFKA_RATIO)
            for peer, ratio in stage.baselines.items()
            if peer.startswith(KAFKA_READ)
        ]
        found += [
            Target(stage.name, peer, ratio, 1.0)
            for peer, ratio in stage.baselines.items()
            if peer.startswith(WINDOWS_BY_HAND)
        ]
        if stage.name.startswith("exactly-once"):
            found += [
                Target(stage.name, bulk, ratio, EXACTLY_ONCE_RATIO)
                for bulk, ratio in stage.baselines.items()
                if bulk in _BULK
            ]
    return found
