"""The settings of an event hub, declared once.

The rule: a setting is declared here, and used where it has its effect. The catalog, ``$management``, HTTP and
its OpenAPI document, the client, the configuration file, the command line and the console read names, types,
limits and sentences from ``HUB_SETTINGS``, and pass values as ``HubChanges`` and ``HubSettings``.

A new setting is one entry in each of the three below, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypedDict, cast

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import (
    EVENT_BYTES_MIN,
    RETENTION_BYTES_MAX,
    USER_METADATA_CHARACTERS_MAX,
    TierLimits,
)

PARTITION_COUNT_DEFAULT: Final = 4
"""Partitions of a hub created without a number (our choice). The number is fixed at creation, so it is not a
setting."""

_CONTROL: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold (XML 1.0 section 2.2), and the carriage return, which XML does not
preserve."""


class HubChanges(TypedDict, total=False):
    """Settings to change: an omitted one keeps its value, None restores the default."""

    retention_hours: int | None
    """Hours to keep events; None: the tier's default."""
    retention_bytes: int | None
    """Bytes to keep per partition; None: no limit."""
    event_bytes_max: int | None
    """Maximum size of an event or batch, in bytes; None: the tier's limit."""
    user_metadata: str | None
    """A note of people or tools about the hub, such as its owner; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """The settings of an event hub; descriptions of a hub begin with them."""

    retention_hours: int | None = None
    """Hours to keep events; None if the service does not report it (Azure)."""
    retention_bytes: int | None = None
    """Bytes to keep per partition; None: no limit, or not reported."""
    event_bytes_max: int | None = None
    """Maximum size of an event or batch, in bytes; None if the service does not report it."""
    user_metadata: str | None = None
    """A note of people or tools about the hub, such as its owner; None: nothing, or not reported."""

    def settings(self) -> HubChanges:
        """Every setting by name, in the form that a change of the hub accepts."""
        return cast(HubChanges, {setting.name: getattr(self, setting.name) for setting in HUB_SETTINGS})


@dataclass(frozen=True, slots=True)
class HubSetting:
    """The declaration of one setting."""

    name: str
    kind: type[int] | type[str]
    sentence: str
    """What it is, without a full stop."""
    default: str
    """What None means."""
    noun: str
    """What the error of an HTML form calls it."""
    unit: str
    """The unit that an error names after the number: of the value, or of a string's characters."""
    minimum: int
    maximum: int | Callable[[TierLimits], int]
    """The largest number, or the most characters of a string; by tier if tiers differ."""
    note: str = ""
    """What the command line adds to the sentence."""
    default_value: Callable[[TierLimits], int] | None = None
    """The value stored for None; without it, None is stored."""
    is_nullable: bool = False
    """Whether a hub's description may have None."""
    has_off: bool = False
    """Whether ``off`` means None."""

    def maximum_of(self, limits: TierLimits) -> int:
        return self.maximum if isinstance(self.maximum, int) else self.maximum(limits)

    def read(self, value: object) -> int | str | None:
        """A value given by a user; of a string, without blanks at its ends.

        Raises InvalidArgumentError for a wrong type, and for a string with control characters.
        """
        if value is None:
            return None
        if not isinstance(value, self.kind) or isinstance(value, bool):
            wanted = "an integer" if self.kind is int else "a string"
            raise InvalidArgumentError(f"{self.name} must be {wanted}, got {type(value).__name__}.")
        if not isinstance(value, str):
            return self.kind(value)
        # Windows ends a line with two characters; forms and XML would return one.
        text = value.replace("\r\n", "\n").strip()
        if control := _CONTROL.search(text):
            raise InvalidArgumentError(f"{self.name} has the control character {control[0]!r}.")
        return text

    def resolve(self, value: object, limits: TierLimits) -> int | str | None:
        """The value to store; None for an empty string.

        Raises InvalidArgumentError for a number or length out of range, and as ``read``.
        """
        found = self.read(value)
        if found is None or found == "":
            return None if self.default_value is None else self.default_value(limits)
        size, maximum = len(found) if isinstance(found, str) else found, self.maximum_of(limits)
        if not self.minimum <= size <= maximum:
            none = ", or none" if self.is_nullable else ""
            raise InvalidArgumentError(
                f"{str(size)[:40]} {self.unit}; {self.minimum} to {maximum} are allowed{none}."
            )
        return found


HUB_SETTINGS: Final = (
    HubSetting(
        name="retention_hours",
        kind=int,
        sentence="Hours to keep events",
        default="the tier's default",
        noun="The retention",
        unit="hours",
        minimum=1,
        maximum=lambda limits: limits.retention_hours_max,
        default_value=lambda limits: limits.retention_hours_default,
    ),
    HubSetting(
        name="retention_bytes",
        kind=int,
        sentence="Bytes to keep per partition",
        default="no limit",
        noun="The size of a partition",
        unit="bytes of retention",
        minimum=1,
        maximum=RETENTION_BYTES_MAX,
        note="deleted in segments of 128 MiB",
        is_nullable=True,
        has_off=True,
    ),
    HubSetting(
        name="event_bytes_max",
        kind=int,
        sentence="Maximum size of an event or batch, in bytes",
        default="the tier's limit",
        noun="The largest event",
        unit="bytes as the maximum event size",
        minimum=EVENT_BYTES_MIN,
        maximum=lambda limits: limits.event_bytes_max,
        has_off=True,
    ),
    HubSetting(
        name="user_metadata",
        kind=str,
        sentence="What people or tools note about the hub",
        default="nothing",
        noun="The note",
        unit="characters of user metadata",
        minimum=0,
        maximum=USER_METADATA_CHARACTERS_MAX,
        is_nullable=True,
    ),
)
"""Every setting, in the order of display."""


def hub_changes_in(values: Mapping[str, object]) -> HubChanges:
    """The settings among ``values``. Raises InvalidArgumentError for a wrong type."""
    found = {each.name: each.read(values[each.name]) for each in HUB_SETTINGS if each.name in values}
    return cast(HubChanges, found)


def checked_changes(changes: HubChanges) -> HubChanges:
    """Settings passed as keyword arguments.

    Raises TypeError for an unknown name, as functions do, and InvalidArgumentError as ``hub_changes_in``.
    """
    known = {setting.name for setting in HUB_SETTINGS}
    if unknown := [name for name in changes if name not in known]:
        raise TypeError(f"There is no setting {unknown[0]!r} of an event hub.")
    return hub_changes_in({**changes})
