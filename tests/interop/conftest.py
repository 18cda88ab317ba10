"""The official JavaScript SDK, for the tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.interop.node import JavaScript, required_javascript

from tidegate.testing.hub import HubService


@pytest.fixture(scope="session")
def javascript(hub_service: HubService) -> Iterator[JavaScript]:
    """One Node.js process for the whole run, which trusts the service's certificate authority."""
    ca_file = hub_service.ready.ca_file
    assert ca_file is not None
    with required_javascript({"NODE_EXTRA_CA_CERTS": ca_file}) as process:
        yield process
