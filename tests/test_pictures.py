"""The pictures of the docs are small, and load nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.screenshots import IMAGES, PICTURE_BYTES_MAX, svg_of


@pytest.mark.parametrize("picture", sorted(IMAGES.iterdir()), ids=lambda path: path.name)
def test_a_picture_is_small(picture: Path) -> None:
    """A page with two of them is still quick to load."""
    assert picture.stat().st_size <= PICTURE_BYTES_MAX


def test_a_terminals_picture_needs_nothing_else() -> None:
    """Colours and text are kept; no font, script or image is fetched, and no line is cut."""
    text = svg_of(["\x1b[31mred <b>\x1b[0m", "x" * 250])
    assert "red&#160;&lt;b&gt;" in text
    assert text.count("x" * 100) == 2
    assert re.findall(r"url\((?!#)|@font-face|<script|<image|href=", text) == []
