"""Pages as classes: each method says above itself which address it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_ADDRESSES: Final = "addresses"

Handler = TypeVar("Handler", bound=Callable[[Any, Request], Awaitable[Response]])


class Pages:
    """Pages of one subject."""

    def routes(self) -> list[Route]:
        """The addresses of the methods, in the order in which they are defined."""
        return [
            Route(path, getattr(self, name), methods=[method])
            for name, member in vars(type(self)).items()
            for method, path in getattr(member, _ADDRESSES, ())
        ]


def get(path: str) -> Callable[[Handler], Handler]:
    """Have the method answer GET, and HEAD, of an address."""
    return lambda handler: _answering(handler, "GET", path)


def post(path: str) -> Callable[[Handler], Handler]:
    """Have the method answer POST to an address."""
    return lambda handler: _answering(handler, "POST", path)


def _answering(handler: Handler, method: str, path: str) -> Handler:
    setattr(handler, _ADDRESSES, ((method, path), *getattr(handler, _ADDRESSES, ())))
    return handler
