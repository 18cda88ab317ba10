"""Work for a request that takes a while, and whose result is not needed when the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from tidegate.transport.at_once import at_once
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects. For what changes nothing.

    request: its body has been read. work: as of ``at_once``. Raises what it raises; ClientDisconnect.
    """
    result = at_once(work)
    if not isinstance(result, Awaitable):
        return result
    async with TaskOwner("request") as tasks:
        try:
            async with asyncio.timeout(None) as limit:
                tasks.start(_end(limit, request), name="disconnection")
                return await result
        except TimeoutError as error:
            if limit.expired():
                raise ClientDisconnect from error
            raise


async def _end(limit: asyncio.Timeout, request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(asyncio.get_running_loop().time())
