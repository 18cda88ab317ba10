"""HTTP errors in the format of Event Hubs' REST interface.

<Error><Code>404</Code><Detail>The messaging entity 'x' could not be found.</Detail></Error>
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

from starlette.responses import Response

from tidegate.model.errors import TidegateError
from tidegate.wire.conditions import error_description, http_status_for

XML: Final = "application/xml; charset=utf-8"


def format_error(status: int, detail: str) -> tuple[str, str]:
    """Content type and body of an error."""
    return XML, f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>"


def error_response(status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a failed request."""
    media_type, text = format_error(status, detail)
    return Response(text, status, headers, media_type)


def response_for(error: TidegateError) -> Response:
    """The answer to a request that failed with a TidegateError."""
    return error_response(http_status_for(error), error_description(error), headers=headers_for(error))


def headers_for(error: TidegateError) -> dict[str, str]:
    """The headers of an error's answer, in any format."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        # In seconds, rounded up, so that a client that obeys is not early.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if http_status_for(error) == 401:
        headers["WWW-Authenticate"] = "SharedAccessSignature"
    return headers
