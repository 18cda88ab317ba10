"""A broker on a temporary directory, with a clock that tests set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.server.opening import open_broker


@pytest.fixture
def clock() -> SetClock:
    """The broker's clock."""
    return SetClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: SetClock) -> AsyncIterator[Broker]:
    """An open broker with no event hubs."""
    opened = await open_broker(tmp_path, clock=clock)
    yield opened
    await opened.close()
