"""The shape of errors of the HTTP face, as Event Hubs' REST interface has it.

<Error><Code>404</Code><Detail>The messaging entity 'x' could not be found.</Detail></Error>
"""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from starlette.responses import Response

XML: Final = "application/xml; charset=utf-8"


def format_error(status: int, detail: str) -> tuple[str, str]:
    """Content type and body of an error."""
    return XML, f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>"


def error_response(status: int, detail: str, *, retry_after_s: float | None = None) -> Response:
    """The answer to a request that failed; retry_after_s: None where no wait is known to help."""
    media_type, text = format_error(status, detail)
    # Whole seconds, and never 0, which would say: at once.
    headers = None if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s + 0.499)))}
    return Response(text, status, headers, media_type)
