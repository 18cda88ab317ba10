"""``make floods`` itself, with a flood that is over in a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench.floods.catalog import FLOODS
from bench.floods.report import as_json, broken_bounds, read_json
from bench.floods.trial import KINDS, Outcome, Phase, Timing, run_trial

_TINY = Timing(base_s=0.5, flood_s=1.0, settle_s=0.5, scale=0.02)


@pytest.mark.slow
def test_a_flood_is_measured_and_the_service_serves_through_it(tmp_path: Path) -> None:
    """The attackers reach the service, the canary's events are counted and found, and the stop is seen."""
    flood = next(flood for flood in FLOODS if flood.name == "producers-1k")
    outcome = run_trial(flood, Path.cwd(), _TINY)
    assert outcome.tally["connected"] == 3
    assert outcome.tally["accepted"] > 0
    assert outcome.acknowledged > 0
    assert outcome.lost == 0
    assert outcome.is_alive
    assert outcome.stop_ends_s is not None
    file = tmp_path / "outcomes.json"
    file.write_text(as_json([("now", outcome)]))
    assert read_json(file) == [outcome]


def test_every_flood_has_a_name_of_its_own_and_says_what_it_does() -> None:
    """``--only`` and ``--compare`` go by name, ``--list`` shows the line."""
    assert len({flood.name for flood in FLOODS}) == len(FLOODS)
    assert all(flood.what for flood in FLOODS)


def test_a_bad_outcome_breaks_every_bound() -> None:
    """The exit code of ``make floods`` is worth something only if each bound can break."""
    quiet = Phase(dict.fromkeys(KINDS, 5.0), dict.fromkeys(KINDS, 6.0), dict.fromkeys(KINDS, 0))
    slow = Phase(dict.fromkeys(KINDS, 5.0), dict.fromkeys(KINDS, 1_000.0), dict.fromkeys(KINDS, 1))
    good = Outcome(
        flood="heartbeats",
        base=quiet,
        under=quiet,
        after=quiet,
        base_mb=60.0,
        peak_mb=70.0,
        after_mb=65.0,
        cpu=0.5,
        tally={},
        acknowledged=10,
        lost=0,
        is_alive=True,
        stop_begins_s=0.1,
        stop_ends_s=1.0,
    )
    flood = next(flood for flood in FLOODS if flood.name == good.flood)
    assert broken_bounds(flood, good) == []
    bad = replace(
        good,
        under=slow,
        after=slow,
        peak_mb=3_000.0,
        after_mb=2_000.0,
        lost=3,
        is_alive=False,
        stop_begins_s=2.0,
        stop_ends_s=None,
    )
    assert broken_bounds(flood, bad) == [
        "send x167",
        "health x167",
        "+2940 MB",
        "1940 MB kept",
        "the service ended",
        *(f"{kind} fails afterwards" for kind in KINDS),
        "3 acknowledged events lost",
        "SIGTERM is late",
        "it does not stop",
    ]
