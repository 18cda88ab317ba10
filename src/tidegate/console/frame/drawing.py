"""Long strings for pages, drawn in slices: one step for a megabyte would hold up everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup, escape
from starlette.requests import Request

from tidegate.console.frame.rendering import shown
from tidegate.console.frame.slices import in_slices

_CHARACTERS: Final = 2 * 1024
"""Drawn in one step of the event loop: less than a millisecond of work."""


async def drawn(request: Request, texts: Sequence[str]) -> list[Markup]:
    """Each text as pages show it."""
    found: list[list[Markup]] = [[] for _ in texts]
    for index, piece in await in_slices(request, _pieces(texts)):
        found[index].append(piece)
    return [Markup("").join(pieces) for pieces in found]


def _pieces(texts: Sequence[str]) -> Iterator[tuple[int, Markup]]:
    for index, text in enumerate(texts):
        for start in range(0, len(text), _CHARACTERS):
            yield index, escape(shown(text[start : start + _CHARACTERS]))
