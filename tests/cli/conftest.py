"""Fixtures: an environment whose commands find the test run's service."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.support import environment_without_service

from tidegate.testing.hub import HubService


@pytest.fixture
def lonely(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing says where a service is."""
    return environment_without_service(tmp_path)


@pytest.fixture
def environment(lonely: dict[str, str], hub_service: HubService) -> dict[str, str]:
    """An environment that names the test run's service."""
    return lonely | {"TIDEGATE_CONNECTION_STRING": hub_service.connection_string}
