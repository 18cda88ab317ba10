"""A configuration file's declarations: event hubs, policies and capacity, as validated values.

``applying`` creates missing entities and changes those that differ; it deletes nothing, and omitted values
(None) stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from tidegate.broker import Claim
from tidegate.broker.entra.issuers import TokenIssuer, check_issuers
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_settings import HubChanges
from tidegate.model.limits import Tier


class Switch(Enum):
    """Used instead of a number or a table to remove a limit or turn a feature off."""

    OFF = "off"


class DeclaredPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy that should exist."""

    name: str
    claims: frozenset[Claim] = frozenset()
    key: str | None = None
    """None: random for a new policy; unchanged for an existing one."""

    def __repr__(self) -> str:
        return f"<DeclaredPolicy {self.name}>"  # without the key


@dataclass(frozen=True, slots=True)
class DeclaredEventHub:
    """An event hub that should exist."""

    name: str
    partition_count: int
    """Fixed at creation: a different number for an existing hub is a conflict."""
    settings: HubChanges = field(default_factory=HubChanges)
    """Omitted settings get their default in a new hub, and stay unchanged in an existing one."""
    consumer_groups: tuple[str, ...] = ()
    """Besides ``$Default``, which every hub has."""
    policies: tuple[DeclaredPolicy, ...] = ()
    """For this hub only."""
    capture: CaptureSettings | Switch | None = None

    def __post_init__(self) -> None:
        _check_distinct("consumer group", self.consumer_groups)
        _check_distinct("policy", (policy.name for policy in self.policies))


@dataclass(frozen=True, slots=True)
class DeclaredNamespace:
    """Everything that a configuration file declares."""

    event_hubs: tuple[DeclaredEventHub, ...] = ()
    policies: tuple[DeclaredPolicy, ...] = ()
    """For the whole namespace."""
    tier: Tier | None = None
    """The tier whose limits apply."""
    throughput_units: int | Switch | None = None
    """OFF: throughput is not limited."""
    token_issuers: tuple[TokenIssuer, ...] = ()
    """Whose JSON Web Tokens are accepted while the service runs with this configuration; not kept."""

    def __post_init__(self) -> None:
        _check_distinct("event hub", (hub.name for hub in self.event_hubs))
        _check_distinct("policy", (policy.name for policy in self.policies))
        check_issuers(self.token_issuers)


def _check_distinct(noun: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InvalidArgumentError(
                f"The {noun} {name!r} is declared twice.", next_step="Names compare without regard to case."
            )
        seen.add(name.lower())
