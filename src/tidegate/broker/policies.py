"""Changes of the policies of a namespace or event hub: pure functions from one tuple to the next."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tidegate.broker.authorization import SharedAccessPolicy, generate_key
from tidegate.broker.claims import Claim
from tidegate.broker.names import validate_name
from tidegate.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    QuotaExceededError,
)
from tidegate.model.limits import (
    POLICIES_MAX,
    POLICY_KEY_BYTES_SAFE,
    POLICY_KEY_CHARACTERS_MAX,
    POLICY_KEY_CHARACTERS_MIN,
    POLICY_NAME_CHARACTERS_MAX,
)

Policies = tuple[SharedAccessPolicy, ...]

EMULATOR_KEY: Final = "SAS_KEY_VALUE"
"""The root key in the connection string that the official emulator documents: publicly known."""

_log: Final = logging.getLogger(__name__)

# It would end the key in a connection string, where blanks at its ends would be lost, too.
_KEY_END: Final = ";"


def find_policy(policies: Policies, name: str) -> SharedAccessPolicy:
    """The policy of that name, which is case-sensitive. Raises NotFoundError."""
    for policy in policies:
        if policy.name == name:
            return policy
    raise NotFoundError(
        f"There is no policy {name[:80]!r}.", next_step="List the policies to see their names."
    )


def add_policy(
    policies: Policies,
    name: str,
    claims: Iterable[Claim],
    *,
    key: str | None,
    secondary_key: str | None,
) -> Policies:
    """Append a policy. Manage includes Send and Listen, as in Azure.

    Raises InvalidArgumentError (name, no claims, a key), AlreadyExistsError (ignoring case),
    QuotaExceededError.
    """
    validate_name(name, "policy", POLICY_NAME_CHARACTERS_MAX)
    wanted = frozenset(claims)
    if not wanted:
        raise InvalidArgumentError(
            f"The policy {name!r} has no claims.", next_step="Use Send, Listen or Manage."
        )
    for given in (key, secondary_key):
        if given is not None:
            _validate_key(given)
    if name.lower() in (policy.name.lower() for policy in policies):
        raise AlreadyExistsError(f"The policy {name!r} already exists.")
    if len(policies) >= POLICIES_MAX:
        raise QuotaExceededError(f"There are {len(policies)} policies, the maximum.")
    if Claim.MANAGE in wanted:
        wanted = frozenset(Claim)
    return (*policies, SharedAccessPolicy.generate(name, wanted, key=key, secondary_key=secondary_key))


def remove_policy(policies: Policies, name: str) -> Policies:
    """Remove a policy. Raises NotFoundError."""
    found = find_policy(policies, name)
    return tuple(policy for policy in policies if policy is not found)


def replace_key(policies: Policies, name: str, *, is_secondary: bool, key: str | None) -> Policies:
    """Replace a key; None is a random one. Raises NotFoundError, InvalidArgumentError (the key)."""
    found = find_policy(policies, name)
    if key is not None:
        _validate_key(key)
    fresh = key if key is not None else generate_key()
    changed = replace(found, secondary_key=fresh) if is_secondary else replace(found, key=fresh)
    return tuple(changed if policy is found else policy for policy in policies)


def warn_of_short_keys(policy: SharedAccessPolicy, event_hub: str | None) -> None:
    """Log a warning for each key that is too short to be safe. event_hub: None for the namespace."""
    for which, key in zip(("primary", "secondary"), policy.keys, strict=True):
        size = len(key.encode())
        # The service checks a publicly known key together with the address that it listens on.
        if size < POLICY_KEY_BYTES_SAFE and key != EMULATOR_KEY:
            _log.warning(
                "the %s key of the policy %s of %s has %d bytes and could be guessed: use "
                "%d or more, or generate one (tidegate policy regenerate)",
                which,
                policy.name,
                event_hub or "the namespace",
                size,
                POLICY_KEY_BYTES_SAFE,
            )


def _validate_key(key: str) -> None:
    is_long_enough = POLICY_KEY_CHARACTERS_MIN <= len(key) <= POLICY_KEY_CHARACTERS_MAX
    if not is_long_enough or not key.isprintable() or _KEY_END in key or key != key.strip():
        # The message may be logged: it must not contain the key.
        raise InvalidArgumentError(
            "Invalid key.",
            next_step=f"Use {POLICY_KEY_CHARACTERS_MIN} to {POLICY_KEY_CHARACTERS_MAX} printable characters "
            "without ';' and without leading or trailing blanks, or omit the key to generate one.",
        )
