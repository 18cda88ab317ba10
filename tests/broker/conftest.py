"""A broker on a temporary directory, with a clock that tests set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidegate.broker import Broker


class SetClock:
    """A clock that stands where it was put."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, 0, 0, 500_000, tzinfo=UTC)

    def now_utc(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()

    def advance(self, **parts: float) -> None:
        self.now += timedelta(**parts)


@pytest.fixture
def clock() -> SetClock:
    """The broker's clock."""
    return SetClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: SetClock) -> AsyncIterator[Broker]:
    """An open broker with no event hubs."""
    opened = await Broker.open(tmp_path, clock=clock)
    yield opened
    await opened.close()
