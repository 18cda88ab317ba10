"""Plain English: phrases the text does not use, with what to write instead, and where that is not so yet.

Add a phrase when you meet one. When you have cleaned a package of a phrase, delete it from the phrase's row:
rows only lose packages.
"""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_PAGES: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
"""Written by hand, and clean. Generated pages are checked where their text comes from, in ``src``."""

_PHRASES: Final[tuple[tuple[str, str, str], ...]] = (
    # phrase (regular expression), what to write instead, packages (or examples, tools) that still have it
    (r"whole numbers?", "integer", ""),
    ("anew", "again", ""),
    ("afresh", "again", ""),
    ("whoever", "anyone who", ""),
    (
        "somebody|nobody|anybody",
        "someone, no one, anyone; better: say who",
        "",
    ),
    (r"go(?:es|ing)? on", "continue", ""),
    (r"lies? in", "is stored in", ""),
    (r"as (?:they|it) lies?", "as stored", ""),
    ("that which", "what", ""),
    (r"faces?", "port, protocol", "server testing transport"),
    (r"(?:every|each|any|which|whichever|at the) doors?", "interface", ""),
    (r"put(?:s|ting)? aside", "dead-letter", ""),
    (r"set(?:s|ting)? aside", "rename, move", ""),
    (r"(?:tells?|told)(?! (?:them |it |\w+ )?apart)", "report, say, show", ""),
    ("texts", "strings", ""),
    (r"takes? a text", "must be a string", ""),
    ("the words are off", "invalid usage", ""),
    ("to be had", "available", ""),
    (r"br(?:eak|eaks|oken) off", "cancel, abort", ""),
    ("for ever", "forever", ""),
    ("there, too", "there as well", ""),
    (r"(?<!there )is no (?!longer)", "is not a", ""),
    (r"has come (?:in|so far)", "has progressed", ""),
    (r"(?:starts?|ends?|stops?) by itself", "on its own, automatically", ""),
    ("unless told", "by default", ""),
    (r"(?<!one )pass(?:es|ed|ing)? over", "skip", ""),
    (r"hand(?:s|ed|ing)? on", "pass on", ""),
    ("at one stroke", "atomically", ""),
    ("for want of", "for lack of", ""),
    (r"counts? at once", "takes effect immediately", ""),
    ("without a word", "silently", ""),
    ("in vain", "without success", ""),
    (r"throw(?:s|n)? out", "disconnect, close", ""),
)

_GENERATED: Final = "Made by `make docs`; do not edit."
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_PROSE: Final = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def prose_of_markdown(text: str) -> list[str]:
    """The lines of a page without its code; none of a generated page."""
    return [] if _GENERATED in text else _CODE.sub("", text).split("\n")


def prose_of_python(text: str) -> list[str]:
    """The lines of a module's comments, docstrings and strings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [line for token in tokens if token.type in _PROSE for line in token.string.split("\n")]


def problems_of(lines: list[str], phrase: str) -> list[str]:
    """The lines with a phrase, as whole words in any case."""
    pattern = re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE)
    return [line.strip() for line in lines if pattern.search(line)]


@cache
def _prose(place: str) -> dict[str, list[str]]:
    """Path → its lines of prose, of each file to check at a place: a page, ``docs``, or a folder of code."""
    path = _ROOT / place
    files = [path] if path.is_file() else sorted([*path.rglob("*.md"), *path.rglob("*.py")])
    return {
        str(file.relative_to(_ROOT)): (prose_of_markdown if file.suffix == ".md" else prose_of_python)(
            file.read_text(encoding="utf-8")
        )
        for file in files
    }


def _places() -> dict[str, str]:
    """Name in the rows above → path from the root, of everything that is checked."""
    packages = {path.parent.name: path.parent for path in _ROOT.glob("src/tidegate/*/__init__.py")}
    code = {name: str(path.relative_to(_ROOT)) for name, path in packages.items()}
    return {page: page for page in _PAGES} | code | {"examples": "examples", "tools": "tools"}


@pytest.mark.slow
@pytest.mark.parametrize(("phrase", "instead", "not_yet"), _PHRASES, ids=[row[0] for row in _PHRASES])
def test_no_phrase_comes_back(phrase: str, instead: str, not_yet: str) -> None:
    """What was cleaned of a phrase stays clean."""
    found = [
        f"{path}: {line}"
        for name, place in _places().items()
        if name not in not_yet.split()
        for path, lines in _prose(place).items()
        for line in problems_of(lines, phrase)
    ]
    assert not found, f"Write {instead!r} instead:\n" + "\n".join(found)


def test_bad_sentences_are_found() -> None:
    """In prose, as whole words and in any case; not in code, and not in generated pages."""
    page = "**Whoever** reads `nobody` this.\n```\nwhoever\n```\n"
    assert problems_of(prose_of_markdown(page), "whoever") == ["**Whoever** reads  this."]
    assert not problems_of(prose_of_markdown(f"{_GENERATED}\n{page}"), "whoever")
    module = 'whoever = 1  # it goes on\n"""Whoever\ncalls."""\n'
    assert problems_of(prose_of_python(module), "whoever") == ['"""Whoever']
    assert problems_of(prose_of_python(module), "goes on") == ["# it goes on"]
    assert not problems_of(["whoevers"], "whoever")


def test_rows_name_places_that_exist() -> None:
    """A package that was renamed does not stay excused."""
    assert {name for row in _PHRASES for name in row[2].split()} <= _places().keys()
