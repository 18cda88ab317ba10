"""``/``: how the whole service is doing, live."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.console.context import Console
from tidegate.console.rendering import page


def routes(console: Console) -> list[Route]:
    """What is served."""
    pages = _Pages(console)
    return [Route("/", pages.show, methods=["GET"])]


class _Pages:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def show(self, request: Request) -> Response:
        return page(request, "overview.html")
