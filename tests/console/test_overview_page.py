"""The overview: what it shows, live, of a service under load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.console.support import assert_accessible

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_the_overview_in_a_browser(console_page: Page) -> None:
    """It opens, signed in by the development key, and is accessible."""
    console_page.goto("/")
    assert console_page.get_by_role("heading", level=1).inner_text() == "Overview"
    assert_accessible(console_page)
