"""Error pages: the error, and what to do next."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.rendering import for_users, page
from tidegate.model.errors import (
    AlreadyExistsError,
    DatabaseError,
    Fault,
    NotFoundError,
    TidegateError,
    UnauthorizedError,
)

_STATUS: Final[tuple[tuple[type[TidegateError], int], ...]] = (
    (NotFoundError, 404),
    (UnauthorizedError, 403),
    (AlreadyExistsError, 409),
    (DatabaseError, 503),
)

_TITLES: Final = {
    400: "Not possible",
    401: "Sign in",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed",
    409: "Not possible",
    500: "The service failed",
    503: "Unavailable",
}


def status_of(error: TidegateError | None) -> int:
    """The HTTP status of an error; 200 for None."""
    if error is None:
        return 200
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    if error.is_transient:
        return 503
    return {Fault.CALLER: 400, Fault.STATE: 409}.get(error.fault, 500)


def problem_page(request: Request, template: str, problem: TidegateError | None, **context: Any) -> Response:
    """A page that shows what is wrong with its form, with that error's status; None: nothing."""
    return page(request, template, status_code=status_of(problem), problem=problem, **context)


def error_page(request: Request, error: TidegateError, *, status_code: int | None = None) -> Response:
    """The page that shows an error."""
    status = status_of(error) if status_code is None else status_code
    shown = for_users(error, getattr(request.state, "rights", None))
    return _page(request, status, shown.message, shown.next_step)


async def answer_of_exception(request: Request, error: Exception) -> Response:
    """The page for any error that a handler raised. Starlette logs those that are not TidegateErrors."""
    if isinstance(error, TidegateError):
        return error_page(request, error)
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "The service failed; see its log."
    if status != 500:
        message = f"There is no page for {request.method} {request.scope['path'][:200]}."
    return _page(request, status, message, "")


def _page(request: Request, status: int, message: str, next_step: str) -> Response:
    title = _TITLES.get(status, "Not possible")
    return page(
        request,
        "frame/error.html",
        status_code=status,
        status=status,
        title=title,
        message=message,
        next_step=next_step,
    )
