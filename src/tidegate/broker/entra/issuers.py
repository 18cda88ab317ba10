"""Whom the service trusts to name its users, and which roles those have.

Azure keeps role assignments beside the token (Azure RBAC), so they are declared here, too: a role, who has it
(the object id of a user, service principal or managed identity, or of a group), and on what.
Source: Azure "Authorize access to Event Hubs resources using Microsoft Entra ID" (2026-09).
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

from tidegate.broker.claims import Claim
from tidegate.model.errors import InvalidArgumentError

AUDIENCE_DEFAULT: Final = "https://eventhubs.azure.net"
"""What the official SDKs ask tokens for, with or without a slash at its end (azure-eventhub 5.15.1)."""

_PREFIX: Final = "Azure Event Hubs "


class Role(Enum):
    """Azure's built-in roles for Event Hubs; in configuration also without ``Azure Event Hubs``."""

    SENDER = "Azure Event Hubs Data Sender"
    RECEIVER = "Azure Event Hubs Data Receiver"
    OWNER = "Azure Event Hubs Data Owner"

    @classmethod
    def _missing_(cls, value: object) -> Role | None:
        wanted = str(value).removeprefix(_PREFIX).lower()
        return next((each for each in cls if each.value.removeprefix(_PREFIX).lower() == wanted), None)

    @property
    def claims(self) -> frozenset[Claim]:
        """The rights that the role gives."""
        return _CLAIMS[self]


_CLAIMS: Final = {
    Role.SENDER: frozenset({Claim.SEND}),
    Role.RECEIVER: frozenset({Claim.LISTEN}),
    Role.OWNER: frozenset(Claim),
}

Text = Annotated[str, Meta(min_length=1, max_length=256)]


class RoleAssignment(Struct, frozen=True, forbid_unknown_fields=True):
    """Who has a role on the namespace or on one event hub."""

    role: Role
    principal: Text | None = None
    """The token's ``oid`` or ``sub``, compared exactly."""
    group: Text | None = None
    """Instead of a principal: a value of the claim ``groups``. Apart, as a user may choose a group's name."""
    app_role: Text | None = None
    """Instead of both: a value of the claim ``roles``, which an application's registration defines."""
    event_hub: Text | None = None
    """None: the whole namespace."""


class TokenIssuer(Struct, frozen=True, forbid_unknown_fields=True):
    """An issuer whose tokens are accepted."""

    issuer: Text
    """The claim ``iss`` of its tokens, such as ``https://sts.windows.net/TENANT/``. Its keys are found by
    OpenID discovery below this address unless ``keys`` or ``discovery`` is given."""
    discovery: Text | None = None
    """Address of its OpenID configuration, if that is elsewhere."""
    keys: Path | None = None
    """File with its public keys, as a JSON Web Key Set; read again every hour."""
    audiences: Annotated[tuple[Text, ...], Meta(min_length=1)] = (AUDIENCE_DEFAULT,)
    """Of which a token must be for one; a slash at the end does not matter."""
    roles: tuple[RoleAssignment, ...] = ()
    are_roles_in_tokens: bool = False
    """Whether the claim ``roles`` itself assigns: ``Azure Event Hubs Data Sender`` on the namespace, the same
    with ``@HUB`` on one event hub. Only for an issuer that writes what you decide."""


def assignments_in(roles: object) -> list[RoleAssignment]:
    """The assignments in the claim ``roles`` of a token; other values are ignored."""
    found = []
    for each in roles if isinstance(roles, list) else ():
        name, _, hub = str(each).partition("@")
        if name in {role.value for role in Role} and (hub or "@" not in str(each)):
            found.append(RoleAssignment(Role(name), event_hub=hub or None))
    return found


def check_issuers(issuers: tuple[TokenIssuer, ...]) -> None:
    """Raise InvalidArgumentError if one is declared twice, or does not say who has a role."""
    names = [each.issuer for each in issuers]
    for each in issuers:
        if names.count(each.issuer) > 1:
            raise InvalidArgumentError(f"The token issuer {each.issuer!r} is declared twice.")
        if not each.roles and not each.are_roles_in_tokens:
            raise InvalidArgumentError(
                f"No principal of the token issuer {each.issuer!r} has a role.",
                next_step="Declare its roles: role, principal or group and, for one event hub, event_hub.",
            )
        if any((role.principal, role.group, role.app_role).count(None) != 2 for role in each.roles):
            raise InvalidArgumentError(
                f"A role of the token issuer {each.issuer!r} has not one of principal, group and app_role.",
                next_step="Give the object id of a principal or of a group, or an application role.",
            )
