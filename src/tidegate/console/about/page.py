"""``/console/about``: the version, the software of others that the console contains, and its shortcuts."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.pages import Pages, get
from tidegate.console.frame.rendering import STATIC_DIRECTORY, page
from tidegate.model import VERSION

SHORTCUTS: Final = (
    ("/", "Search"),
    ("f", "To the first filter"),
    ("g o", "Overview"),
    ("g h", "Event hubs"),
    ("g c", "Consumers"),
    ("g d", "Dead letters"),
    ("g p", "Pipelines"),
    ("g k", "Keys"),
    ("g a", "Audit"),
    ("[ and ]", "Previous and next page, or event"),
    (".", "Pause live figures, or continue"),
    ("?", "This list"),
)
"""What ``display.js`` does."""


@cache
def _vendored() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((STATIC_DIRECTORY / "vendor" / "vendor.json").read_text())
    return found


@dataclass(eq=False)
class AboutPages(Pages):
    """The one page."""

    def __post_init__(self) -> None:
        self._started_at = self.console.clock.now_utc()

    @get("/console/about")
    async def show(self, request: Request) -> Response:
        return page(
            request,
            "about/page.html",
            version=VERSION,
            python=platform.python_version(),
            started_at=self._started_at,
            shortcuts=SHORTCUTS,
            vendored=_vendored(),
        )
