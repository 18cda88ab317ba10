"""A broker in a temporary directory, and a client connected to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.gateway.support import HOST, Pair

from tidegate.broker import Broker


class ManualClock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def now_utc(self) -> datetime:
        """The wall clock."""
        return self.now

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return self.now.timestamp()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> ManualClock:
    """Time of the broker and of the connections."""
    return ManualClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    """A namespace with the hub ``hub`` of two partitions."""
    broker = await Broker.open(tmp_path, clock=clock)
    broker.create_event_hub("hub", partition_count=2)
    yield broker
    await broker.close()


@pytest.fixture
async def pair(broker: Broker, clock: ManualClock) -> Pair:
    """A client whose token covers the whole namespace."""
    pair = Pair(broker, clock)
    assert pair.put_token(broker, f"sb://{HOST}/").status_code == 202
    return pair
