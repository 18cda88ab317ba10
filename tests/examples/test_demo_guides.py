"""The guides that explain the demos line by line show lines that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs/guides").glob("demo-*.md"))
EXCERPT = re.compile(r"```python\n# from (\S+\.py)\n(.*?)```", flags=re.DOTALL)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_excerpts_are_lines_of_the_source(guide: Path) -> None:
    """Each excerpt stands in the file it names, word for word and with its indentation."""
    excerpts = EXCERPT.findall(guide.read_text(encoding="utf-8"))
    assert len(excerpts) >= 8
    for path, excerpt in excerpts:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert excerpt in source, f"{guide.name} shows what is not in {path}:\n{excerpt}"


def test_there_is_a_guide_for_each_demo() -> None:
    """Flights and home security."""
    assert [guide.name for guide in GUIDES] == ["demo-flights.md", "demo-home-security.md"]
