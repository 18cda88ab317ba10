"""The door of Blob Storage: the paths of accounts, in front of those of event hubs.

    signature checked -> operation found -> body read, within limits -> key still valid -> handler

The rule: without a valid signature nothing is answered but 403, whatever the path, whether or not there is
such an event hub.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from tidegate.broker import Broker, acting_as
from tidegate.broker.blobs.accounts import DevelopmentAccount, parse_account
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.broker.blobs.store import CONTENT_BYTES_MAX
from tidegate.gateway.http.authorization import peer_of
from tidegate.gateway.http.blobs.access import BlobAccess
from tidegate.gateway.http.blobs.answers import common_headers, error_answer
from tidegate.gateway.http.blobs.operations import Call, metadata_in, operation_of
from tidegate.gateway.http.blobs.signatures import BlobRequest
from tidegate.gateway.http.connected import while_connected
from tidegate.gateway.http.server import HEADER_NAMES
from tidegate.model.clock import Clock
from tidegate.model.errors import ServerBusyError, TidegateError, UnauthorizedError
from tidegate.transport.admission import keep_waiting
from tidegate.transport.peers import TrustedProxies, site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.conditions import error_description

TIMEOUT_S: Final = 60.0
"""Maximum time of a request (our choice, as of the administration)."""

_log = logging.getLogger(__name__)


class BlobDoor(BaseRoute):
    """Answers all requests whose path begins with an account's name."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        sliced_work: SlicedWork,
        proxies: TrustedProxies,
        development: DevelopmentAccount,
    ) -> None:
        """sliced_work: for long lists. proxies: whose requests never count as from this machine. development:
        who may use the development account."""
        self._broker = broker
        self._sliced_work = sliced_work
        self._access = BlobAccess(broker, clock, proxies=proxies, development=development)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Matches by the path's first segment, as it is spelled."""
        if scope["type"] != "http":
            return Match.NONE, {}
        path = _raw_path(scope)
        # A request target need not begin with a slash, such as "*" (RFC 9112 section 3.2).
        is_ours = path.startswith("/") and parse_account(path.split("/", 2)[1]) is not None
        return (Match.FULL if is_ours else Match.NONE), {}

    def url_path_for(self, name: str, /, **path_params: object) -> NoMatchFound:  # type: ignore[override]
        """Never matches."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        headers = common_headers(request.headers)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                response = await self._perform(request)
        except TimeoutError:
            return error_answer(Refusal.OPERATION_TIMED_OUT, Refusal.OPERATION_TIMED_OUT.sentence, headers)
        except ClientDisconnect:
            return error_answer(Refusal.INVALID_HEADER, "The request ended before its body.", headers)
        except TidegateError as error:
            return await self._refuse(request, error, headers)
        response.headers.update(headers)
        return response

    async def _perform(self, request: Request) -> Response:
        asked = BlobRequest.parse(
            request.method,
            _raw_path(request.scope),
            request.scope["query_string"].decode("latin-1"),
            request.headers.items(),
        )
        access = self._access.require(request, asked)
        operation = operation_of(asked)
        access.require(operation.permissions, operation.resource)
        if operation.needs_manage and not access.is_manager:
            raise BlobRefusedError(Refusal.AUTHORIZATION_FAILURE, "It needs a policy with Manage.")
        body = await _read_body(request)
        # Again, because a body may arrive slowly: a key revoked meanwhile must not change anything.
        self._access.require_still(access)
        names: Mapping[str, str] = request.scope.get("state", {}).get(HEADER_NAMES, {})
        with acting_as(access.actor):
            work = operation.handler(
                Call(
                    self._broker,
                    access,
                    asked,
                    metadata_in(asked.headers, names),
                    body,
                    self._sliced_work,
                    site_at(peer_of(request).address),
                )
            )
            if request.method not in ("GET", "HEAD"):
                return await work
            response = await while_connected(request, work)
        self._access.require_still(access)  # a list may have waited for others
        return response

    async def _refuse(self, request: Request, error: TidegateError, headers: Mapping[str, str]) -> Response:
        level = logging.ERROR if error.remote_text else logging.INFO
        _log.log(level, "%s %.300r refused: %s", request.method, request.scope["path"], error)
        if isinstance(error, BlobRefusedError):
            return error_answer(error.refusal, error.message, headers, retry_after_s=error.retry_after_s)
        if isinstance(error, UnauthorizedError):
            keep_waiting(request.scope)
            await self._broker.key_guard.wait_before_answer(error)
            return error_answer(
                Refusal.AUTHENTICATION_FAILED, Refusal.AUTHENTICATION_FAILED.sentence, headers
            )
        refusal = Refusal.SERVER_BUSY if isinstance(error, ServerBusyError) else Refusal.INTERNAL_ERROR
        return error_answer(refusal, error_description(error), headers, retry_after_s=error.retry_after_s)


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1")


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > CONTENT_BYTES_MAX:
            raise BlobRefusedError(Refusal.BODY_TOO_LARGE, f"{CONTENT_BYTES_MAX} bytes are the maximum.")
    return bytes(body)
