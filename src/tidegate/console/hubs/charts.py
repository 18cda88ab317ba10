"""``/console/charts…``: what the charts of 24 hours show, in JSON for ``console.js``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.pages import get
from tidegate.console.frame.sessions import require_listen
from tidegate.console.hubs.day import Day
from tidegate.console.hubs.day_charts import lag_charts, load_charts
from tidegate.console.hubs.hub import NamespacePages


class ChartPages(NamespacePages):
    """Charts of the namespace, an event hub, or a consumer group."""

    @get("/console/charts")
    async def of_namespace(self, request: Request) -> Response:
        require_listen(request)
        return await self._answer(lambda day: load_charts(day, ""))

    @get("/console/charts/{hub}")
    async def of_hub(self, request: Request) -> Response:
        hub_id = self.hub_to_see(request).description.hub_id
        return await self._answer(lambda day: load_charts(day, hub_id))

    @get("/console/charts/{hub}/{group}")
    async def of_group(self, request: Request) -> Response:
        hub_id, group = self.hub_to_see(request).description.hub_id, request.path_params["group"]
        return await self._answer(lambda day: lag_charts(day, hub_id, group))

    async def _answer(self, charts: Callable[[Day], dict[str, Any]]) -> Response:
        day = self.namespace.recorder.day
        content = await asyncio.to_thread(lambda: json.dumps(charts(day)))
        return Response(content, media_type="application/json")
