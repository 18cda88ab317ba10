"""The rights that policies and roles give."""

from __future__ import annotations

from enum import Enum


class Claim(Enum):
    """A right that a policy gives."""

    __hash__ = object.__hash__  # rights are looked up for each small batch, and ``Enum`` hashes in Python

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"

    @classmethod
    def _missing_(cls, value: object) -> Claim | None:
        return next((each for each in cls if each.value.lower() == str(value).lower()), None)
