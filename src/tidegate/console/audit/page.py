"""``/audit``: who changed what, and who signed in; for who may manage the namespace."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.console.access import require_manage
from tidegate.console.context import Console
from tidegate.console.hubs.page import pager
from tidegate.console.pages.forms import start_of
from tidegate.console.rendering import page

_FIELD_CHARACTERS_MAX = 200


def routes(console: Console) -> list[Route]:
    """What is served."""

    async def show(request: Request) -> Response:
        require_manage(request)
        given = {
            name: request.query_params.get(name, "").strip()[:_FIELD_CHARACTERS_MAX]
            for name in ("search", "action", "policy")
        }
        view = console.backend.audit
        found = view.page(**given, start=start_of(request.query_params.get("start")))
        context: dict[str, Any] = {"found": found, "actions": view.actions, **given}
        context |= pager("/audit", found, **given)
        return page(request, "audit.html", **context)

    return [Route("/audit", show, methods=["GET"])]
