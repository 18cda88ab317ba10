"""The program of ``make spark-matrix``, with the version of PySpark that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.spark.matrix.__main__ import run, table_of

pytestmark = [pytest.mark.spark, pytest.mark.programs]


@pytest.mark.repeats
def test_each_feature_works_in_a_session_that_is_not_ours() -> None:
    """Without any of our settings but what ``register`` sets."""
    found = run(Path(sys.executable), ())
    assert set(found.values()) == {"works"}, found


def test_the_table_notes_what_is_refused() -> None:
    """Once for all versions that say the same."""
    results = {"4.0.1": {"stream": "works", "hub sink": "refused: no limit"}}
    results["4.1.0"] = {"stream": "refused: no limit", "hub sink": "failed: late"}
    assert table_of(results, ["stream", "hub sink"]) == (
        "| | 4.0.1 | 4.1.0 |\n|---|---|---|\n| stream | works | refused (1) |\n"
        "| hub sink | refused (1) | failed (2) |\n\n1. no limit\n2. late"
    )
