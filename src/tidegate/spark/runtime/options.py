"""Declares the options of the formats: a class per source or sink, and a field per value.

    fail_on_data_loss: bool = option(flag(True), "eventhubs.failOnDataLoss")

A declaration names the option (or several that make one value) and what reads it: the type, the default, the
error. Spark passes options with lower-cased names and string values. Unknown names are refused, because a
misspelt ``maxEventsPerTriger`` that is silently ignored is hard to find.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError

T = TypeVar("T")
D = TypeVar("D")

Given = Mapping[str, str]
"""The given options, by the names in their declarations."""

PREFIX: Final = "eventhubs."
OPTIONS_OF_SPARK: Final = ("checkpointlocation", "path", "queryname")
"""Options that Spark adds to a sink's."""


def short_name(name: str) -> str:
    """An option's name in lower case, without ``eventhubs.``."""
    return name.lower().removeprefix(PREFIX)


def check_appends(overwrite: bool, subject: str, *, is_stream: bool) -> None:
    """Raise InvalidArgumentError for a save or output mode that overwrites."""
    if overwrite:
        mode = ".outputMode" if is_stream else ".mode"
        raise InvalidArgumentError(f"{subject} can only append.", next_step=f'Use {mode}("append").')


def option(read: Callable[..., T], *names: str, is_secret: bool = False) -> T:
    """Declare a field of a dataclass of options.

    read: gets the given options and ``names``, returns the field's value, and raises InvalidArgumentError
    naming the option at fault. is_secret: keep it out of the ``repr``.
    """
    return cast(T, field(metadata={"read": read, "names": names}, repr=not is_secret))


def option_names(kind: type) -> tuple[str, ...]:
    """The options that a class declares."""
    return tuple(dict.fromkeys(name for item in fields(kind) for name in item.metadata.get("names", ())))


def read_options(
    kind: Callable[..., T], options: Mapping[str, str], *, subject: str, ignored: Collection[str] = ()
) -> T:
    """An instance of a class of options (names in any letter case, with or without ``eventhubs.``).

    subject: what has the options, to begin an error: ``The format eventhubs``. ignored: short names to leave
    out. Raises InvalidArgumentError for an unknown name, two values for one option, or an invalid value.
    """
    known = option_names(cast(type, kind))
    names = {short_name(name): name for name in known}
    given: dict[str, str] = {}
    for raw_name, value in options.items():
        short = short_name(raw_name)
        if short in ignored:
            continue
        if short not in names:
            close = get_close_matches(short, names, 1)
            meant = f"Did you mean {names[close[0]]}? " if close else ""
            raise InvalidArgumentError(
                f"{subject} has no option {raw_name!r}.",
                next_step=f"{meant}Its options are {', '.join(known)} (in any letter case, which Spark makes "
                f"lower; `{PREFIX}` is optional).",
            )
        if given.setdefault(names[short], value) != value:
            raise InvalidArgumentError(
                f"The option {names[short]} is given twice, with different values.", next_step="Give it once."
            )
    declared = [item for item in fields(cast(Any, kind)) if item.metadata]
    return kind(**{item.name: item.metadata["read"](given, *item.metadata["names"]) for item in declared})


def text(default: D) -> Callable[[Given, str], str | D]:
    """Reads any text."""
    return lambda given, option: given.get(option, default)


def positive_integer(given: Given, option: str) -> int | None:
    """Reads an integer of at least 1; None if it is not given."""
    value = given.get(option)
    if value is None:
        return None
    if not value.strip().isascii() or not value.strip().isdigit() or int(value) == 0:
        raise InvalidArgumentError(f"The option {option} must be an integer of at least 1, not {value!r}.")
    return int(value)


def flag(default: D) -> Callable[[Given, str], bool | D]:
    """Reads ``true`` or ``false``, in any letter case."""

    def read(given: Given, option: str) -> bool | D:
        value = given.get(option)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise InvalidArgumentError(f"The option {option} must be true or false, not {value!r}.")
        return value.strip().lower() == "true"

    return read


def aware_time(option: str, text: str) -> datetime:
    """Reads a time in ISO 8601 with its zone. option: for errors."""
    hint = "Write it as 2026-11-20T12:00:00Z."
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"The option {option} is not a time: {text!r}.", next_step=hint) from None
    if time.tzinfo is None:
        raise InvalidArgumentError(f"The option {option} has no time zone: {text!r}.", next_step=hint)
    return time


HUB_OPTIONS: Final = ("eventhubs.connectionString", "eventhubs.eventHubName")
"""The options that say which event hub."""


def connection_string_of(given: Given, *_: str) -> ConnectionString:
    """Reads the connection string, with the event hub in ``entity_path``.

    Raises InvalidArgumentError; ConnectionStringError for the string itself.
    """
    value = given.get("eventhubs.connectionString")
    if value is None:
        raise InvalidArgumentError(
            "The option eventhubs.connectionString is missing.",
            next_step="Copy the one that `tidegate serve` prints, or the one in Azure's portal.",
        )
    parsed = ConnectionString.parse(value)
    name = given.get("eventhubs.eventHubName")
    if name is not None and parsed.entity_path is not None and name.lower() != parsed.entity_path.lower():
        raise InvalidArgumentError(
            f"The option eventhubs.eventHubName is {name!r}, but the connection string's EntityPath is "
            f"{parsed.entity_path!r}.",
            next_step="Leave one of the two out.",
        )
    hub = parsed.entity_path or name
    if not hub:
        raise InvalidArgumentError(
            "No event hub is named.",
            next_step="Add `;EntityPath=HUB` to the connection string, or set the option "
            "eventhubs.eventHubName.",
        )
    return parsed.with_entity_path(hub)


def read_certificates(given: Given, option: str) -> str | None:
    """The content of the file that an option names; None if it is not given. Raises InvalidArgumentError."""
    path = given.get(option)
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as exc:
        why = "there is no such file" if isinstance(exc, FileNotFoundError) else "it cannot be read as PEM"
        raise InvalidArgumentError(f"The option {option} is {path!r}, but {why}.") from exc


def credential_of(given: Given, option: str) -> str | None:
    """Reads ``MODULE:NAME`` of a credential factory; None if it is not given."""
    value = given.get(option)
    if value is None:
        return None
    if not all(part.isidentifier() for part in value.replace(":", ".").split(".")) or value.count(":") != 1:
        raise InvalidArgumentError(
            f"The option {option} is {value!r}.",
            next_step="Write MODULE:NAME of a class or function without arguments that returns a credential, "
            "such as azure.identity.aio:DefaultAzureCredential.",
        )
    connection_string = connection_string_of(given)
    if connection_string.shared_access_key or connection_string.shared_access_signature:
        raise InvalidArgumentError(
            f"The option {option} is given, but the connection string holds a key or a signature.",
            next_step="Leave one of the two out; with a credential, Endpoint and EntityPath are enough.",
        )
    return value


_STORAGE_ARGUMENTS: Final = {
    "storageConnectionString": "connection_string",
    "storageAccessKey": "account_key",
    "storageToken": "sas_token",
}
"""Options → arguments of the file system's library, by adlfs's names."""
STORAGE_OPTIONS: Final = (*_STORAGE_ARGUMENTS, "storageOptions")
"""The options for the file system's library, which may hold secrets."""


def storage_path(given: Given, option: str) -> str:
    """Reads a directory, or a URL that fsspec supports, without credentials."""
    path = given.get(option, "").strip()
    if not path:
        raise InvalidArgumentError(
            f"The option {option} is missing.",
            next_step="Set it to a directory, or to a URL such as az://container/folder.",
        )
    scheme, separator, rest = path.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0] if separator else ""
    if separator and (not scheme or "?" in path or ":" in user):
        # Do not repeat it, because it may contain a signature or a password.
        raise InvalidArgumentError(
            f"The option {option} is a URL with a query or a password.",
            next_step="Pass credentials in storageConnectionString, storageAccessKey, storageToken or "
            "storageOptions.",
        )
    return path.rstrip("/") or "/"


def storage_options(given: Given, *_: str) -> dict[str, object]:
    """Reads ``STORAGE_OPTIONS`` as arguments for the file system's library."""
    try:
        found: object = json.loads(given.get("storageOptions", "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidArgumentError(
            "The option storageOptions is not a JSON object.",
            next_step='Write it as {"account_name": "…", "account_key": "…"}, with the argument names of '
            "fsspec's file system.",
        )
    return found | {name: given[option] for option, name in _STORAGE_ARGUMENTS.items() if option in given}
