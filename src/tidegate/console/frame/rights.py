"""Rights of the console's users, by the broker's policies."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.broker import (
    EMULATOR_KEY,
    ROOT_POLICY_NAME,
    Action,
    Actor,
    Broker,
    Claim,
    Door,
    Grant,
    Peer,
    acting_as,
)
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidKeyError, ServerBusyError, UnauthorizedError
from tidegate.model.times import time_of

LINK_S: Final = 600.0
"""Seconds after the start in which its link signs in. Our choice: a person is there, and opens it."""

_LINK_ACCOUNT: Final = "link-of-the-start"


@dataclass(frozen=True, slots=True)
class Rights:
    """What a signed-in user may do now."""

    policy_name: str
    can_listen: bool
    can_send: bool
    can_manage: bool
    hub: str | None = None
    """The only event hub that the rights cover; None: the whole namespace."""
    since: datetime | None = None
    """When that hub was created. A hub may have had its name before, for other tenants; None: the namespace's
    rights, which cover all of them."""

    def covers(self, hub: str | None) -> bool:
        """Whether the rights cover that event hub (None: the namespace)."""
        # Names are ASCII; the Kelvin sign would become a k.
        return self.hub is None or (hub is not None and hub.isascii() and self.hub.lower() == hub.lower())

    def may_listen(self, hub: str | None = None) -> bool:
        """Whether events of the hub (None: of all) may be seen."""
        return self.can_listen and self.covers(hub)

    def is_theirs(self, began_at: datetime) -> bool:
        """Whether what began then is of the hub that the rights cover, not of an earlier one of its name."""
        return self.since is None or began_at >= self.since

    def may_see(self, hub: str | None, began_at: datetime) -> bool:
        """Whether something that is known by the hub's name (None: of all), and began then, may be seen.

        Ask this for whatever outlives a hub: pipelines, jobs, rows of the database.
        """
        return self.may_listen(hub) and self.is_theirs(began_at)

    def may_send(self, hub: str | None = None) -> bool:
        """Whether events may be sent to the hub (None: to all)."""
        return self.can_send and self.covers(hub)

    def may_manage(self, hub: str | None = None) -> bool:
        """Whether the hub (None: the namespace) may be changed."""
        return self.can_manage and self.covers(hub)


class Access:
    """Checks sign-ins by the broker's policies. A ``Grant`` is the proof of a user's rights."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._link: tuple[bytes, float] | None = None
        """The secret of the link that signs in once, and until when; None: there is none any more."""

    def allow_link(self, secret: str) -> None:
        """Let a link with this secret sign in once, within LINK_S from now."""
        self._link = secret.encode(), self._clock.monotonic() + LINK_S

    async def sign_in_by_link(self, secret: str, *, address: str) -> Grant:
        """The root policy's grant, for the secret of the link. Raises as ``sign_in``."""
        # Counted apart: what other sites' pages guess in the user's browser must not block the key.
        judged = self._broker.key_guard.judge
        return await self._sign_in(
            ROOT_POLICY_NAME,
            address,
            lambda: judged(Peer(Door.CONSOLE, address), _LINK_ACCOUNT, lambda: self._grant_of_link(secret)),
        )

    async def sign_in(self, policy_name: str, key: str, hub: str | None, *, address: str) -> Grant:
        """Check a policy's name and key. hub: the policy's (None: the namespace's policy, else the only one).

        address: the client's. Raises UnauthorizedError, delayed if many keys from there were wrong, and
        ServerBusyError if too many were.
        """
        return await self._sign_in(policy_name, address, lambda: self._grant(policy_name, key, hub, address))

    async def _sign_in(self, policy_name: str, address: str, verify: Callable[[], Grant]) -> Grant:
        try:
            grant = verify()
        except (UnauthorizedError, ServerBusyError) as error:
            self._broker.audit.record_refused_sign_in(policy_name, address, error.message)
            await self._broker.key_guard.wait_before_answer(error)
            raise
        with self.acting(grant, address):
            self._broker.audit.record(Action.SIGN_IN)
        return grant

    def acting(self, grant: Grant, address: str) -> AbstractContextManager[None]:
        """Record changes within the block as made by the grant's holder."""
        return acting_as(Actor.of([grant], Peer(Door.CONSOLE, address)))

    def note_sign_out(self, grant: Grant, address: str) -> None:
        """Record a sign-out."""
        with self.acting(grant, address):
            self._broker.audit.record(Action.SIGN_OUT)

    def _grant_of_link(self, secret: str) -> Grant:
        link, policy = self._link, self._broker.authorizer.policy(ROOT_POLICY_NAME)
        is_right = link is not None and hmac.compare_digest(link[0], secret.encode())
        if link is None or not is_right or self._clock.monotonic() > link[1] or policy is None:
            raise InvalidKeyError(
                "The link is not complete, has been used, or is more than ten minutes old.",
                next_step="Sign in with a policy's key; a service that is started again prints another link.",
            )
        self._link = None
        (grant, *_) = self._broker.authorizer.authorize_key(ROOT_POLICY_NAME, policy.key)
        return grant

    def _grant(self, policy_name: str, key: str, hub: str | None, address: str) -> Grant:
        grants = self._broker.authorize_key(policy_name, key, Peer(Door.CONSOLE, address))
        if hub is not None:
            grants = tuple(grant for grant in grants if grant.scope in ("", hub.lower()))
        grants = tuple(sorted(grants, key=lambda grant: grant.scope != ""))
        if not grants:
            raise UnauthorizedError(
                "InvalidSignature: No policy of that event hub has that key.",
                next_step="Check the event hub.",
            )
        if grants[0].scope and len(grants) > 1:
            raise UnauthorizedError(
                "Several event hubs have a policy of that name with that key.",
                next_step="Name the event hub.",
            )
        return grants[0]

    def development_credential(self) -> Grant | None:
        """A grant of the root policy while it has the official emulator's public key; else None."""
        policy = self._broker.authorizer.policy(ROOT_POLICY_NAME)
        if policy is None or EMULATOR_KEY not in policy.keys:
            return None
        (grant, *_) = self._broker.authorizer.authorize_key(ROOT_POLICY_NAME, EMULATOR_KEY)
        return grant

    def rights(self, grant: Grant) -> Rights | None:
        """The rights of a grant now; None: it is no longer valid."""
        now_utc = self._clock.now_utc()
        if now_utc.timestamp() >= grant.expiry or not self._broker.authorizer.is_in_force(grant):
            return None
        hub = self._broker.event_hub(grant.scope).description if grant.scope else None
        return Rights(
            grant.policy_name,
            can_listen=grant.permits(grant.reach, Claim.LISTEN, now_utc=now_utc),
            can_send=grant.permits(grant.reach, Claim.SEND, now_utc=now_utc),
            can_manage=grant.permits(grant.reach, Claim.MANAGE, now_utc=now_utc),
            # As its creator spelled it, as in pipelines and dead letters.
            hub=None if hub is None else hub.name,
            since=None if hub is None else time_of(hub.created_at_ms),
        )

    def add_change_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` within each change of policies or keys; it must neither block nor raise.

        Returns a function that removes it.
        """
        return self._broker.authorizer.add_change_listener(listener)
