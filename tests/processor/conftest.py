"""What the tests of a host and its pumps share."""

from __future__ import annotations

import pytest

from tidegate.processor import MemoryStore
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock


@pytest.fixture
def store() -> MemoryStore:
    """An empty store that hosts of this process share."""
    return MemoryStore(SystemClock())


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A fresh hub of one partition."""
    return hub_service.create_hub(partition_count=1)
