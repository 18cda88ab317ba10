"""The HTTP face: ``GET /health``, publishing (``http_publish``), administration (``http_admin``), and AMQP
over WebSocket.

Everything is served on every HTTP and HTTPS port. What is wrong with a request is told in one shape: in that
of Event Hubs' REST interface, and under the administration's addresses in JSON.
"""

from __future__ import annotations

import ssl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidegate.amqp.errors import INTERNAL_ERROR, NOT_ALLOWED, NOT_FOUND
from tidegate.broker import Broker
from tidegate.gateway.admin_operations import PREFIX
from tidegate.gateway.amqp_server import AmqpGateway
from tidegate.gateway.http_admin import Administration, admin_error
from tidegate.gateway.http_errors import error_response
from tidegate.gateway.http_publish import Publishing
from tidegate.gateway.http_server import HttpServer, listening_socket
from tidegate.model.clock import Clock
from tidegate.transport.tasks import TaskOwner


class HttpGateway:
    """The HTTP face of a broker; ``listen`` as often as there are ports, and ``close`` once."""

    def __init__(self, broker: Broker, *, clock: Clock, amqp: AmqpGateway) -> None:
        """amqp: takes what comes in WebSockets; close it first, so that it ends them in order."""
        self._broker = broker
        self._amqp = amqp
        self._tasks = TaskOwner("HTTP gateway")
        self._servers: list[HttpServer] = []
        self._application = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                *Administration(broker, clock=clock).routes(),
                *Publishing(broker, clock=clock).routes(),
            ],
            exception_handlers={HTTPException: _on_http_exception, Exception: _on_failure},
        )

    async def listen(
        self, host: str, port: int, *, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Serve, over TLS where a context is given; returns the address and port bound (0: any free one).

        Raises OSError when the address cannot be listened on.
        """
        listener = listening_socket(host, port)
        server = HttpServer(self._application, ssl_context=ssl_context, accept_websocket=self._amqp.accept)
        self._servers.append(server)
        server.work = self._tasks.start(server.serve(sockets=[listener]), name=f"serve {host}:{port}")
        await server.is_serving.wait()
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening, and let requests that are under way finish."""
        for server in self._servers:
            server.should_exit = True
        for server in self._servers:
            await server.stop()
        await self._tasks.close()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "healthy", "event_hubs": len(self._broker.list_event_hubs())})


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}."
    if _is_administration(request):
        condition = NOT_FOUND if error.status_code == 404 else NOT_ALLOWED
        return admin_error(error.status_code, condition, f"{detail} See /openapi.json.")
    return error_response(error.status_code, f"{detail} Publish with POST /HUB/messages.")


async def _on_failure(request: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, and uvicorn logs it.
    detail = "The service failed; its log says how."
    if _is_administration(request):
        return admin_error(500, INTERNAL_ERROR, detail)
    return error_response(500, detail)


def _is_administration(request: Request) -> bool:
    return request.url.path.startswith(f"{PREFIX}/")
