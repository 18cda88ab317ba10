"""Shared by forms: text fields, and numbers in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from starlette.datastructures import FormData

from tidegate.model.errors import InvalidArgumentError, TidegateError

_DIGITS_MAX = 19

Fields = dict[str, str]


class Form(NamedTuple):
    """A form as the user left it."""

    fields: Fields
    """Missing ones have their defaults."""
    problem: TidegateError | None = None
    """Why it was refused."""


EMPTY_FORM: Final = Form({})


class FieldError(InvalidArgumentError):
    """An invalid field of a form; ``field`` names it."""

    def __init__(self, field: str, message: str, *, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.field = field


def texts_of(form: FormData) -> dict[str, str]:
    """The text fields of a form, stripped of blanks."""
    return {name: value.strip() for name, value in form.items() if isinstance(value, str)}


def whole_number(fields: Mapping[str, str], field: str, noun: str) -> int:
    """A field's number. Raises FieldError."""
    found = optional_number(fields, field, noun)
    if found is None:
        raise FieldError(field, f"{noun} is missing.")
    return found


def optional_number(
    fields: Mapping[str, str], field: str, noun: str, *, allowed: str = "an integer, 0 or more"
) -> int | None:
    """A field's number, None if empty; digits may be grouped. allowed: for errors. Raises FieldError."""
    text = fields.get(field, "").replace(",", "").replace(" ", "").replace("\u202f", "")
    if not text:
        return None
    if (found := digits_of(text, _DIGITS_MAX)) is None:
        raise FieldError(field, f"{noun} is {fields[field][:40]!r}.", next_step=f"Enter {allowed}.")
    return found


def check_name(given: str, name: str) -> None:
    """Raise FieldError unless the user wrote the name of what is to be deleted."""
    if given != name:
        raise FieldError(
            "name", f"The name does not match: {given[:80]!r}.", next_step=f"Enter {name} to delete it."
        )


def start_of(text: str | None) -> int:
    """The start of a page of a list, from a URL; 0 for anything but a number."""
    return digits_of(text or "", 9) or 0


def digits_of(text: str, digits_max: int = 18) -> int | None:
    """The number that ASCII digits, ``digits_max`` at most, stand for; None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= digits_max
    return int(text) if is_number else None


def sequence_number_of(text: str) -> int:
    """A field's sequence number. Raises InvalidArgumentError."""
    if (found := digits_of(text)) is None:
        raise InvalidArgumentError(
            f"{text[:40]!r} is not a sequence number.", next_step="Enter a number, 0 or more."
        )
    return found
