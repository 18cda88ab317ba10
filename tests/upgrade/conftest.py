"""The versions that today's is tried with."""

from __future__ import annotations

import pytest
from tests.processor.faults.surroundings import chosen_seed
from tests.upgrade.versions import CHOSEN, IS_WHOLE, Baseline, Version, check_out

collect_ignore = [] if IS_WHOLE else ["test_spark_sinks.py"]


@pytest.fixture(scope="session", params=CHOSEN, ids=lambda baseline: baseline.name)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Version:
    """An earlier version."""
    baseline: Baseline = request.param
    return check_out(baseline, tmp_path_factory.mktemp(baseline.name))


@pytest.fixture
def seed() -> int:
    """Printed, and taken from TIDEGATE_SEED where that is set."""
    return chosen_seed()
