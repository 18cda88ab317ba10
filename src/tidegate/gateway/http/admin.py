"""The administration over HTTP: one route per operation of ``operations``, and ``/openapi.json``.

    token checked -> body read, within limits -> checked against the operation's shape -> handler -> JSON

Errors are answered as ``{"error": {"status", "condition", "message"}}``. Answers may hold keys:
they must not be cached, and nothing of them is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Final, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidegate.broker import Actor, Broker, Claim, Grant, acting_as
from tidegate.gateway.administration.dead_letters import DeadLetterKeeper
from tidegate.gateway.administration.operations import OPERATIONS, PREFIX, Call, Needs, Operation
from tidegate.gateway.administration.shapes import Shape, each_schema
from tidegate.gateway.http.authorization import RequestAuthorizer, peer_of
from tidegate.gateway.http.connected import while_connected
from tidegate.gateway.http.errors import headers_for
from tidegate.gateway.http.long_answers import LongAnswer
from tidegate.gateway.http.openapi import openapi_document
from tidegate.model.audience import NAMESPACE, entity_path
from tidegate.model.capture import CaptureStatistics
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    EventTooLargeError,
    OperationTimeoutError,
    RemoteProtocolError,
    TidegateError,
)
from tidegate.model.validation import decoded, validated
from tidegate.transport.counted_body import counted
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.conditions import condition_for, error_description, http_status_for

TIMEOUT_S: Final = 60.0
"""Maximum time of a request. Our choice; deleting a large event hub takes longest."""

_JSON: Final = "application/json"
_NOT_CACHED: Final = {"Cache-Control": "no-store"}

_log = logging.getLogger(__name__)


Perform = Callable[[bytes, Grant], Awaitable[Response]]
"""Executes a request, by its body and the grant of its token, and returns the answer."""


class AdministrationEndpoint:
    """Authorizes and answers requests of the administration, in REST and Atom."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        error_response: Callable[[TidegateError], Response],
        budget: MemoryBudget,
    ) -> None:
        """error_response: the answer to a failed request. budget: counts bodies of requests."""
        self._broker = broker
        self._budget = budget
        self._authorizer = RequestAuthorizer(broker, clock)
        self._error_response = error_response

    async def answer(
        self,
        request: Request,
        operation_id: str,
        needs: Needs,
        hub: str | None,
        perform: Perform,
        body_bytes_max: int = 65_536,
    ) -> Response:
        """The result of ``perform``, called on behalf of the sender; or the answer to its failure.

        hub: requires the claims on this event hub; None: on the namespace.
        """
        try:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return await self._perform(request, needs, hub, perform, body_bytes_max)
            except TimeoutError as error:
                raise OperationTimeoutError(
                    f"{operation_id} did not finish within {TIMEOUT_S:g} s; it may still be running."
                ) from error
            except ClientDisconnect as error:
                raise RemoteProtocolError("The client disconnected before its answer.") from error
        except TidegateError as error:
            level = logging.ERROR if error.remote_text else logging.INFO
            _log.log(level, "%s of %.300r refused: %s", operation_id, request.scope["path"], error)
            await self._broker.key_guard.wait_before_answer(error)
            return self._error_response(error)

    async def _perform(
        self, request: Request, needs: Needs, hub: str | None, perform: Perform, body_bytes_max: int
    ) -> Response:
        entity = NAMESPACE if hub is None else entity_path(hub)
        for claims in needs.alternatives:
            self._authorizer.require(request, entity, *claims)
        address = site_at(peer_of(request).address)
        with counted(request.receive, self._budget, address=address) as receive:
            body = await _read_body(Request(request.scope, receive), body_bytes_max)
            # Again, because a body may arrive slowly: a key revoked meanwhile must not change anything.
            for claims in needs.alternatives:
                grant = self._authorizer.require(request, entity, *claims)
            with acting_as(Actor.of([grant], peer_of(request))):
                response = await perform(body, grant)
                if request.method in ("GET", "HEAD"):
                    self._broker.check_actor()  # a list may have waited for others
        return response


class Administration:
    """Answers the requests of the administration."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        capture_statistics: Callable[[], Mapping[str, CaptureStatistics]],
        sliced_work: SlicedWork,
        budget: MemoryBudget,
        dead_letters: DeadLetterKeeper | None = None,
    ) -> None:
        """capture_statistics: of each hub that is captured now, by name. sliced_work: for long lists.
        budget: counts bodies of requests, and long lists. dead_letters: None: the service has no database."""
        self._broker = broker
        self._dead_letters = dead_letters
        self._sliced_work = sliced_work
        self._budget = budget
        self._capture_statistics = capture_statistics
        self._endpoint = AdministrationEndpoint(broker, clock, admin_error_response, budget)
        self._document = ""
        """Made when it is first asked for: half the CPU of a start of the service."""

    def routes(self) -> list[BaseRoute]:
        """The routes: the operations, and their OpenAPI document."""
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in OPERATIONS:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        routes: list[BaseRoute] = [
            Route(PREFIX + path, partial(self._answer, operations), methods=list(operations))
            for path, operations in by_path.items()
        ]
        return [*routes, Route("/openapi.json", self._openapi, methods=["GET"])]

    async def _openapi(self, request: Request) -> Response:
        async with self._sliced_work.alone(self):
            if not self._document:
                address = site_at(peer_of(request).address)
                parts = await self._sliced_work.collect(each_schema(), address=address)
                found = {name: schema for part in parts for name, schema in part.items()}
                self._document = json.dumps(openapi_document(found))
        return Response(self._document, media_type="application/json")

    async def _answer(self, operations: Mapping[str, Operation], request: Request) -> Response:
        # HEAD is answered as GET is; the server leaves the body out.
        operation = operations["GET" if request.method == "HEAD" else request.method]
        parameters: dict[str, str] = dict(request.path_params)

        async def perform(body: bytes, grant: Grant) -> Response:
            wanted: Shape | None = None
            if operation.request is not None and operation.method == "GET":
                wanted = validated(dict(request.query_params), operation.request, is_text=True)
            elif operation.request is not None:
                wanted = decoded(body or b"{}", operation.request)
            is_manager = Claim.MANAGE in grant.claims
            value = operation.handler(
                Call(
                    self._broker,
                    self._capture_statistics,
                    parameters,
                    wanted,
                    is_manager,
                    self._sliced_work,
                    encode_row=lambda row: _json_text(row).encode(),
                    dead_letters=self._dead_letters,
                )
            )
            if isinstance(value, Coroutine) and operation.method == "GET":
                value = await while_connected(request, value)
            value = await value if isinstance(value, Awaitable) else value
            if operation.answer is None:
                return Response(status_code=operation.status)
            if operation.is_long_list:
                return LongAnswer(
                    cast(list[bytes], value),
                    self._budget,
                    head=b"[",
                    between=b", ",
                    tail=b"]",
                    status_code=operation.status,
                    headers=_NOT_CACHED,
                    media_type=_JSON,
                )
            return _json_response(value, operation.status)

        hub = None if operation.is_of_namespace else parameters.get("hub")
        return await self._endpoint.answer(
            request, operation.operation_id, operation.needs, hub, perform, operation.body_bytes_max
        )


def admin_error_response(error: TidegateError) -> Response:
    """The answer to a failed request of the administration."""
    return admin_error(
        http_status_for(error), condition_for(error), error_description(error), headers_for(error)
    )


def admin_error(
    status: int, condition: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error in the shape of ``administration.shapes.Error``."""
    error = {"status": status, "condition": str(condition), "message": message}
    return _json_response({"error": error}, status, headers)


def _json_response(value: object, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_json_text(value), status, _NOT_CACHED | dict(headers or {}), _JSON)


def _json_text(value: object) -> str:
    # Not orjson, which cannot encode integers beyond 64 bits: a setting may be one.
    return json.dumps(value, ensure_ascii=False)


async def _read_body(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise EventTooLargeError(f"The request has more than {bytes_max} bytes, the most allowed.")
    return bytes(body)
