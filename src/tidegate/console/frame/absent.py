"""The pages of dead letters and jobs where the service has no database."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import require_listen, rights_of
from tidegate.model.errors import NotFoundError


class AbsentPages(Pages):
    """Say that there is no database, and how to give one."""

    @get("/dead-letters")
    @get("/dead-letters/history")
    async def dead_letters(self, request: Request) -> Response:
        require_listen(request, request.query_params.get("hub") or rights_of(request).hub)
        return page(request, "frame/processing_absent.html")

    @get("/console/live/dead-letters")
    @get("/console/live/jobs/{rest:path}")
    @get("/console/jobs{rest:path}")
    @post("/console/jobs{rest:path}")
    @get("/dead-letters/{rest:path}")
    @post("/dead-letters/{rest:path}")
    async def refuse(self, request: Request) -> Response:
        raise NotFoundError("This service has no database.", next_step="Start it with --database URL.")
