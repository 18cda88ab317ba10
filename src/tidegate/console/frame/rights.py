"""Who may do what: the broker's policies, as the console asks for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

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
from tidegate.console.backend.access import Credential, Rights
from tidegate.model.clock import Clock
from tidegate.model.errors import ServerBusyError, UnauthorizedError


@dataclass(frozen=True, slots=True)
class _BrokerCredential:
    grant: Grant = field(repr=False)


class BrokerAccess:
    """``console.backend.AccessView`` of a broker."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    async def sign_in(self, policy_name: str, key: str, hub: str | None, *, address: str) -> Credential:
        """See ``AccessView.sign_in``. A policy of the namespace goes before those of hubs."""
        try:
            credential = self._credential(policy_name, key, hub, address)
        except (UnauthorizedError, ServerBusyError) as error:
            self._broker.audit.record_refused_sign_in(policy_name, address, error.message)
            await self._broker.key_guard.wait_before_answer(error)
            raise
        with self.acting(credential, address):
            self._broker.audit.record(Action.SIGN_IN)
        return credential

    def acting(self, credential: Credential, address: str) -> AbstractContextManager[None]:
        """See ``AccessView.acting``."""
        assert isinstance(credential, _BrokerCredential)  # made here
        return acting_as(Actor.of([credential.grant], Peer(Door.CONSOLE, address)))

    def note_sign_out(self, credential: Credential, address: str) -> None:
        """See ``AccessView.note_sign_out``."""
        with self.acting(credential, address):
            self._broker.audit.record(Action.SIGN_OUT)

    def _credential(self, policy_name: str, key: str, hub: str | None, address: str) -> _BrokerCredential:
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
        return _BrokerCredential(grants[0])

    def development_credential(self) -> Credential | None:
        """See ``AccessView.development_credential``."""
        policy = self._broker.authorizer.policy(ROOT_POLICY_NAME)
        if policy is None or EMULATOR_KEY not in policy.keys:
            return None
        (grant, *_) = self._broker.authorizer.authorize_key(ROOT_POLICY_NAME, EMULATOR_KEY)
        return _BrokerCredential(grant)

    def rights(self, credential: Credential) -> Rights | None:
        """See ``AccessView.rights``."""
        assert isinstance(credential, _BrokerCredential)  # made here
        grant = credential.grant
        now_utc = self._clock.now_utc()
        if now_utc.timestamp() >= grant.expiry or not self._broker.authorizer.is_in_force(grant):
            return None
        return Rights(
            grant.policy_name,
            can_listen=grant.permits(grant.reach, Claim.LISTEN, now_utc=now_utc),
            can_send=grant.permits(grant.reach, Claim.SEND, now_utc=now_utc),
            can_manage=grant.permits(grant.reach, Claim.MANAGE, now_utc=now_utc),
            # As its creator wrote it: pipelines and dead letters name it so.
            hub=self._broker.event_hub(grant.scope).name if grant.scope else None,
        )

    def add_change_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """See ``AccessView.add_change_listener``."""
        return self._broker.authorizer.add_change_listener(listener)
