"""Keeps a client connected: opens and authorizes a connection when needed, and replaces it when it breaks.

Every operation uses ``run``, which gives it a live connection, a deadline for each try, and retries. There is
one connection at a time; operations wait while it is being opened.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from tidegate.client.connection import LiveConnection, timed_out
from tidegate.client.credentials import Token, refresh_delay_s
from tidegate.client.namespace import Namespace
from tidegate.client.request_channel import RequestChannel
from tidegate.model.clock import Clock
from tidegate.model.errors import BrokenError, ClockSkewError, ClosedError, TidegateError, UnauthorizedError
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.cbs import PutToken, put_token_request
from tidegate.wire.names import CBS_NODE, MANAGEMENT_NODE
from tidegate.wire.request_response import successful_value

T = TypeVar("T")

_EXPIRED: Final = "ExpiredToken"
"""How the service's message names the reason (observed: Event Hubs; ``broker.authorization``)."""

_CLOCK_BEHIND_S_MAX: Final = 86_400.0
"""How far behind this machine's clock may be for its tokens to be made valid all the same (our choice)."""

_logger: Final = logging.getLogger(__name__)


class AuthorizedConnection:
    """A live connection with its ``$cbs`` and ``$management`` channels and its tokens."""

    def __init__(self, connection: LiveConnection, tasks: TaskOwner) -> None:
        self.connection = connection
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._cbs: RequestChannel | None = None
        self._management: RequestChannel | None = None
        self._valid_until: dict[str, float] = {}
        """By audience: Unix time at which its token expires."""
        self._kept_fresh: set[str] = set()
        self._added_lifetime_s = 0.0
        """Makes tokens that are valid although this machine's clock is behind the service's."""

    async def authorize(self, audience: str) -> bool:
        """Send a token for ``audience`` once, and renew it while the connection lives.

        It is sent again if it was not renewed in time, for example after the machine was suspended. Returns
        whether it was sent now. Raises UnauthorizedError (key, policy, expiry), NotFoundError (no such hub),
        BrokenError.
        """
        async with self._lock:
            if self._now() < self._valid_until.get(audience, 0.0):
                return False
            if self._cbs is None or not self._cbs.is_open:
                self._cbs = await RequestChannel.open(self.connection, CBS_NODE)
            token = await self._put_token(audience)
        if audience not in self._kept_fresh:
            self._kept_fresh.add(audience)
            self._tasks.start(self._keep_fresh(audience, token), name=f"tokens of {audience}")
        return True

    def distrust_token(self, audience: str) -> None:
        """Make the next ``authorize`` send a new token: by the service's clock this one may have expired."""
        self._valid_until.pop(audience, None)

    async def token_for(self, audience: str) -> Token:
        """A fresh token, for requests that contain one."""
        credential = self.connection.namespace.credential
        return await credential.token_for(audience, now=self._now() + self._added_lifetime_s)

    async def management(self) -> RequestChannel:
        """The ``$management`` channel, attached on first use. Call ``authorize`` first."""
        async with self._lock:
            if self._management is None or not self._management.is_open:
                self._management = await RequestChannel.open(self.connection, MANAGEMENT_NODE)
            return self._management

    async def _put_token(self, audience: str) -> Token:
        assert self._cbs is not None
        token = await self.token_for(audience)
        request = put_token_request(PutToken(token.token_type, audience, token.value, token.expiry))
        try:
            successful_value(await self._cbs.request(request))
        except UnauthorizedError as error:
            if _EXPIRED not in error.message or self._now() >= token.expiry:
                raise
            # The key is right, and the token expired before it was used: the clocks differ.
            if self._added_lifetime_s:
                raise _clock_error(error) from error
            _logger.warning("%s", _clock_error(error))
            self._added_lifetime_s = _CLOCK_BEHIND_S_MAX
            return await self._put_token(audience)
        self._valid_until[audience] = token.expiry
        return token

    def _now(self) -> float:
        return self.connection.clock.now_utc().timestamp()

    async def _keep_fresh(self, audience: str, token: Token) -> None:
        """Replace the token before it expires; a failure ends the connection."""
        try:
            while True:
                now = self._now()
                with suppress(TimeoutError):
                    async with asyncio.timeout(refresh_delay_s(token.expiry, now=now)):
                        await self.connection.wait_over()
                        return
                async with asyncio.timeout(self.connection.namespace.timeout_s):
                    fresh = await self._put_token(audience)
                if fresh.expiry <= token.expiry:
                    return  # a ready-made signature cannot be renewed; the service ends the connection
                token = fresh
        except TimeoutError:
            self.connection.fail(timed_out("a token refresh", self.connection.namespace.timeout_s))
        except TidegateError as error:
            self.connection.fail(error)


def _clock_error(error: UnauthorizedError) -> ClockSkewError:
    return ClockSkewError(
        f"The service says that a token has expired which is valid by this machine's clock: {error.message}",
        next_step="Correct this machine's clock, or the service's.",
    )


class Connector:
    """Keeps one client connected, until ``close``."""

    def __init__(self, namespace: Namespace, *, clock: Clock | None = None) -> None:
        self.namespace = namespace
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.tasks = TaskOwner(f"client of {namespace.host}")
        self._lock = asyncio.Lock()
        self._current: AuthorizedConnection | None = None
        self.is_closed = False
        """Whether ``close`` was called."""

    async def connected(self) -> AuthorizedConnection:
        """The current connection, or a new one, without retries. Raises what connecting raises.

        Cancellation: an incomplete connection is closed.
        """
        async with self._lock:
            if self.is_closed:
                raise ClosedError("The client is closed.")
            if self._current is None or not self._current.connection.is_open:
                old, self._current = self._current, None
                if old is not None:  # closed in the background, because its peer may not respond
                    self.tasks.start(old.connection.close(), name="closing a broken connection")
                connection = await LiveConnection.open(self.namespace, self.clock)
                if self.is_closed:
                    await connection.close()
                    raise ClosedError("The client is closed.")
                self._current = AuthorizedConnection(connection, self.tasks)
            return self._current

    async def run(self, what: str, operation: Callable[[AuthorizedConnection], Awaitable[T]]) -> T:
        """Run ``operation`` on a live connection, with retries after transient errors.

        what: the operation's name in errors. The namespace's time-out applies to each try, including
        connecting. Raises the last try's error. Cancellation: the client stays usable.
        """
        retries_done = 0
        while True:
            try:
                return await self.run_once(what, operation)
            except TidegateError as error:
                if self.is_closed or not self.namespace.retry.decide_retry(error, retries_done=retries_done):
                    raise
                retries_done += 1
                await self.wait_before_retry(retries_done, error)

    async def run_once(self, what: str, operation: Callable[[AuthorizedConnection], Awaitable[T]]) -> T:
        """One try of ``run``."""
        timeout_s = self.namespace.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await operation(await self.connected())
        except TimeoutError as error:
            # Replace a connection that does not answer.
            if self._current is not None:
                self._current.connection.fail(BrokenError("The connection was closed: no response in time."))
            raise timed_out(what, timeout_s) from error

    async def wait_before_retry(self, retry: int, error: TidegateError) -> None:
        """Sleep for the retry policy's wait before retry number ``retry``."""
        # A generator of its own: a program that seeds the shared one keeps its numbers.
        await asyncio.sleep(
            self.namespace.retry.delay_before(retry, jitter_fraction=random.Random().random(), error=error)
        )

    async def close(self) -> None:
        """Close the connection and end every task of this client. Idempotent."""
        self.is_closed = True
        current, self._current = self._current, None
        if current is not None:
            await current.connection.close()
        await self.tasks.close()
