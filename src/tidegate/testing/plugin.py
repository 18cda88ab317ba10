"""The pytest plugin: ``def test_x(event_hub): …`` gets a real event hub of its own.

Installed with Tidegate, and found by pytest automatically. The service starts with the first test that needs
it and is shared by the run; each test gets a new hub, which is deleted afterwards.

    @pytest.mark.event_hub(partition_count=8, consumer_groups=["reports"])
    def test_reports(event_hub): …
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.testing.event_hub import TestedEventHub, TestedService

_MARKER = "event_hub(partition_count=4, retention_hours=…, consumer_groups=[…]): what event_hub makes"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture(scope="session")
def tidegate_service() -> Iterator[TestedService]:
    """A Tidegate service in this process, for all tests of the run."""
    # Imported here: pytest also loads plugins in runs that never need them.
    from tidegate.testing.event_hub import TestedService

    with TestedService() as service:
        yield service


@pytest.fixture
def event_hub(request: pytest.FixtureRequest, tidegate_service: TestedService) -> Iterator[TestedEventHub]:
    """A new event hub: ``connection_string`` for any SDK, ``send``, ``events``, ``faults``."""
    marker = request.node.get_closest_marker("event_hub")
    with tidegate_service.event_hub(**(marker.kwargs if marker is not None else {})) as made:
        yield made
