"""The targets of ``make bench``: which rows have one, and whether it is reached."""

from __future__ import annotations

import json

from bench.measure import Figure, Found, Measurement
from bench.parts import PARTS
from bench.report import as_json
from bench.targets import targets_of


def _stage(name: str, per_s: float, **ratios: float) -> Measurement:
    return Measurement(name, events=1_000, wall_s=1_000 / per_s, baselines=ratios)


def test_a_read_is_held_against_kafka_whatever_its_properties() -> None:
    """The rows of events with properties that differ have Kafka's device count in their name."""
    peer = "Kafka: Spark read → no-op, 500 devices"
    rate, ratio = targets_of([_stage("Spark read → no-op, 500 devices", 600_000, **{peer: 1.2})])
    assert rate.is_met
    assert (ratio.compared_with, ratio.reached, ratio.is_met) == (peer, 1.2, False)


def test_scripts_get_what_is_reached() -> None:
    """``--json`` says of each rate and each figure whether its target is reached."""
    stage = _stage("ingest, official SDK", 1_000, **{"official SDK → sink": 0.95})
    figures = [Figure("p50", 3.0, "ms", 2.0), Figure("p99", 9.0, "ms", 10.0), Figure("memory", 5.0, "MB")]
    part = json.loads(as_json({"sdk": Found([], [stage], figures)}))["parts"]["sdk"]
    assert [each["is_reached"] for each in part["figures"]] == [False, True, True]
    assert [each["is_met"] for each in part["targets"]] == [True]


def test_every_part_has_a_name_of_its_own() -> None:
    """``--only`` and what is kept go by name."""
    assert len({part.name for part in PARTS}) == len(PARTS)
