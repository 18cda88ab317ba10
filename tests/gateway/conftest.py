"""A broker in a temporary directory, and a client connected to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.gateway.support import HOST, Pair
from tests.storage.engines import MemoryEngine
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.server.opening import open_broker


@pytest.fixture
def clock() -> SetClock:
    """Time of the broker and of the connections."""
    return SetClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: SetClock) -> AsyncIterator[Broker]:
    """A namespace with the hub ``hub`` of two partitions. Its changes are made within the turn that asks for
    them (``tests/broker/test_engines.py`` has engines where they are not)."""
    broker = await open_broker(tmp_path, clock=clock, is_control_threaded=False)
    await broker.create_event_hub("hub", partition_count=2)
    yield broker
    await broker.close()


@pytest.fixture
async def prompt_broker(clock: SetClock) -> AsyncIterator[Broker]:
    """As ``broker``, over an engine that creates and deletes a hub without waiting."""
    broker = await Broker.open(MemoryEngine(), clock=clock)
    await broker.create_event_hub("hub", partition_count=2)
    yield broker
    await broker.close()


@pytest.fixture
async def pair(broker: Broker, clock: SetClock) -> Pair:
    """A client whose token covers the whole namespace."""
    pair = Pair(broker, clock)
    assert pair.put_token(broker, f"sb://{HOST}/").status_code == 202
    return pair
