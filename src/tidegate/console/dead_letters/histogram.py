"""Dead letters by hour, as bars and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.sql.dead_letters.pages import HourCount

HOURS_MAX: Final = 96
"""Longer periods are shown by days. Our choice: bars of 7 pixels on a page of 700."""
DAYS_MAX: Final = 120

_BARS_MIN: Final = 24
_PARTS: Final = 4
"""Of the axis, between its times."""
_WIDTH: Final = 720
_HEIGHT: Final = 90


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour or day, and its position in the chart."""

    start: datetime
    until: datetime
    count: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bars from the first to the last hour (or day) with dead letters, including empty ones;
    at least a day (or 24)."""

    bars: Sequence[Bar]
    unit: str
    """``hour`` or ``day``."""
    times: Sequence[datetime]
    """Of the axis below, at equal distances from its start to its end."""
    earlier: int
    """Dead letters before the first bar, if there would be too many bars."""
    most: int
    top: int
    """The highest value of the axis beside it: round, and even where there is a middle."""
    width: int = _WIDTH
    height: int = _HEIGHT


def histogram_of(hours: Sequence[HourCount]) -> Histogram | None:
    """None if there is nothing to count."""
    if not hours:
        return None
    is_by_hour = hours[-1].start - hours[0].start < timedelta(hours=HOURS_MAX)
    step, bars_max = (timedelta(hours=1), HOURS_MAX) if is_by_hour else (timedelta(days=1), DAYS_MAX)
    counts: dict[datetime, int] = {}
    for each in hours:
        start = each.start if is_by_hour else each.start.replace(hour=0)
        counts[start] = counts.get(start, 0) + each.count
    last = max(counts)
    # Few bars do not become wide ones.
    first = max(min(*counts, last - (_BARS_MIN - 1) * step), last - (bars_max - 1) * step)
    starts = [first + index * step for index in range((last - first) // step + 1)]
    most = max(counts.get(start, 0) for start in starts)
    top = _round_above(most)
    slot = _WIDTH / len(starts)
    bars = []
    for index, start in enumerate(starts):
        count = counts.get(start, 0)
        # A minimum height keeps small bars visible.
        height = max(2.0, _HEIGHT * count / top) if count else 0.0
        x, width = index * slot, slot * 0.85
        bars.append(
            Bar(
                start,
                start + step,
                count,
                round(x, 1),
                round(_HEIGHT - height, 1),
                round(width, 1),
                round(height, 1),
            )
        )
    return Histogram(
        bars,
        "hour" if is_by_hour else "day",
        [first + len(starts) * step * part / _PARTS for part in range(_PARTS + 1)],
        sum(count for start, count in counts.items() if start < first),
        most,
        top,
    )


def _round_above(most: int) -> int:
    """1, 2, 4, 6, 8 or 10 times a power of ten."""
    power = int("1" + "0" * (len(str(most)) - 1))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= most)
