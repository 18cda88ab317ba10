"""Earlier versions come out of the history; where it is not there, that is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.upgrade.versions import Baseline, check_out


@pytest.mark.parametrize(
    ("is_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["here", "CI"]
)
def test_a_history_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ci: str, outcome: type[BaseException]
) -> None:
    """A shallow clone tries nothing: a build machine must not take that for success."""
    monkeypatch.setenv("CI", is_ci)
    with pytest.raises(outcome, match=r"Upgrades from gone are not tested: .* Use a complete clone"):
        check_out(Baseline("gone", "0" * 40, has_accounts=True), tmp_path)
