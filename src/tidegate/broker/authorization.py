"""Shared access policies, and the check of the tokens made with their keys or by issuers of Entra ID.

A key leaves this module only in a ``SharedAccessPolicy`` (for a requested connection string); no repr, log
line or error contains one.

A policy belongs to the namespace or to one event hub. A token names the policy (``skn``) and its audience
(``sr``); it may be signed with either key of the namespace's policy of that name, or of the policy of the hub
in ``sr``. Changes take effect immediately: a grant is valid only while its key is.

The rule: a policy of a hub gives no right outside that hub, whatever the audience of a token. ``Grant``
enforces it for every caller; ``sr`` is parsed once, for both the choice of the policy and its reach.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

from msgspec import Meta

from tidegate.broker.claims import Claim
from tidegate.broker.listeners import Listeners
from tidegate.model.audience import NAMESPACE, Audience, EntityPath, entity_path, lies_in
from tidegate.model.errors import InvalidKeyError, UnauthorizedError
from tidegate.model.hosts import HostNames, host_of
from tidegate.model.limits import POLICIES_MAX, POLICY_KEY_CHARACTERS_MAX
from tidegate.model.sas import SIGNATURE_PREFIX, SharedAccessSignature

if TYPE_CHECKING:
    from tidegate.broker.entra.tokens import EntraTokens

ROOT_POLICY_NAME: Final = "RootManageSharedAccessKey"
"""The policy of every new namespace (Azure "Authorize access with shared access signatures", 2026-09)."""

NEVER_EXPIRES: Final = 253_402_300_799
"""Unix time of the end of the year 9999: a policy's key, unlike a token, does not expire."""

_NAMESPACE: Final = ""
"""The scope of the namespace's own policies; a hub's scope is its name in lower case."""

_KEY_BYTES = 32
_KEY_BYTES_MAX = 4 * POLICY_KEY_CHARACTERS_MAX


def generate_key() -> str:
    """A new random key: 32 bytes, in base64."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


Key = Annotated[str, Meta(min_length=1)]
"""Never empty, also where a file says so: that could be guessed."""


@dataclass(frozen=True, slots=True)
class SharedAccessPolicy:
    """A name with rights and two keys, so that one can be regenerated while clients use the other."""

    name: str
    key: Key = field(repr=False)
    """The primary key: raw UTF-8 key material, as clients put it into their connection string."""
    claims: frozenset[Claim]
    secondary_key: Key = field(default_factory=generate_key, repr=False)
    """Gives the same rights as the primary key."""

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
    """The rights of a verified token, until it expires; see also ``Authorizer.is_in_force``."""

    policy_name: str
    """The policy; for a principal of Entra ID ``entra:ID@ISSUER``, which no policy's name can be."""
    resource: Audience
    """The token's audience; its sub-paths are included."""
    claims: frozenset[Claim]
    expiry: int
    """Unix time in seconds, from which on the grant gives no right."""
    scope: str = ""
    """The event hub of the policy, in lower case; empty for a policy of the namespace."""
    key: str = field(default="", repr=False)
    """The key that proved it."""
    resource_text: str | None = None
    """The unparsed ``resource``; None if a key was given instead of a token."""
    policy_id: object = field(default=None, repr=False, compare=False)
    """Distinguishes the policy from a later one of the same name."""
    names_version: int = field(default=0, repr=False, compare=False)
    """How often a name had become a host's, or a hub's, before."""
    is_of_principal: bool = False
    """Whether an issuer's token proved it: it stays in force until it expires."""

    @property
    def reach(self) -> EntityPath:
        """The namespace, or the policy's event hub. Nothing outside it is ever permitted."""
        return entity_path(self.scope) if self.scope else NAMESPACE

    @property
    def hub(self) -> str:
        """The event hub that the policy or the token is for, in lower case; empty: the whole namespace.

        What a policy of one hub may not do, a token for one hub may not do either, although a policy of the
        namespace signed it.
        """
        return self.scope or self.resource.path.partition("/")[0]

    def permits(self, path: EntityPath, claim: Claim, *, now_utc: datetime) -> bool:
        """Whether the grant includes ``claim`` on the entity at ``path`` now."""
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
        """policies: of the namespace; those of hubs are added by ``set_policies``.

        is_event_hub: whether an event hub of that name exists now, ignoring case.
        """
        self._host_names = HostNames()
        self._names_version = 0  # see ``Grant.names_version``
        self.revision = 0
        """Grows with each change of rights, before the listeners are called."""
        self._is_event_hub = is_event_hub
        self._scopes: dict[str, dict[str, SharedAccessPolicy]] = {_NAMESPACE: {}}
        self._policy_ids: dict[tuple[str, str], object] = {}
        self._secret = secrets.token_bytes(32)
        self._scopes_of_keys: dict[bytes, dict[str, None]] = {}
        """By fingerprint: a wrong key is compared with none of any number of hubs."""
        # Checked instead of a policy that does not exist, so that this takes no less time.
        self._nobody = SharedAccessPolicy.generate("", ())
        self._listeners = Listeners("who may do what")
        self.entra: EntraTokens | None = None
        """Whose JSON Web Tokens are accepted beside signatures; None: only signatures are."""
        self.set_policies(policies)

    @property
    def policies(self) -> tuple[SharedAccessPolicy, ...]:
        """The policies of the namespace, in the order of the catalog."""
        return tuple(self._scopes[_NAMESPACE].values())

    @property
    def host_names(self) -> HostNames:
        """The service's names. An audience without a scheme may begin with one that no event hub has."""
        return self._host_names

    def set_host_names(self, names: HostNames) -> None:
        """Replace the names of the service. Calls the listeners if they differ."""
        if names != self._host_names:
            self._host_names = names
            self.announce_new_name()

    def policy(self, name: str) -> SharedAccessPolicy | None:
        """The namespace's policy of that name, which is case-sensitive; None if there is none."""
        return self._scopes[_NAMESPACE].get(name)

    def audience(self, text: str) -> Audience:
        """Parse an audience. Azure's own examples also write ``sr`` without a scheme: HOST and HOST/HUB.

        Such a text is ambiguous while an event hub has HOST's name. If it meant the hub then, a token for
        that hub would be one for the namespace as soon as the hub is deleted. Raises UnauthorizedError.
        """
        found = Audience.parse(text, is_own_host=self._host_names.__contains__)
        if found.host and "://" not in text and self._is_event_hub(found.host):
            raise UnauthorizedError(
                f"InvalidAudience: The audience {text[:200]!r} begins with a name that both the service and "
                "an event hub have.",
                next_step="Create the token for sb://HOST, or for sb://HOST/HUB.",
            )
        return found

    def is_signature(self, token: str) -> bool:
        """Whether a token is checked as a shared access signature, and not as a JSON Web Token."""
        return self.entra is None or token.startswith(SIGNATURE_PREFIX)

    def authorize(self, token: str, audience: Audience | str, *, now_utc: datetime) -> Grant:
        """Verify a client's SAS token or JSON Web Token for ``audience``, and return its rights.

        Hosts are compared if token and audience both have one, only to help clients that mixed up services:
        every host leads to this namespace.
        Raises UnauthorizedError, worded as by Event Hubs: MalformedToken, InvalidSignature (wrong key or
        unknown policy), ExpiredToken, InvalidAudience. The message never contains the token.
        """
        wanted = self.audience(audience) if isinstance(audience, str) else audience
        if self.entra is not None and not self.is_signature(token):
            return _grant_of_principal(self.entra, token, wanted, now_utc)
        signature = SharedAccessSignature.parse(token)
        resource = self.audience(signature.resource)
        grant: Grant | None = None
        for scope in (_NAMESPACE, resource.path.partition("/")[0]):
            policy = self._find(scope, signature.key_name)
            for key in (policy or self._nobody).keys:
                # All keys are tried, even after a match: the time reveals nothing about them.
                if signature.is_signed_with(key) and policy is not None and grant is None:
                    grant = self._grant(policy, scope, key, resource, signature.expiry, signature.resource)
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

        Raises UnauthorizedError if no policy of that name, of the namespace or a hub, has that key.
        """
        grants: list[Grant] = []
        if len(key.encode()) > _KEY_BYTES_MAX:
            raise _invalid_signature()
        for scope in self._scopes_of_keys.get(self._fingerprint(name, key), ()):
            policy = self._scopes[scope][name]
            resource = Audience("", entity_path(scope) if scope else NAMESPACE)
            grants.append(self._grant(policy, scope, key, resource, NEVER_EXPIRES, None))
        if not grants:
            raise _invalid_signature()
        return tuple(grants)

    def authorize_signature(
        self, event_hubs: Iterable[str | None], is_signed_with: Callable[[str], bool]
    ) -> tuple[Grant, ...]:
        """The rights of a peer whose signature names no policy: one grant per policy whose key made it.

        event_hubs: whose policies count; None: the namespace's. is_signed_with: whether a policy's key made
        the signature. Raises InvalidKeyError, also if there is no such event hub.
        """
        grants: list[Grant] = []
        for scope in (_NAMESPACE if each is None else each.lower() for each in event_hubs):
            policies = [*self._scopes.get(scope, {}).values()]
            # As in ``authorize``, all keys are tried, and as many for each hub: what is signed may be long,
            # and the time of a refusal would say whether there is such a hub.
            policies += [self._nobody] * (POLICIES_MAX - len(policies) if scope else 0)
            for policy in policies:
                for key in policy.keys:
                    if is_signed_with(key) and policy is not self._nobody:
                        resource = Audience("", entity_path(scope) if scope else NAMESPACE)
                        grants.append(self._grant(policy, scope, key, resource, NEVER_EXPIRES, None))
        if not grants:
            raise _invalid_signature()
        return tuple(grants)

    def is_in_force(self, grant: Grant) -> bool:
        """Whether the grant's policy still exists (not a later one of the same name) with the same key and
        claims, and its token still has the same audience: a host's name may have become a hub's."""
        if grant.is_of_principal:
            return True  # its roles are settings, which do not change while the service runs
        policy = self._find(grant.scope, grant.policy_name)
        return (
            policy is not None
            and self._policy_ids[grant.scope, grant.policy_name] is grant.policy_id
            and grant.key in policy.keys
            and grant.claims == policy.claims
            and self._is_meant_as_before(grant)
        )

    def set_policies(self, policies: Iterable[SharedAccessPolicy], *, event_hub: str | None = None) -> None:
        """Replace the policies of the namespace, or of an event hub. Calls the listeners."""
        scope = _NAMESPACE if event_hub is None else event_hub.lower()
        by_name = {policy.name: policy for policy in policies}
        before = self._scopes.get(scope, {})
        for name in before.keys() - by_name.keys():
            del self._policy_ids[scope, name]
        for name in by_name.keys() - before.keys():
            self._policy_ids[scope, name] = object()
        self._index_keys(scope, before.values(), by_name.values())
        if by_name or scope == _NAMESPACE:
            self._scopes[scope] = by_name
        else:
            self._scopes.pop(scope, None)
        self.announce_change()

    def add_change_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change of rights; returns a function that removes it.

        It is called from within the change, and must neither block nor raise.
        """
        return self._listeners.add(listener)

    def announce_new_name(self) -> None:
        """Call the listeners, because a name has become a host's, or an event hub's that is a host's."""
        self._names_version += 1
        self.announce_change()

    def announce_change(self) -> None:
        """Call the listeners, because something else that rights depend on has changed."""
        self.revision += 1
        self._listeners.call()

    def _index_keys(
        self, scope: str, before: Iterable[SharedAccessPolicy], now: Iterable[SharedAccessPolicy]
    ) -> None:
        for policy in before:
            for fingerprint in {self._fingerprint(policy.name, key) for key in policy.keys}:
                scopes = self._scopes_of_keys[fingerprint]
                del scopes[scope]
                if not scopes:
                    del self._scopes_of_keys[fingerprint]
        for policy in now:
            for key in policy.keys:
                self._scopes_of_keys.setdefault(self._fingerprint(policy.name, key), {})[scope] = None

    def _fingerprint(self, name: str, key: str) -> bytes:
        """Of a policy's name and key, with a secret: how long the search takes shows nothing of the key."""
        return hmac.digest(self._secret, f"{name}\0{key}".encode(), "sha256")

    def _is_meant_as_before(self, grant: Grant) -> bool:
        """Whether the token's audience would be parsed as before: its first part may have become a host of
        the service, or a hub. A connection may have thousands of long audiences, so only that part is looked
        at, and only if there was such a change."""
        text = grant.resource_text
        if text is None or grant.names_version == self._names_version or "://" in text:
            return True
        host = host_of(text.partition("/")[0])
        if host is None or host not in self._host_names:
            return not grant.resource.host
        return grant.resource.host == host and not self._is_event_hub(host)

    def _grant(
        self,
        policy: SharedAccessPolicy,
        scope: str,
        key: str,
        resource: Audience,
        expiry: int,
        resource_text: str | None,
    ) -> Grant:
        policy_id = self._policy_ids[scope, policy.name]
        return Grant(
            policy.name,
            resource,
            policy.claims,
            expiry,
            scope,
            key,
            resource_text,
            policy_id=policy_id,
            names_version=self._names_version,
        )

    def _find(self, scope: str, name: str) -> SharedAccessPolicy | None:
        return self._scopes.get(scope, {}).get(name)


def _grant_of_principal(entra: EntraTokens, token: str, wanted: Audience, now_utc: datetime) -> Grant:
    principal = entra.verify(token, now_utc=now_utc)
    hub = wanted.path.partition("/")[0]
    claims, reach = principal.claims_on(hub)
    if not claims:
        raise UnauthorizedError(
            f"Unauthorized access. The principal {principal.name!r} has no role on "
            f"{f'the event hub {hub!r}' if hub else 'the namespace'}.",
            next_step="Assign one to it in the service's token_issuers, or by `tidegate token entra`.",
        )
    # All that its roles reach, and not only ``wanted``: no audience is in the token.
    resource = Audience("", entity_path(reach) if reach else NAMESPACE)
    # Quoted, because the audit trail joins names with ", ", and an issuer may sign any text as a subject.
    name = f"entra:{quote(principal.name, safe=':/', errors='surrogatepass')}@{principal.issuer}"
    return Grant(name, resource, claims, principal.expiry, reach, is_of_principal=True)


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
