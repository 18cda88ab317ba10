"""What a configuration file says there should be: event hubs, policies and capacity, as validated values.

Declared is the least that is there: what is missing is made and what differs is changed (``applying``),
nothing is deleted, and what a declaration leaves out (None) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tidegate.broker import Claim
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_settings import HubChanges
from tidegate.model.limits import Tier


class Switch(Enum):
    """Said in place of a number or a table, to take a limit or a feature away."""

    OFF = "off"


@dataclass(frozen=True, slots=True)
class DeclaredPolicy:
    """A policy that should be there."""

    name: str
    claims: frozenset[Claim]
    key: str | None = field(default=None, repr=False)
    """None: made at random with the policy; the key of a policy that is there stays."""


@dataclass(frozen=True, slots=True)
class DeclaredEventHub:
    """An event hub that should be there."""

    name: str
    partition_count: int
    """Fixed when the hub is made: another number than it has is a conflict."""
    settings: HubChanges = field(default_factory=HubChanges)
    """What is left out is the default for a new hub, and unchanged for one that is there."""
    consumer_groups: tuple[str, ...] = ()
    """Besides ``$Default``, which every hub has."""
    policies: tuple[DeclaredPolicy, ...] = ()
    """For this hub alone."""
    capture: CaptureSettings | Switch | None = None

    def __post_init__(self) -> None:
        _check_distinct("consumer group", self.consumer_groups)
        _check_distinct("policy", (policy.name for policy in self.policies))


@dataclass(frozen=True, slots=True)
class DeclaredNamespace:
    """Everything that a configuration file says should be there; empty where it says nothing."""

    event_hubs: tuple[DeclaredEventHub, ...] = ()
    policies: tuple[DeclaredPolicy, ...] = ()
    """For the whole namespace."""
    tier: Tier | None = None
    """Whose limits the namespace keeps."""
    throughput_units: int | Switch | None = None
    """OFF: throughput is not limited."""

    def __post_init__(self) -> None:
        _check_distinct("event hub", (hub.name for hub in self.event_hubs))
        _check_distinct("policy", (policy.name for policy in self.policies))


def _check_distinct(noun: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InvalidArgumentError(
                f"The {noun} {name!r} is declared twice.", next_step="Names compare without regard to case."
            )
        seen.add(name.lower())
