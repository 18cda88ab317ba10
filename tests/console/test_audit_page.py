"""The audit page in a browser; what it tells is tested in ``tests/server/test_audit_trail``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.console.support import assert_accessible

from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.programs
def test_the_page_with_a_browser(service: HubService, console_page: Page) -> None:
    """It is found from the navigation, is searched by its fields, and is accessible, empty or not."""
    service.create_hub("audited")
    console_page.goto("/")
    console_page.get_by_role("link", name="Audit", exact=True).click()
    console_page.wait_for_url("**/audit")
    assert_accessible(console_page)
    console_page.get_by_label("Action").select_option("createEventHub")
    console_page.get_by_role("button", name="Search").click()
    console_page.wait_for_url("**action=createEventHub**")
    row = console_page.get_by_role("row").nth(1).inner_text()
    assert "audited" in row
    assert "the service" in row
    console_page.goto("/audit?search=nothing-is-like-that")
    assert_accessible(console_page)
