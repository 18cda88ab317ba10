"""The rights of one connection: the tokens it has presented, checked at each use.

Expiry is enforced twice: ``require`` refuses an expired token, and the owner is called back when the next
token expires, to check the links that are already open. When a policy, a key or a publisher is removed,
tokens are checked again before their next use, not within the change: it reaches all connections, and each
may have thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from tidegate.broker import NEVER_EXPIRES, UNKNOWN_PEER, Actor, Broker, Claim, Grant, Peer
from tidegate.model.audience import Audience, EntityPath, containing
from tidegate.model.clock import Clock
from tidegate.model.errors import QuotaExceededError, UnauthorizedError
from tidegate.model.sas import SIGNATURE_PREFIX
from tidegate.wire.cbs import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE

GRANTS_MAX = 2500
"""Maximum valid tokens of one connection. Our choice: the official JavaScript client presents
one per partition and direction, and the largest hub has 1,024 partitions."""

_GRANT_BYTES = 1024
"""Approximate memory of a grant without its strings (measured: 0.9 KB)."""

_LOST_MAX = 100
_ANSWERS_MAX = 5000
_ANSWER_BYTES = 256
"""Approximate memory of a remembered answer without its path (measured: 0.2 KB)."""
_PATH_CHARACTERS_MAX = 512
"""Maximum length of paths in caches (our choice: only those of publishers are longer)."""


class ConnectionClaims:
    """The grants of one connection; ``close`` it with the connection."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        on_loss: Callable[[], None],
        *,
        on_admitted: Callable[[], None] = lambda: None,
        find_peer: Callable[[], Peer] = lambda: UNKNOWN_PEER,
        add_held: Callable[[int], None] = lambda change: None,
    ) -> None:
        """on_loss: called on the event loop when a grant has expired. on_admitted: called when a token or key
        is accepted while none is valid. find_peer: returns who presents the tokens. add_held: counts bytes
        that are held for the client.
        """
        self._add_held = add_held
        self._find_peer = find_peer
        self._broker = broker
        self._clock = clock
        self._on_loss = on_loss
        self._on_admitted = on_admitted
        self._grants: dict[Audience, Grant] = {}
        self._index: _Index | None = None  # None: the grants have changed
        self._revision = broker.authorizer.revision  # for which the grants were checked
        # Paths of grants whose key or policy is gone, for the error of a later request.
        self._lost: set[EntityPath] = set()
        # Cached answers of ``require``, which is called for every batch: until when (path, claim) is
        # permitted.
        self._permitted_until: dict[tuple[EntityPath, Claim | None], int] = {}
        self._answers_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> Peer:
        """Who presents the tokens."""
        return self._find_peer()

    @property
    def is_empty(self) -> bool:
        """Whether no accepted token or key is valid: the client is not, or no longer, authenticated."""
        self._see_change()
        now = self._clock.now_utc().timestamp()
        # The last one is put last by most clients.
        return not any(now < grant.expiry for grant in reversed(self._grants.values()))

    def put_token(self, token: str, *, token_type: str, audience: str) -> None:
        """Verify a token presented for ``audience`` and keep what it allows, in place of an earlier one.

        Raises UnauthorizedError (the token), ServerBusyError (too many wrong keys before it),
        QuotaExceededError (too many tokens),
        NotFoundError (a valid token for an event hub that does not exist: only holders of a key learn that).
        """
        # SDKs send a signature from an application's own credential as type jwt.
        is_known = token_type == SAS_TOKEN_TYPE or token.startswith(SIGNATURE_PREFIX)
        is_jwt_known = token_type == JWT_TOKEN_TYPE and self._broker.authorizer.entra is not None
        if not is_known and not is_jwt_known:
            raise UnauthorizedError(
                f"InvalidToken: Tokens of type {token_type[:40]!r} are not supported.",
                next_step="Use a connection string with a shared access key, or let the service trust the "
                "tokens' issuer (its setting token_issuers).",
            )
        wanted = self._broker.authorizer.audience(audience)
        grant = self._broker.authorize(token, wanted, self._find_peer())
        if grant.is_of_principal:
            grant = replace(grant, resource=wanted)  # what the token was put for
        entity = wanted.path.partition("/")[0]
        if entity and not entity.startswith("$"):
            self._broker.event_hub(entity)
        self._keep({wanted: grant})

    def put_policy(self, name: str, key: str) -> None:
        """Accept the name and key of a policy (SASL PLAIN), of the namespace or of hubs.

        Raises UnauthorizedError, ServerBusyError (too many wrong keys before it), QuotaExceededError (too
        many hubs have it).
        """
        grants = self._broker.authorize_key(name, key, self._find_peer())
        self._keep({grant.resource: grant for grant in grants})

    def actor(
        self, path: EntityPath, *, token: str | None = None, claim: Claim | None = Claim.MANAGE
    ) -> Actor:
        """The actor with ``claim`` (None: any claim) on ``path`` by this connection, or by a token that came
        with the request.

        If several policies give it, all are named, so that the order of their tokens does not matter. Raises
        as ``require``.
        """
        now_utc = self._clock.now_utc()
        self.require(path, claim, token=token)
        peer = self._find_peer()
        grants = [
            grant
            for grant in self._indexed().over(path)
            if any(grant.permits(path, wanted, now_utc=now_utc) for wanted in _meant_by(claim))
        ]
        if not grants:
            assert token is not None  # ``require`` found nothing else
            grants = [self._broker.authorize(token, Audience("", path), peer)]
        return Actor.of(grants, peer)

    def require(self, path: EntityPath, claim: Claim | None, *, token: str | None = None) -> None:
        """Raise UnauthorizedError unless a grant gives ``claim`` (None: any claim) on ``path`` now.

        token: presented with the request, and valid only for it.
        """
        self._see_change()
        now_utc = self._clock.now_utc()
        if now_utc.timestamp() < self._permitted_until.get((path, claim), 0):
            return
        claims = _meant_by(claim)
        expiries = [
            grant.expiry
            for grant in self._indexed().over(path)
            for wanted in claims
            if grant.permits(path, wanted, now_utc=now_utc)
        ]
        if expiries:
            if len(self._permitted_until) >= _ANSWERS_MAX:
                self._forget_answers()
            if len(path) <= _PATH_CHARACTERS_MAX:
                self._permitted_until[path, claim] = max(expiries)
                self._answers_bytes += _ANSWER_BYTES + len(path)
                self._add_held(_ANSWER_BYTES + len(path))
            return
        if token is not None:
            grant = self._broker.authorize(token, Audience("", path), self._find_peer())
            if any(grant.permits(path, wanted, now_utc=now_utc) for wanted in claims):
                return
        what, shown = "Any" if claim is None else claim.value, path[:_PATH_CHARACTERS_MAX]
        if not self._lost.isdisjoint(containing(path)):
            raise UnauthorizedError(
                f"InvalidSignature: The token for '{shown}' is no longer valid: its policy was deleted, or "
                "the key that signed it regenerated.",
                next_step="Connect with a key that the policy has now.",
            )
        if self._indexed().first_expiry <= now_utc.timestamp():
            raise UnauthorizedError(
                f"ExpiredToken: The token for '{shown}' is expired.", next_step="Put a new token to $cbs."
            )
        raise UnauthorizedError(
            f"Unauthorized access. '{what}' claim(s) are required to perform this operation. "
            f"Resource: '{shown}'.",
            next_step="Use a policy or role that has the claim, and put its token to $cbs first.",
        )

    def checked_later(self, path: EntityPath, claim: Claim) -> Callable[[], None]:
        """A check for work that ``require`` has just permitted and that is done later, even after ``close``.

        It raises as ``require`` unless a policy and key that permit it now are still valid, or others permit
        it.
        """
        now_utc = self._clock.now_utc()
        grants = [each for each in self._indexed().over(path) if each.permits(path, claim, now_utc=now_utc)]

        def check() -> None:
            if not any(map(self._broker.authorizer.is_in_force, grants)):
                self.require(path, claim)

        return check

    def close(self) -> None:
        """Forget everything, including the owner."""
        peer = self._find_peer()  # requests that are not finished yet are still recorded as its own
        self._find_peer = lambda: peer
        self._on_loss = self._on_admitted = lambda: None
        self._forget(list(self._grants))
        self._changed()
        self._add_held = lambda change: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _indexed(self) -> _Index:
        self._see_change()
        if self._index is None:
            self._index = _Index(self._grants.values())
        return self._index

    def _changed(self) -> None:
        self._index = None
        self._forget_answers()

    def _forget_answers(self) -> None:
        self._permitted_until.clear()
        self._add_held(-self._answers_bytes)
        self._answers_bytes = 0

    def _keep(self, grants: Mapping[Audience, Grant]) -> None:
        was_empty = self.is_empty
        self._require_room(grants)
        if was_empty:
            self._on_admitted()
        self._forget(grants)
        self._grants.update(grants)
        self._add_held(sum(_held_bytes(audience, grant) for audience, grant in grants.items()))
        self._lost.difference_update(audience.path for audience in grants)
        self._changed()
        self._set_timer()

    def _require_room(self, grants: Mapping[Audience, Grant]) -> None:
        if self._count_with(grants) > GRANTS_MAX:
            self._forget_expired()
            if self._count_with(grants) > GRANTS_MAX:
                raise QuotaExceededError(
                    f"The connection has presented tokens for {GRANTS_MAX} audiences, the maximum.",
                    next_step="Present one for the event hub, which covers everything in it.",
                )

    def _count_with(self, grants: Mapping[Audience, Grant]) -> int:
        return len(self._grants) + sum(audience not in self._grants for audience in grants)

    def _forget_expired(self) -> None:
        now = self._clock.now_utc().timestamp()
        self._forget([key for key, grant in self._grants.items() if grant.expiry <= now])

    def _forget(self, audiences: Iterable[Audience]) -> None:
        for audience in audiences:
            grant = self._grants.pop(audience, None)
            if grant is not None:
                self._add_held(-_held_bytes(audience, grant))

    def _see_change(self) -> None:
        """Drop the grants that are no longer valid, if policies have changed since the last call."""
        authorizer = self._broker.authorizer
        if self._revision == authorizer.revision:
            return
        self._revision = authorizer.revision
        self._forget_answers()
        is_in_force = authorizer.is_in_force
        gone = [audience for audience, grant in self._grants.items() if not is_in_force(grant)]
        if gone:
            self._forget(gone)
            if len(self._lost) + len(gone) > _LOST_MAX:
                self._lost.clear()
            short = (each.path for each in gone if len(each.path) <= _PATH_CHARACTERS_MAX)
            self._lost.update(islice(short, _LOST_MAX))
            self._changed()

    def _set_timer(self) -> None:
        """Let links be judged when the next grant expires; never later than was already due.

        A link may depend on a grant that another token has replaced since, or that expired just now.
        """
        now = self._clock.now_utc().timestamp()
        pending = [grant.expiry for grant in self._grants.values() if now < grant.expiry < NEVER_EXPIRES]
        if not pending:
            return
        loop = asyncio.get_running_loop()
        # At most a day, because the wall clock may be set meanwhile.
        at = loop.time() + min(min(pending) - now, 86_400.0)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._set_timer()
        self._on_loss()


def _meant_by(claim: Claim | None) -> tuple[Claim, ...]:
    return tuple(Claim) if claim is None else (claim,)


def _held_bytes(audience: Audience, grant: Grant) -> int:
    """The approximate memory of a grant; a character may take four bytes."""
    text = grant.resource_text or ""
    return _GRANT_BYTES + len(audience.path) + len(grant.resource.path) + 4 * len(text)


class _Index:
    """Grants by path: there may be as many as links, and each link asks for its path."""

    __slots__ = ("_by_path", "first_expiry")

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._by_path: dict[EntityPath, dict[tuple[str, str], Grant]] = {}
        """The grant of each policy on a path: the one that expires last."""
        self.first_expiry = NEVER_EXPIRES
        for grant in grants:
            by_policy = self._by_path.setdefault(grant.resource.path, {})
            policy = grant.scope, grant.policy_name
            known = by_policy.get(policy)
            if known is None or known.expiry < grant.expiry:
                by_policy[policy] = grant
            self.first_expiry = min(self.first_expiry, grant.expiry)

    def over(self, path: EntityPath) -> list[Grant]:
        """The grants for an entity, or for an entity that contains it."""
        return [grant for known in containing(path) for grant in self._by_path.get(known, {}).values()]
