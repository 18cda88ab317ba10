"""Pages as classes, whose methods declare their route in a decorator."""

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
        """The routes of the methods, in order of definition."""
        return [
            Route(path, getattr(self, name), methods=[method])
            for name, member in vars(type(self)).items()
            for method, path in getattr(member, _ADDRESSES, ())
        ]


def get(path: str) -> Callable[[Handler], Handler]:
    """Route GET and HEAD of a path to the method."""
    return lambda handler: _answering(handler, "GET", path)


def post(path: str) -> Callable[[Handler], Handler]:
    """Route POST of a path to the method."""
    return lambda handler: _answering(handler, "POST", path)


def _answering(handler: Handler, method: str, path: str) -> Handler:
    setattr(handler, _ADDRESSES, ((method, path), *getattr(handler, _ADDRESSES, ())))
    return handler
