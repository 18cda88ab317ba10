"""The HTTP service: ``/health``, ``/ready``, ``/metrics``, publishing (``publish``), administration
(``admin``, and ``atom`` as old SDKs call it), checkpoints of official processors (``blobs``), and AMQP over
WebSocket.

Everything is served on every HTTP and HTTPS port. Errors have one shape: that
of Event Hubs' REST interface, or JSON under the administration's addresses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tidegate.amqp.errors import INTERNAL_ERROR, NOT_ALLOWED, NOT_FOUND
from tidegate.broker import Actor, Claim, acting_as
from tidegate.broker.blobs.accounts import DevelopmentAccount
from tidegate.gateway.administration.dead_letters import DeadLetterKeeper
from tidegate.gateway.administration.operations import PREFIX
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.gateway.counts import DiskSpace
from tidegate.gateway.health import health_report
from tidegate.gateway.http.admin import Administration, admin_error
from tidegate.gateway.http.atom import AtomAdministration
from tidegate.gateway.http.authorization import RequestAuthorizer, peer_of
from tidegate.gateway.http.blobs.door import BlobDoor
from tidegate.gateway.http.connected import while_connected
from tidegate.gateway.http.errors import error_response, response_for
from tidegate.gateway.http.origins import AllowedOrigins
from tidegate.gateway.http.publish import Publishing
from tidegate.gateway.http.server import HttpServer, listening_socket
from tidegate.gateway.metrics import MetricsPage, Sources, StoredGroups
from tidegate.model.audience import NAMESPACE
from tidegate.model.errors import ServerBusyError, UnauthorizedError
from tidegate.transport.peers import TrustedProxies, is_from_this_machine, site_at
from tidegate.transport.reused import Reused
from tidegate.transport.tasks import TaskOwner


class HttpGateway:
    """The HTTP service of a broker; ``listen`` as often as there are ports, and ``close`` once."""

    def __init__(
        self,
        amqp: AmqpGateway,
        *,
        is_ready: Callable[[], bool],
        origins: AllowedOrigins,
        proxies: TrustedProxies,
        further_routes: Sequence[BaseRoute] = (),
        hsts_max_age_s: int | None = None,
        tls_handshake_failures: Callable[[], int] = lambda: 0,
        development_account: DevelopmentAccount = DevelopmentAccount.THIS_MACHINE,
        read_stored_groups: Callable[[], Awaitable[StoredGroups | None]] | None = None,
        disk_space: Callable[[], DiskSpace | None] = lambda: None,
        dead_letters: DeadLetterKeeper | None = None,
    ) -> None:
        """amqp: serves AMQP over WebSockets; close it first, so that it ends them in order. is_ready: whether
        every port is open and the service is not stopping. origins: of pages that may open WebSockets.
        proxies: trusted to report their clients' addresses. further_routes: serve all other paths (the
        console). hsts_max_age_s: sent to browsers that use HTTPS; None: not sent. tls_handshake_failures:
        since the service started. development_account: who may use it. read_stored_groups: those of the
        database, for metrics; None while they cannot be read: those of before are shown. disk_space: as last
        seen. dead_letters: None without a database.
        """
        self._broker = broker = amqp.broker
        self._amqp = amqp
        self._is_ready = is_ready
        self._origins = origins
        self._proxies = proxies
        self._authorizer = RequestAuthorizer(broker, amqp.clock)
        self._read_stored_groups = read_stored_groups
        self._stored_groups = StoredGroups()
        self._metrics = MetricsPage(self._sources(tls_handshake_failures, disk_space), amqp.clock)
        self._tasks = TaskOwner("HTTP gateway")
        self._servers: list[HttpServer] = []
        self._hsts_max_age_s = hsts_max_age_s
        # Anyone may ask for it, and a thousand partitions take a millisecond.
        self._health_report: Reused[Mapping[str, object]] = Reused()
        self._application = _application(self._routes(dead_letters, development_account, further_routes))

    async def listen(
        self, host: str, port: int, *, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Serve a port, with TLS if a context is given; returns the bound address and port (0: any free one).

        Raises OSError if the address cannot be used.
        """
        listener = listening_socket(host, port)
        server = HttpServer(
            self._application,
            ssl_context=ssl_context,
            accept_websocket=self._amqp.accept,
            admits_origin=self._admits_origin,
            turns=self._amqp.turns,
            budget=self._amqp.budget,
            hsts_max_age_s=self._hsts_max_age_s,
            admission=self._amqp.admission,
        )
        self._servers.append(server)
        server.work = self._tasks.start(server.serve(sockets=[listener]), name=f"serve {host}:{port}")
        await server.is_serving.wait()
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening, and let running requests finish."""
        for server in self._servers:
            server.should_exit = True
        for server in self._servers:
            await server.stop()
        await self._tasks.close()

    def _sources(
        self, tls_handshake_failures: Callable[[], int], disk_space: Callable[[], DiskSpace | None]
    ) -> Sources:
        amqp = self._amqp
        return Sources(
            amqp.broker,
            amqp.connection_counts,
            amqp.capture_statistics,
            amqp.budget.statistics,
            amqp.admission.statistics,
            tls_handshake_failures,
            disk_space,
            lambda: self._stored_groups,
        )

    def _routes(
        self,
        dead_letters: DeadLetterKeeper | None,
        development_account: DevelopmentAccount,
        further_routes: Sequence[BaseRoute],
    ) -> list[BaseRoute]:
        broker, clock, budget = self._broker, self._amqp.clock, self._amqp.budget
        sliced_work = self._amqp.sliced_work
        administration = Administration(
            broker,
            clock=clock,
            capture_statistics=self._amqp.capture_statistics,
            sliced_work=sliced_work,
            budget=budget,
            dead_letters=dead_letters,
        )
        proxies = self._proxies
        return [
            Route("/health", self._health, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
            Route("/metrics", self._show_metrics, methods=["GET"]),
            BlobDoor(
                broker, clock=clock, sliced_work=sliced_work, proxies=proxies, development=development_account
            ),
            *administration.routes(),
            *Publishing(broker, clock=clock, budget=budget, sliced_work=sliced_work).routes(),
            *further_routes,
            *AtomAdministration(broker, clock=clock, sliced_work=sliced_work, budget=budget).routes(),
        ]

    def _admits_origin(self, origin: str, host: str) -> bool:
        return self._origins.admits(origin, host, self._broker.authorizer.host_names)

    async def _health(self, request: Request) -> Response:
        def look() -> Mapping[str, object]:
            return health_report(self._broker, self._amqp.admission, asyncio.get_running_loop().time())

        return JSONResponse(self._health_report.get(look))

    async def _ready(self, request: Request) -> Response:
        if self._is_ready():
            return JSONResponse({"status": "ready"})
        # Ports are open for a moment before all are, and while connections finish at the end.
        return JSONResponse({"status": "not ready", "problems": ["the service starts or stops"]}, 503)

    async def _show_metrics(self, request: Request) -> Response:
        # They show event hubs and their load: a client on another machine needs a token.
        peer, version = peer_of(request), request.scope["http_version"]
        actor = Actor(peer)
        try:
            if not is_from_this_machine(
                peer.address, request.headers, http_version=version, proxies=self._proxies
            ):
                grant = self._authorizer.require(request, NAMESPACE, Claim.LISTEN, Claim.MANAGE)
                actor = Actor.of([grant], peer)
            work = self._made_metrics(request.headers.get("accept", ""), site_at(peer.address))
            body, content_type = await while_connected(request, work)
            with acting_as(actor):
                self._broker.check_actor()  # they may have waited for the database and for others
        except ClientDisconnect:
            return Response()  # which is not sent
        except (UnauthorizedError, ServerBusyError) as error:
            await self._broker.key_guard.wait_before_answer(error)
            return response_for(error)
        return Response(body, headers={"Content-Type": content_type})

    async def _made_metrics(self, accept: str, address: object) -> tuple[bytes, str]:
        if self._read_stored_groups is not None:
            found = await self._read_stored_groups()
            self._stored_groups = self._stored_groups if found is None else found
        return await self._metrics.render(accept, self._amqp.sliced_work, address=address)


def _application(routes: Sequence[BaseRoute]) -> Starlette:
    found = Starlette(
        routes=routes, exception_handlers={HTTPException: _on_http_exception, Exception: _on_failure}
    )
    # Starlette would redirect clients to the host in the Host header, over plain HTTP.
    found.router.redirect_slashes = False
    return found


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.scope['path']}: {error.detail}."
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
    path: str = request.scope["path"]
    return path.startswith(f"{PREFIX}/")
