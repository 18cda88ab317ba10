"""The one table: rows as lines, fitted to a width by leaving out columns and cutting values.

A row is a line, and a number is never cut or broken. On a narrow terminal, the least important columns are
left out, then long values are cut, and headings are broken between words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_GAP: Final = "  "
_CUT_WIDTH_MIN: Final = 12
"""A value is cut to no less than this (our choice)."""

Mark = Callable[[str], str]
"""Sets a line or a cell off, e.g. in bold."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its cells."""

    heading: str
    cells: Sequence[str]
    is_number: bool
    """Numbers are aligned to the right."""

    @property
    def _is_whole(self) -> bool:
        """Whether cutting a cell would make another number of it."""
        return self.is_number or all(each.lstrip("-").isdigit() for each in self.cells if each != "-")

    @property
    def width(self) -> int:
        """Without any cut."""
        return max(map(_width, self.cells), default=0)

    @property
    def width_min(self) -> int:
        """The narrowest that is readable."""
        width = self.width if self._is_whole else min(self.width, _CUT_WIDTH_MIN)
        return max(width, *map(_width, self.heading.split()), 0)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table as lines, and what it leaves out."""

    lines: Sequence[str]
    left_out: Sequence[str]
    """Headings."""
    is_cut: bool
    """Whether any value is shown in part."""


def fit(columns: Sequence[Column], ranks: Sequence[int], width: int, *, bold: Mark, is_plain: bool) -> Fitted:
    """The table on a terminal. ranks: the columns' places, most important first; the first always stays.

    is_plain: only ASCII for what is drawn.
    """
    kept, used = list[int](), 0
    for place in ranks:
        needed = columns[place].width_min + (len(_GAP) if kept else 0)
        if not kept or used + needed <= width:
            kept.append(place)
            used += needed
    widths = {place: columns[place].width_min for place in kept}
    for wanted in (lambda each: each.width, lambda each: _width(each.heading)):
        for place in kept:
            more = max(0, min(wanted(columns[place]) - widths[place], width - used))
            widths[place] += more
            used += more
    shown = sorted(kept)
    return Fitted(
        [*_draw([columns[place] for place in shown], [widths[place] for place in shown], bold, is_plain)],
        [column.heading for place, column in enumerate(columns) if place not in widths],
        any(columns[place].width > widths[place] for place in shown),
    )


def whole(columns: Sequence[Column]) -> Iterator[str]:
    """The lines of a table as plain text, with nothing left out."""
    widths = [max(_width(column.heading), column.width) for column in columns]
    yield _line([column.heading for column in columns], columns, widths, "")
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield _line(cells, columns, widths, "")


def fields(names: Sequence[str], values: Sequence[str], width: int | None, *, bold: Mark) -> Iterator[str]:
    """One thing, a line per field; values of several words are continued on lines of their own. width: None:
    never."""
    names_width = max(map(_width, names), default=0)
    for name, value in zip(names, values, strict=True):
        # What has no spaces (a key, an address) stays one piece, so that it can be copied as a whole.
        lines = [value] if width is None else _broken(value, width - names_width - len(_GAP)) or [""]
        for number, line in enumerate(lines):
            head = " " * names_width if number else bold(name) + " " * (names_width - _width(name))
            yield f"{head}{_GAP}{line}".rstrip()


def _draw(columns: Sequence[Column], widths: Sequence[int], bold: Mark, is_plain: bool) -> Iterator[str]:
    headings = [_broken(column.heading, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headings), default=0)
    for number in range(height):
        parts = [([""] * (height - len(each)) + each)[number] for each in headings]
        yield bold(_line(parts, columns, widths, ""))
    yield _GAP.join(("-" if is_plain else "─") * width for width in widths)
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield _line(cells, columns, widths, "~" if is_plain else "…")


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], cut: str) -> str:
    padded = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        spare = width - _width(cell)
        if spare < 0:
            padded.append(_cut(cell, width, cut))
        else:
            padded.append(" " * spare + cell if column.is_number else cell + " " * spare)
    return _GAP.join(padded).rstrip()


def _broken(text: str, width: int) -> list[str]:
    """Text in lines of whole words."""
    return textwrap.wrap(
        text, max(width, 1), break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )


def _cut(text: str, width: int, end: str) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(text, width - len(end)).rstrip() + end


def _width(text: str) -> int:
    """Columns of a terminal; some characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
