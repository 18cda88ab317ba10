"""A small run of ``make damage``, and its canaries: a run without one of the defences must report it."""

from __future__ import annotations

import pytest
from tests.storage.damage import kinds
from tests.storage.damage.canaries import DEFENCES, replacements
from tests.storage.damage.run import run


@pytest.mark.faults
@pytest.mark.parametrize("seed", [11, 12])
async def test_damage_is_never_silent(seed: int) -> None:
    """Lost silently, altered, given again, a traceback, a repair that loses in silence, does not start or
    disagrees with a second check, or gives up what is intact: none."""
    print(f"seed {seed}")
    outcome = await run(seed, range(60), [], on_line=print)
    assert outcome.details == []
    assert outcome.cases.total() == 60


@pytest.mark.faults
@pytest.mark.parametrize("defence", DEFENCES)
async def test_without_a_defence_the_run_fails(defence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds, the chain, and marks are each needed: without, what they prevent is found."""
    for owner, name, value in replacements(defence):
        monkeypatch.setattr(owner, name, value)
    common = {"seed": ("bit", "byte"), "chain": ("stale",), "mark": ("cut",)}
    monkeypatch.setattr(kinds, "KINDS", common[defence])
    outcome = await run(3, range(400), [defence], on_line=print, is_canary=True)
    kind = {"seed": "altered", "chain": "altered", "mark": "lost"}[defence]
    assert any(kind in failure for failure in outcome.failures)
