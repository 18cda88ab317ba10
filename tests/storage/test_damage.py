"""A small run of ``make damage``, and its canaries: a run without one of the defences must report it."""

from __future__ import annotations

import pytest
from tests.storage.damage import kinds
from tests.storage.damage.canaries import replacements
from tests.storage.damage.run import run


@pytest.mark.faults
@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.repeats)])
async def test_damage_is_never_silent(seed: int) -> None:
    """Lost silently, altered, given again, a traceback, a repair that loses in silence, does not start or
    disagrees with a second check, or gives up what is intact: none."""
    print(f"seed {seed}")
    outcome = await run(seed, range(60), [], on_line=print)
    assert outcome.details == []
    assert outcome.cases.total() == 60


@pytest.mark.faults
@pytest.mark.parametrize("defence", ["seed", "chain"])
async def test_without_a_defence_the_run_fails(defence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds and the chain are each needed: without, what they prevent is found.

    What marks prevent depends on how fast the disk is: ``make damage ARGS="--without mark"`` shows it.
    """
    for owner, name, value in replacements(defence):
        monkeypatch.setattr(owner, name, value)
    common = {"seed": ("bit", "byte"), "chain": ("stale",)}
    monkeypatch.setattr(kinds, "KINDS", common[defence])
    outcome = await run(3, range(400), [defence], on_line=print, is_canary=True)
    assert any("altered" in failure for failure in outcome.failures)
