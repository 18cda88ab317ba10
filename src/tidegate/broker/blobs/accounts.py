"""The storage accounts of a namespace. They need not be created: they follow from the names of event hubs.

    blob                 of the namespace: its policies' keys open it
    HUB.blob             of an event hub: its policies' keys open it, and those of the namespace
    devstoreaccount1     the development account of Azurite, whose key is public

These are the first part of a path in HTTP, where event hubs have their names; so no hub may have such a name.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from enum import Enum
from typing import Final

DEVELOPMENT_ACCOUNT: Final = "devstoreaccount1"
DEVELOPMENT_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Name and key of the account that every program knows (Azure "Use the Azurite emulator", 2026-09)."""

NAMESPACE_ACCOUNT_ID: Final = "namespace"
DEVELOPMENT_ACCOUNT_ID: Final = "development"
"""Ids of the accounts that are of no hub; another one's is its hub's."""

_NAMESPACE_ACCOUNT: Final = "blob"
_SUFFIX: Final = ".blob"


class DevelopmentAccount(Enum):
    """Who may use the development account."""

    OFF = "off"
    THIS_MACHINE = "this-machine"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class AccountName:
    """An account as a request names it; whether there is such an event hub is another question."""

    text: str
    """As spelled, which signatures contain."""
    event_hub: str | None
    """None: of the namespace, or the development account."""
    is_development: bool = False


def parse_account(name: str) -> AccountName | None:
    """The account of that name, ignoring case; None if no account can have it."""
    lower = name.lower()
    if not name.isascii():
        return None
    if lower == DEVELOPMENT_ACCOUNT:
        return AccountName(name, None, is_development=True)
    if lower == _NAMESPACE_ACCOUNT:
        return AccountName(name, None)
    if lower.endswith(_SUFFIX) and len(lower) > len(_SUFFIX):
        return AccountName(name, lower.removesuffix(_SUFFIX))
    return None


def account_name(event_hub: str | None) -> str:
    """The account of an event hub, or (None) of the namespace."""
    return _NAMESPACE_ACCOUNT if event_hub is None else f"{event_hub}{_SUFFIX}"


def account_of(account_id: str, event_hub: str) -> str:
    """The name of an account that has to do with an event hub."""
    if account_id == DEVELOPMENT_ACCOUNT_ID:
        return DEVELOPMENT_ACCOUNT
    return account_name(None if account_id == NAMESPACE_ACCOUNT_ID else event_hub)


def signing_key(policy_key: str) -> bytes:
    """What signs: the policy's key as bytes, from base64 where it is written so, as generated ones are.

    ``AccountKey`` in a connection string is the base64 of this, so it is the policy's key itself if that is
    base64 (``account_key``).
    """
    try:
        decoded = base64.b64decode(policy_key, validate=True)
    except (binascii.Error, ValueError):
        return policy_key.encode()
    return decoded if decoded and base64.b64encode(decoded).decode() == policy_key else policy_key.encode()


def account_key(policy_key: str) -> str:
    """``AccountKey`` of a connection string, for a policy's key."""
    return base64.b64encode(signing_key(policy_key)).decode()
