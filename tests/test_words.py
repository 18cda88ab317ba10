"""Plain English: phrases the text does not use, with what to write instead, and the folders held to it.

Add a phrase when you meet one; add a folder to a phrase's row once it is clean there. ``HELD`` only grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
"""Pages, and folders of them, written by hand. Generated pages are held where they come from, in ``src``."""

HELD: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (r"whole numbers?", "integer", DOCS),
    (r"anew", "again", DOCS),
    (r"whoever", "anyone who", DOCS),
    (r"somebody|nobody", "someone, no one; better: who it is", DOCS),
    (r"go(?:es)? on", "continue", DOCS),
    (r"lies? in", "is stored in", DOCS),
    (r"as (?:they|it) lies?", "as stored", DOCS),
    (r"that which", "what", DOCS),
    (r"protocol faces?|a face|faces", "protocol, interface", DOCS),
    (r"(?:every|each|any|whichever|which|at the) doors?", "interface", DOCS),
    (r"put(?:s|ting)? aside", "dead-letter", DOCS),
    (r"tells?|told", "report, say, show", DOCS),
    (r"texts", "strings", DOCS),
    (r"the words are off", "invalid usage", DOCS),
    (r"to be had", "available", DOCS),
    (r"br(?:eak|oken) off", "cancel, abort", DOCS),
    (r"for ever", "forever", DOCS),
    (r"there, too", "there as well", DOCS),
    (r"(?<!there )is no (?!longer)", "is not a", DOCS),
    (r"has come in", "has progressed", DOCS),
    (r"(?:start|end|stop)s? by itself", "on its own", DOCS),
    (r"unless told", "by default", DOCS),
)
"""(phrase, what to write instead, the files and folders that are free of it)."""

_GENERATED: Final = "Made by `make docs`; do not edit."
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def problems_of(text: str, phrase: str) -> list[str]:
    """The lines that use a phrase, given as a regular expression for whole words in any case."""
    return [line.strip() for line in text.split("\n") if re.search(rf"\b(?:{phrase})\b", line, re.IGNORECASE)]


def _texts(place: str) -> Iterator[tuple[str, str]]:
    """(path, text) of each file to check at a place; code in Markdown is left out, and generated pages."""
    path = _ROOT / place
    for file in [path] if path.is_file() else sorted([*path.rglob("*.md"), *path.rglob("*.py")]):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            if _GENERATED in text:
                continue
            text = _CODE.sub("", text)
        yield str(file.relative_to(_ROOT)), text


@pytest.mark.parametrize(("phrase", "instead", "places"), HELD, ids=[row[0] for row in HELD])
def test_no_phrase_comes_back(phrase: str, instead: str, places: tuple[str, ...]) -> None:
    """A file that was cleaned of a phrase stays so."""
    found = [
        f"{path}: {line}"
        for place in places
        for path, text in _texts(place)
        for line in problems_of(text, phrase)
    ]
    assert not found, f"Write {instead!r} instead:\n" + "\n".join(found)


def test_a_phrase_is_found() -> None:
    """As whole words, in any case, across what Markdown puts around it; and places exist."""
    assert problems_of("Fine.\n**Whoever** reads this", "whoever")
    assert not problems_of("whoevers", "whoever")
    for _, _, places in HELD:
        assert all((_ROOT / place).exists() for place in places)
