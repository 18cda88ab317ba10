"""Shared access policies, and the check of the tokens made with their keys.

A key never leaves this module except through ``SharedAccessPolicy`` (for the connection string that its
owner asked for); no repr, log line or error holds one.

A policy belongs to the namespace or to one event hub. A token names the policy (``skn``) and what it is for
(``sr``); it may be signed with either key of the namespace's policy of that name, or of the hub's that ``sr``
belongs to. A change of policies takes effect at once: a grant is valid only while its key is.

The rule: a policy of a hub gives nothing outside that hub, whatever a token says that it is for. ``Grant``
enforces it for every caller; the text of ``sr`` is read once, for the choice of the policy and its reach.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from tidegate.broker.listeners import Listeners
from tidegate.model.audience import NAMESPACE, Audience, EntityPath, entity_path, lies_in
from tidegate.model.errors import InvalidKeyError, UnauthorizedError
from tidegate.model.hosts import HostNames, host_of
from tidegate.model.sas import SharedAccessSignature

ROOT_POLICY_NAME: Final = "RootManageSharedAccessKey"
"""The policy every namespace is born with (Azure "Authorize access with shared access signatures",
2026-09).
"""

NEVER_EXPIRES: Final = 253_402_300_799
"""Unix time of the end of the year 9999: a policy's key, unlike a token, does not run out."""

_NAMESPACE: Final = ""
"""The scope of the namespace's own policies; a hub's scope is its name in lower case."""

_KEY_BYTES = 32


class Claim(Enum):
    """A right that a policy gives."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


def generate_key() -> str:
    """A new random key: 32 bytes, in base64."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


@dataclass(frozen=True, slots=True)
class SharedAccessPolicy:
    """A name with two keys, and the rights that go with each of them.

    Two, so that one can be regenerated while clients use the other.
    """

    name: str
    key: str = field(repr=False)
    """The primary key: raw UTF-8 key material, as clients put it into their connection string."""
    claims: frozenset[Claim]
    secondary_key: str = field(default_factory=generate_key, repr=False)
    """Worth the same as the primary key."""

    @classmethod
    def generate(
        cls,
        name: str,
        claims: Iterable[Claim],
        *,
        key: str | None = None,
        secondary_key: str | None = None,
    ) -> SharedAccessPolicy:
        """A policy; keys that are None are made at random."""
        return cls(name, key or generate_key(), frozenset(claims), secondary_key or generate_key())

    @property
    def keys(self) -> tuple[str, str]:
        """Primary and secondary key."""
        return self.key, self.secondary_key


@dataclass(frozen=True, slots=True)
class Grant:
    """What a verified token allows, and until when; see also ``Authorizer.is_in_force``."""

    policy_name: str
    resource: Audience
    """What the token is for; its sub-paths are included."""
    claims: frozenset[Claim]
    expiry: int
    """Unix time in seconds: from then on the grant is worth nothing."""
    scope: str = ""
    """The event hub whose policy it is, in lower case; empty for a policy of the namespace."""
    key: str = field(default="", repr=False)
    """The key that proved it."""
    resource_text: str | None = None
    """What ``resource`` was read from; None: a key was given, and no token."""
    policy_id: object = field(default=None, repr=False, compare=False)
    """Distinguishes the policy from a later one of the same name."""

    @property
    def reach(self) -> EntityPath:
        """What the policy is for: the namespace, or its event hub. Nothing outside it is ever permitted."""
        return entity_path(self.scope) if self.scope else NAMESPACE

    def permits(self, path: EntityPath, claim: Claim, *, now_utc: datetime) -> bool:
        """Whether ``claim`` is given on the entity at ``path`` now."""
        # The check that excludes most grants comes first: a connection may have thousands.
        return (
            lies_in(path, self.resource.path)
            and lies_in(path, self.reach)
            and claim in self.claims
            and now_utc.timestamp() < self.expiry
        )


class Authorizer:
    """Checks tokens against the policies of the namespace and of its event hubs."""

    def __init__(
        self,
        policies: Iterable[SharedAccessPolicy],
        *,
        is_event_hub: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """policies: those of the namespace; hubs' policies come with ``set_policies``.

        is_event_hub: whether there is an event hub of that name now, in whatever letter case.
        """
        self._host_names = HostNames()
        self._is_event_hub = is_event_hub
        self._scopes = {_NAMESPACE: {policy.name: policy for policy in policies}}
        self._policy_ids: dict[tuple[str, str], object] = {
            (_NAMESPACE, name): object() for name in self._scopes[_NAMESPACE]
        }
        # Checked in place of a policy that does not exist, so that its absence takes no less time.
        self._nobody = SharedAccessPolicy.generate("", ())
        self._listeners = Listeners("who may do what")

    @property
    def policies(self) -> tuple[SharedAccessPolicy, ...]:
        """All policies of the namespace, in the order of the catalog."""
        return tuple(self._scopes[_NAMESPACE].values())

    @property
    def host_names(self) -> HostNames:
        """The names of the service itself. With one of them an audience without a scheme may begin, as long
        as no event hub has it.
        """
        return self._host_names

    def set_host_names(self, names: HostNames) -> None:
        """Replace the names of the service. Calls the listeners."""
        self._host_names = names
        self.announce_change()

    def policy(self, name: str) -> SharedAccessPolicy | None:
        """The namespace's policy of that name; None where there is none. Names are compared as they stand."""
        return self._scopes[_NAMESPACE].get(name)

    def audience(self, text: str) -> Audience:
        """What a text that a client sent is an audience of, as the event hubs are now.

        Azure's own examples also write ``sr`` without a scheme: HOST and HOST/HUB. Raises UnauthorizedError.
        """
        return Audience.parse(text, is_own_host=self._is_own_host)

    def authorize(self, token: str, audience: Audience | str, *, now_utc: datetime) -> Grant:
        """Verify a SAS token that a client presents for ``audience``, and say what it allows.

        Hosts are compared where token and audience both name one, which only helps clients that mixed up
        services: every host leads to this namespace, so none gives or takes a right.
        Raises UnauthorizedError with the service's words: MalformedToken, InvalidSignature (wrong key or
        unknown policy, which are not distinguished), ExpiredToken, InvalidAudience. The message never holds
        the token.
        """
        signature = SharedAccessSignature.parse(token)
        wanted = self.audience(audience) if isinstance(audience, str) else audience
        resource = self.audience(signature.resource)
        grant: Grant | None = None
        for scope in (_NAMESPACE, resource.path.partition("/")[0]):
            policy = self._find(scope, signature.key_name)
            for key in (policy or self._nobody).keys:
                # All keys are tried, whichever fits: the time taken reveals nothing about them.
                if signature.is_signed_with(key) and policy is not None and grant is None:
                    grant = Grant(
                        policy.name,
                        resource,
                        policy.claims,
                        signature.expiry,
                        scope,
                        key,
                        signature.resource,
                        self._policy_ids[scope, policy.name],
                    )
        if grant is None:
            raise _invalid_signature()
        if now_utc.timestamp() >= signature.expiry:
            raise UnauthorizedError(
                f"ExpiredToken: The token is expired. Expiration time: '{_format_expiry(signature.expiry)}'.",
                next_step="Create a new token, and check this machine's clock.",
            )
        if not resource.covers(wanted):
            asked = audience if isinstance(audience, str) else f"/{wanted.path}"
            raise UnauthorizedError(
                "InvalidAudience: The authorization header contains a token signed for the wrong audience.",
                next_step=f"The token is for {signature.resource!r}, but the request is for {asked!r}. "
                "For a token without a scheme (HOST or HOST/HUB), HOST must be in the "
                "service's setting host_names.",
            )
        return grant

    def authorize_key(self, name: str, key: str) -> tuple[Grant, ...]:
        """The rights of a peer with a policy's name and one of its keys: one grant per such policy.

        Raises UnauthorizedError where no policy of that name, of the namespace or a hub, has that key.
        """
        grants: list[Grant] = []
        for scope in self._scopes:
            policy = self._find(scope, name)
            for known in (policy or self._nobody).keys:
                if hmac.compare_digest(known.encode(), key.encode()) and policy is not None:
                    resource = Audience("", entity_path(scope) if scope else NAMESPACE)
                    policy_id = self._policy_ids[scope, name]
                    grants.append(
                        Grant(
                            name,
                            resource,
                            policy.claims,
                            NEVER_EXPIRES,
                            scope,
                            known,
                            policy_id=policy_id,
                        )
                    )
        if not grants:
            raise _invalid_signature()
        return tuple(grants)

    def is_in_force(self, grant: Grant) -> bool:
        """Whether the grant's policy still exists (not a later one of the same name), with the key that
        proved it and the same claims, and its token is still for the same: a host's name may have become a
        hub's.
        """
        policy = self._find(grant.scope, grant.policy_name)
        return (
            policy is not None
            and self._policy_ids[grant.scope, grant.policy_name] is grant.policy_id
            and grant.key in policy.keys
            and grant.claims == policy.claims
            and self._is_meant_as_before(grant)
        )

    def set_policies(self, policies: Iterable[SharedAccessPolicy], *, event_hub: str | None = None) -> None:
        """Replace the policies of the namespace, or of an event hub (none: it has none, or is gone).

        Calls the listeners.
        """
        scope = _NAMESPACE if event_hub is None else event_hub.lower()
        by_name = {policy.name: policy for policy in policies}
        before = self._scopes.get(scope, {})
        for name in before.keys() - by_name.keys():
            del self._policy_ids[scope, name]
        for name in by_name.keys() - before.keys():
            self._policy_ids[scope, name] = object()
        if by_name or scope == _NAMESPACE:
            self._scopes[scope] = by_name
        else:
            self._scopes.pop(scope, None)
        self.announce_change()

    def add_change_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change of who may do what; returns what removes it.

        It is called from within the change, and must neither block nor raise.
        """
        return self._listeners.add(listener)

    def announce_change(self) -> None:
        """Call the listeners because something else that admission depends on has changed."""
        self._listeners.call()

    def _is_meant_as_before(self, grant: Grant) -> bool:
        """Whether the audience of its token would be read as it was: all that can change is whether its first
        part is a host of the service."""
        text = grant.resource_text
        if text is None or "://" in text:
            return True
        host = host_of(text.partition("/")[0])
        return (host is not None and self._is_own_host(host)) is bool(grant.resource.host)

    def _is_own_host(self, host: str) -> bool:
        return host in self._host_names and not self._is_event_hub(host)

    def _find(self, scope: str, name: str) -> SharedAccessPolicy | None:
        return self._scopes.get(scope, {}).get(name)


def _invalid_signature() -> InvalidKeyError:
    return InvalidKeyError(
        "InvalidSignature: The token has an invalid signature.",
        next_step="Check SharedAccessKeyName and SharedAccessKey of the connection string.",
    )


def _format_expiry(expiry: int) -> str:
    try:
        return datetime.fromtimestamp(expiry, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(expiry)
