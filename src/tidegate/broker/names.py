"""The naming rules of Event Hubs."""

from __future__ import annotations

import re
from typing import Final

from tidegate.model.audience import is_name_in_paths
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import PUBLISHER_NAME_CHARACTERS_MAX

# Letters, digits, '.', '-', '_', beginning and ending with a letter or digit (Azure "Naming rules and
# restrictions", Microsoft.EventHub, 2026-09).
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def validate_name(name: str, noun: str, characters_max: int) -> None:
    """Raise InvalidArgumentError unless ``name`` follows the naming rules of Event Hubs."""
    if len(name) > characters_max or _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name[:80]!r} is not a valid name for {'an' if noun[0] in 'aeiou' else 'a'} {noun}.",
            next_step=f"Use 1 to {characters_max} letters, digits, '.', '-' or '_', beginning and ending "
            "with a letter or digit.",
        )


def shown_policy_name(given: str) -> str:
    """A policy name from a stranger as a log may show it. People paste keys and connection strings into the
    wrong field; keys in base64 end with ``=``, which no name has."""
    return given[:80] if _NAME.fullmatch(given) is not None else "(not a policy's name)"


def validate_publisher_name(name: str) -> None:
    """Raise InvalidArgumentError unless ``name`` can be a publisher's name in an address."""
    if (
        not 1 <= len(name) <= PUBLISHER_NAME_CHARACTERS_MAX
        or not is_name_in_paths(name)
        or name != name.strip()
    ):
        raise InvalidArgumentError(
            f"{name[:80]!r} is not a valid name for a publisher.",
            next_step=f"Use 1 to {PUBLISHER_NAME_CHARACTERS_MAX} printable characters without '/', "
            "'\\', '%', '?' and '#', no leading or trailing blanks, and not '.' or '..'.",
        )
