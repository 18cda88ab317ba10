"""Who sends a request of Blob Storage, and what it may do.

An account belongs to an event hub or to the namespace, as policies do: the key of a policy with Listen opens
it, and so does what that key has signed. So no key of one hub reaches another hub's checkpoints: they are in
another account. The development account, whose key is public, is for programs on this machine alone, unless
a setting says otherwise.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Final

from starlette.requests import Request

from tidegate.broker import Actor, Broker, Claim, Grant, Peer
from tidegate.broker.blobs.accounts import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_ACCOUNT_ID,
    DEVELOPMENT_KEY,
    NAMESPACE_ACCOUNT_ID,
    DevelopmentAccount,
    account_name,
    parse_account,
    signing_key,
)
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.gateway.http.authorization import peer_of
from tidegate.gateway.http.blobs.signatures import BlobRequest, Signed, SignedRights, signed_by
from tidegate.model.audience import NAMESPACE, Audience, entity_path
from tidegate.model.clock import Clock
from tidegate.model.errors import NotFoundError
from tidegate.transport.admission import authenticate_peer
from tidegate.transport.peers import TrustedProxies, is_from_this_machine

NAMESPACE_ACCOUNT_PATH: Final = entity_path("$blob")
"""What a signature for the namespace's own account is for, as no event hub is called."""


@dataclass(frozen=True, slots=True)
class Access:
    """A request's rights on one account."""

    account_id: str
    account: str
    """As the service spells it."""
    actor: Actor
    rights: SignedRights | None
    """None: those of the key."""
    is_manager: bool
    grant: Grant | None
    """None: of the development account."""

    def require(self, permissions: str, resource: str) -> None:
        """Raise BlobRefusedError unless one of ``permissions`` is given for ``resource`` (``c`` or ``o``)."""
        rights = self.rights
        if rights is None:
            return
        is_wide_enough = (
            resource in rights.resources
            if rights.is_of_account
            else (resource == "o" or (permissions == "l" and "c" in rights.resources))
        )
        if not is_wide_enough or rights.permissions.isdisjoint(permissions):
            raise BlobRefusedError(Refusal.AUTHORIZATION_FAILURE)


class BlobAccess:
    """Checks signatures against the policies of the namespace and its event hubs."""

    def __init__(
        self, broker: Broker, clock: Clock, *, proxies: TrustedProxies, development: DevelopmentAccount
    ) -> None:
        """proxies: whose requests never count as from this machine."""
        self._broker = broker
        self._clock = clock
        self._proxies = proxies
        self._development = development

    def require(self, request: Request, asked: BlobRequest) -> Access:
        """The rights of a request.

        Raises BlobRefusedError, InvalidKeyError (a delayed answer), ServerBusyError.
        """
        signed = signed_by(
            asked, now=self._clock.now_utc().astimezone(UTC), is_https=request.scope["scheme"] == "https"
        )
        name = parse_account(asked.account)
        assert name is not None  # the route matches by it
        peer = peer_of(request)
        if name.is_development:
            return self._development_access(request, asked, signed, peer)
        path = NAMESPACE if name.event_hub is None else entity_path(name.event_hub)
        grants = self._broker.authorize_signature(
            # By account, however it is spelled and whether there is such a hub or not; and by that of the
            # namespace, or each made-up account would be another chance to guess the namespace's keys.
            {account_name(each): each for each in (None, name.event_hub)},
            lambda key: _is_signed(signed, signing_key(key)),
            peer,
            is_in_url=signed.rights is not None,
        )
        now_utc = self._clock.now_utc()
        grant = next((each for each in grants if each.permits(path, Claim.LISTEN, now_utc=now_utc)), None)
        if grant is None:
            raise BlobRefusedError(Refusal.AUTHENTICATION_FAILED, "The policy needs Listen.")
        authenticate_peer(request.scope)
        account_id, account = NAMESPACE_ACCOUNT_ID, account_name(None)
        if name.event_hub is not None:
            try:
                description = self._broker.event_hub(name.event_hub).description
            except NotFoundError as error:
                raise BlobRefusedError(Refusal.RESOURCE_NOT_FOUND) from error
            account_id, account = description.hub_id, account_name(description.name)
        is_manager = Claim.MANAGE in grant.claims
        if signed.rights is not None:
            # The signature names an account, and gives rights on that alone, also the namespace's.
            resource = Audience("", path or NAMESPACE_ACCOUNT_PATH)
            grant = replace(grant, resource=resource, expiry=int(signed.rights.expires_at.timestamp()))
        actor = Actor.of([grant], peer)
        return Access(account_id, account, actor, signed.rights, is_manager, grant)

    def require_still(self, access: Access) -> None:
        """Raise BlobRefusedError if the policy's key has changed since ``require``, or the shared access
        signature has expired."""
        if access.grant is not None and not self._broker.authorizer.is_in_force(access.grant):
            raise BlobRefusedError(Refusal.AUTHENTICATION_FAILED)
        if access.rights is not None and self._clock.now_utc() >= access.rights.expires_at:
            raise BlobRefusedError(Refusal.AUTHENTICATION_FAILED, "The signature has expired.")

    def _development_access(self, request: Request, asked: BlobRequest, signed: Signed, peer: Peer) -> Access:
        version: str = request.scope["http_version"]
        is_open = self._development is DevelopmentAccount.EVERYWHERE or (
            self._development is DevelopmentAccount.THIS_MACHINE
            and is_from_this_machine(
                peer.address, request.headers, http_version=version, proxies=self._proxies
            )
        )
        if not is_open or not _is_signed(signed, signing_key(DEVELOPMENT_KEY)):
            raise BlobRefusedError(Refusal.AUTHENTICATION_FAILED)
        authenticate_peer(request.scope)
        actor = Actor(peer, DEVELOPMENT_ACCOUNT, scope=DEVELOPMENT_ACCOUNT)
        return Access(DEVELOPMENT_ACCOUNT_ID, DEVELOPMENT_ACCOUNT, actor, signed.rights, True, None)


def _is_signed(signed: Signed, key: bytes) -> bool:
    expected = hmac.digest(key, signed.text.encode(), hashlib.sha256)
    return hmac.compare_digest(expected, signed.signature)
