"""Fixtures for tests that need the real service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.testing.hub import HubService


@pytest.fixture(scope="session")
def hub_service() -> Iterator[HubService]:
    """One real service for the whole run: AMQP and HTTP, plain and TLS, its log in a temporary place."""
    # Imported here, so that the tests of pure packages do not load the whole service.
    from tidegate.testing.hub import HubService

    with HubService(is_tls_used=True, is_http_used=True) as service:
        yield service


@pytest.fixture
def event_hub(hub_service: HubService) -> str:
    """The name of a fresh event hub with two partitions."""
    return hub_service.create_hub(partition_count=2)
