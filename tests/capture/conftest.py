"""A broker on a temporary directory with a clock that tests set, and a capture service of small windows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.capture.support import START
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.capture.window import WindowLimits
from tidegate.model.capture import CaptureSettings
from tidegate.server.opening import open_broker


@pytest.fixture
def clock() -> SetClock:
    """The clock of the broker and of Capture."""
    return SetClock(START)


@pytest.fixture
async def broker(tmp_path: Path, clock: SetClock) -> AsyncIterator[Broker]:
    """An open broker with no event hubs."""
    opened = await open_broker(tmp_path / "data", clock=clock)
    yield opened
    await opened.close()


def small_limits(settings: CaptureSettings) -> WindowLimits:
    """Windows of 1 kB of events as stored, and 60 s."""
    return WindowLimits(1000, 60_000, settings.is_empty_skipped, event_overhead_bytes=0)


@pytest.fixture
async def service(broker: Broker, tmp_path: Path, clock: SetClock) -> AsyncIterator[CaptureService]:
    """A running capture service of ``broker``."""
    opened = CaptureService(
        broker, namespace="ns", directory=tmp_path / "data" / "capture", clock=clock, limits_of=small_limits
    )
    opened.start()
    yield opened
    await opened.close()
