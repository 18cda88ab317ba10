"""Draws a state machine as SVG: states in rows by their distance from the first one, and arrows.

A machine may define which states share a row; everything else follows from its steps, so the picture changes
with the table. For readers who cannot see it, each picture has a title and a description, and the page has
the steps as a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from tools.reference.states import Machine, Step

_NODE_WIDTH: Final = 150
_NODE_HEIGHT: Final = 42
_COLUMN_MIN: Final = 250
_ROW_MIN: Final = 118
_LONG: Final = 12
"""Labels with at least this many letters make rows farther apart."""
_MARGIN: Final = 24
_SIDE: Final = 46
"""Distance from the states of an arrow around them; each further arrow is farther out by the same
distance."""
_ASIDE: Final = 26.0
"""Distance of arrows in one direction from those in the other."""
_LETTER: Final = 6.4
"""Approximate width of a label's letter, in pixels; used for the picture's edge."""
_LEGEND: Final = 26
_OURS: Final = "#3949ab"
_PEERS: Final = "#c2410c"
_STYLE: Final = (
    "text{font-family:system-ui,sans-serif;text-anchor:middle;fill:#1a1c2b}"
    ".state{font-size:14px;font-weight:600}.loop{font-size:11px}"
    ".label{font-size:12px;paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}"
    "path{fill:none;stroke-width:1.6}rect.node{fill:#eef0fb;stroke:#3949ab;stroke-width:1.4}"
    "rect.first{stroke-width:3}"
)


@dataclass(frozen=True, slots=True)
class _Arrow:
    """All steps from one state to another on the same side."""

    start: str
    end: str
    steps: tuple[Step, ...]

    @property
    def is_peers(self) -> bool:
        return self.steps[0].is_peers


def draw_machine(machine: Machine) -> str:
    """The machine as an SVG document; the same machine gives the same text."""
    picture = _Picture(machine)
    width, height = picture.width, picture.height
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        f"<title>{escape(machine.title)}: its states and steps</title>",
        f"<desc>{escape(describe_machine(machine))}</desc>",
        f"<style>{_STYLE}</style>",
        _marker("ours", _OURS) + _marker("peers", _PEERS),
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
    ]
    # Arrows first, then states, then labels, so that labels are on top.
    drawn = [picture.draw(arrow) for arrow in picture.arrows]
    lines += [path for path, _ in drawn]
    lines += picture.nodes()
    lines += [label for _, labels in drawn for label in labels]
    if picture.has_peers:
        lines.append(
            f'<text class="loop" x="{width / 2:.0f}" y="{height - 10}">blue: sent by this side; '
            "orange, dashed: received from the other</text>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def describe_machine(machine: Machine) -> str:
    """The machine in words."""
    return " ".join(f"{step.start} to {step.end}: {_words(step)}." for step in machine.steps)


class _Picture:
    """The positions of a machine's parts."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rows = [list(row) for row in machine.rows] or _rows(machine)
        widest = max(len(row) for row in self._rows)
        longest = max(len(step.label) for step in machine.steps)
        column_width = max(_COLUMN_MIN, _NODE_WIDTH + round(longest * _LETTER))
        row_height = _ROW_MIN + (24 if longest > _LONG else 0)
        self._places = {
            state: (
                _MARGIN + _NODE_WIDTH / 2 + (column + (widest - len(row)) / 2) * column_width,
                _MARGIN + _NODE_HEIGHT / 2 + index * row_height,
            )
            for index, row in enumerate(self._rows)
            for column, state in enumerate(row)
        }
        self.arrows = _arrows(machine)
        self.has_peers = any(step.is_peers for step in machine.steps)
        self._bowed: dict[bool, list[_Arrow]] = {
            is_left: [
                arrow
                for arrow in self.arrows
                if not self._is_direct(arrow) and self._is_left(arrow) == is_left
            ]
            for is_left in (False, True)
        }
        sides = {
            is_left: _SIDE * len(arrows)
            + max((len(step.label) for arrow in arrows for step in arrow.steps), default=0) * _LETTER / 2
            for is_left, arrows in self._bowed.items()
        }
        self._places = {state: (x + sides[True], y) for state, (x, y) in self._places.items()}
        self.width = round(2 * _MARGIN + _NODE_WIDTH + (widest - 1) * column_width + sum(sides.values()))
        rows_height = _NODE_HEIGHT + (len(self._rows) - 1) * row_height
        self.height = 2 * _MARGIN + rows_height + (_LEGEND if self.has_peers else 0)

    def _is_direct(self, arrow: _Arrow) -> bool:
        """Whether nothing is in between: the states are side by side, or the rows between leave space."""
        (start_row, start), (end_row, end) = self._cell(arrow.start), self._cell(arrow.end)
        if start_row == end_row:
            return abs(start - end) == 1
        between = self._rows[min(start_row, end_row) + 1 : max(start_row, end_row)]
        left, right = sorted((self._places[arrow.start][0], self._places[arrow.end][0]))
        reach = _NODE_WIDTH / 2 + 10
        return not any(
            left - reach < self._places[state][0] < right + reach for row in between for state in row
        )

    def _is_left(self, arrow: _Arrow) -> bool:
        """Whether an arrow around the states is on the left: the side of the lower state."""
        middle = self._places[self._rows[0][0]][0]
        return min(self._places[arrow.start][0], self._places[arrow.end][0]) < middle

    def _cell(self, state: str) -> tuple[int, int]:
        return next((index, row.index(state)) for index, row in enumerate(self._rows) if state in row)

    def draw(self, arrow: _Arrow) -> tuple[str, list[str]]:
        """The arrow's path, and its labels."""
        for is_left, arrows in self._bowed.items():
            if arrow in arrows:
                return self._draw_round(arrow, arrows.index(arrow), -1 if is_left else 1)
        (x1, y1), (x2, y2) = self._places[arrow.start], self._places[arrow.end]
        beside = [each for each in self.arrows if {each.start, each.end} == {arrow.start, arrow.end}]
        aside = _ASIDE if len(beside) > 1 else 0.0
        if y1 == y2:
            sign = math.copysign(1, x2 - x1)
            x1, x2, y = x1 + sign * _NODE_WIDTH / 2, x2 - sign * (_NODE_WIDTH / 2 + 2), y1 - sign * aside / 3
            return _path(f"M{x1:.0f} {y:.0f}L{x2:.0f} {y:.0f}", arrow), _labels(arrow, (x1 + x2) / 2, y - 10)
        sign = math.copysign(1, y2 - y1)
        if aside and beside[0].start == beside[-1].start:
            aside *= 1 if arrow is beside[0] else -1
        lean = math.copysign(min(abs(x2 - x1) / 8, _NODE_WIDTH / 3), x2 - x1)
        x1, x2 = x1 - sign * aside + lean, x2 - sign * aside - lean
        y1, y2 = y1 + sign * _NODE_HEIGHT / 2, y2 - sign * (_NODE_HEIGHT / 2 + 2)
        middle = (y1 + y2) / 2
        curve = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
        # Off-centre if arrows cross or go both ways: each label is near its arrow's start.
        x, y = _on_curve(0.36 if aside or abs(x2 - x1) > _NODE_WIDTH else 0.5, (x1, y1), (x2, y2))
        return _path(curve, arrow), _labels(arrow, x - sign * aside, y - 7 * (len(arrow.steps) - 1))

    def _draw_round(self, arrow: _Arrow, index: int, sign: int) -> tuple[str, list[str]]:
        """The path out to the side, along it, and back in. sign: -1 is the left side."""
        (x1, y1), (x2, y2) = self._places[arrow.start], self._places[arrow.end]
        edge = max(sign * x for x, _ in self._places.values()) + _NODE_WIDTH / 2
        out = sign * (edge + _SIDE * (index + 0.7))
        x1, x2 = x1 + sign * _NODE_WIDTH / 2, x2 + sign * (_NODE_WIDTH / 2 + 2)
        # An outer arrow also starts and ends farther from the middle, so that lanes do not cross.
        turn, before = math.copysign(14, y2 - y1), out - sign * 14
        y1, y2 = y1 - math.copysign(9 * index, turn), y2 + math.copysign(9 * index, turn)
        curve = (
            f"M{x1:.0f} {y1:.0f}L{before:.0f} {y1:.0f}Q{out:.0f} {y1:.0f} {out:.0f} {y1 + turn:.0f}"
            f"L{out:.0f} {y2 - turn:.0f}Q{out:.0f} {y2:.0f} {before:.0f} {y2:.0f}L{x2:.0f} {y2:.0f}"
        )
        return _path(curve, arrow), _labels(arrow, out, (y1 + y2) / 2 + 22 * index)

    def nodes(self) -> Iterator[str]:
        """The states, each with its steps to itself."""
        for state, (x, y) in self._places.items():
            first = " first" if state == self._machine.initial else ""
            loops = [step for step in self._machine.steps if step.start == step.end == state]
            yield (
                f'<rect class="node{first}" x="{x - _NODE_WIDTH / 2:.0f}" y="{y - _NODE_HEIGHT / 2:.0f}" '
                f'width="{_NODE_WIDTH}" height="{_NODE_HEIGHT}" rx="8"/>'
            )
            yield f'<text class="state" x="{x:.0f}" y="{y + (0 if loops else 5):.0f}">{escape(state)}</text>'
            if loops:
                words = ", ".join(dict.fromkeys(step.label for step in loops))
                yield f'<text class="loop" x="{x:.0f}" y="{y + 15:.0f}">↻ {escape(words)}</text>'


def _rows(machine: Machine) -> list[list[str]]:
    """The states by their distance from the first; within a row, below the states that lead to them."""
    depth = {machine.initial: 0}
    found = [machine.initial]
    for state in found:  # grows during the loop
        for step in machine.steps:
            if step.start == state and step.end not in depth:
                depth[step.end] = depth[state] + 1
                found.append(step.end)
    unreached = max(depth.values()) + 1
    for state in machine.states:
        depth.setdefault(state, unreached)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for state, row in depth.items():
        rows[row].append(state)
    for above, below in pairwise(rows):
        places = {state: _place_below(machine, state, above) for state in below}
        below.sort(key=places.__getitem__)
    return rows


def _place_below(machine: Machine, state: str, above: Sequence[str]) -> float:
    columns = [above.index(step.start) for step in machine.steps if step.end == state and step.start in above]
    return sum(columns) / len(columns) if columns else len(above)


def _arrows(machine: Machine) -> list[_Arrow]:
    found: dict[tuple[str, str, bool], list[Step]] = {}
    for step in machine.steps:
        if step.start != step.end:
            found.setdefault((step.start, step.end, step.is_peers), []).append(step)
    return [_Arrow(start, end, tuple(steps)) for (start, end, _), steps in found.items()]


def _on_curve(t: float, start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """A point of the curve, which is vertical at both ends."""
    (x1, y1), (x2, y2) = start, end
    a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
    return (a + b) * x1 + (c + d) * x2, a * y1 + (b + c) * (y1 + y2) / 2 + d * y2


def _path(curve: str, arrow: _Arrow) -> str:
    colour, marker = (_PEERS, "peers") if arrow.is_peers else (_OURS, "ours")
    dash = ' stroke-dasharray="6 4"' if arrow.is_peers else ""
    return f'<path d="{curve}" stroke="{colour}"{dash} marker-end="url(#{marker})"/>'


def _labels(arrow: _Arrow, x: float, y: float) -> list[str]:
    return [
        f'<text class="label" x="{x:.0f}" y="{y + 4 + 14 * index:.0f}">{escape(step.label)}</text>'
        for index, step in enumerate(arrow.steps)
    ]


def _words(step: Step) -> str:
    return f"{step.label} (received)" if step.is_peers else step.label


def _marker(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><polygon points="0,0 10,5 0,10" fill="{colour}"/></marker>'
    )
