"""Work that requests cause, in slices, in the turns of their client's address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from starlette.requests import Request

from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork

T = TypeVar("T")


def site_of_client(request: Request) -> tuple[int, int] | None:
    """``peers.site_of`` the client's address; None if unknown."""
    return None if request.client is None else site_at(request.client.host)


async def in_slices(request: Request, items: Iterator[T | None]) -> list[T]:
    """All items but None; see ``SlicedWork.collect``."""
    sliced_work: SlicedWork = request.state.sliced_work
    return await sliced_work.collect(items, address=site_of_client(request))
