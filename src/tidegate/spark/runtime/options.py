"""The option names and value checks that all formats share.

Spark passes options with lower-cased names and string values. Unknown names are refused, because a misspelt
``maxEventsPerTriger`` that is silently ignored is hard to find.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final, overload

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError

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


def known_options(
    options: Mapping[str, str], known: Sequence[str], *, subject: str, ignored: Collection[str] = ()
) -> dict[str, str]:
    """The given options (any letter case, with or without ``eventhubs.``) by their names in ``known``.

    subject: what has the options, to begin an error: ``The format eventhubs``. ignored: short names to leave
    out. Raises InvalidArgumentError for an unknown name, or two values for one option.
    """
    names = {short_name(name): name for name in known}
    given: dict[str, str] = {}
    for raw_name, value in options.items():
        short = short_name(raw_name)
        if short in ignored:
            continue
        if short not in names:
            raise InvalidArgumentError(
                f"{subject} has no option {raw_name!r}.",
                next_step=f"Its options are {', '.join(known)} (in any letter case, `{PREFIX}` is optional).",
            )
        if given.setdefault(names[short], value) != value:
            raise InvalidArgumentError(
                f"The option {names[short]} is given twice, with different values.", next_step="Give it once."
            )
    return given


def positive_integer(given: Mapping[str, str], option: str) -> int | None:
    """An integer of at least 1; None if it is not given. Raises InvalidArgumentError."""
    text = given.get(option)
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) == 0:
        raise InvalidArgumentError(f"The option {option} must be an integer of at least 1, not {text!r}.")
    return int(text)


@overload
def boolean(given: Mapping[str, str], option: str, *, default: bool) -> bool: ...
@overload
def boolean(given: Mapping[str, str], option: str, *, default: None) -> bool | None: ...
def boolean(given: Mapping[str, str], option: str, *, default: bool | None) -> bool | None:
    """``true`` or ``false``, in any letter case. Raises InvalidArgumentError."""
    text = given.get(option)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidArgumentError(f"The option {option} must be true or false, not {text!r}.")
    return text.strip().lower() == "true"


def connection_string_of(given: Mapping[str, str]) -> ConnectionString:
    """The connection string, with the event hub in ``entity_path``.

    Raises InvalidArgumentError; ConnectionStringError for the string itself.
    """
    text = given.get("eventhubs.connectionString")
    if text is None:
        raise InvalidArgumentError(
            "The option eventhubs.connectionString is missing.",
            next_step="Copy the one that `tidegate serve` prints, or the one in Azure's portal.",
        )
    parsed = ConnectionString.parse(text)
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


def credential_of(given: Mapping[str, str], connection_string: ConnectionString) -> str | None:
    """``MODULE:NAME`` of a credential factory; None if it is not given. Raises InvalidArgumentError."""
    text = given.get("eventhubs.credential")
    if text is None:
        return None
    if not all(part.isidentifier() for part in text.replace(":", ".").split(".")) or text.count(":") != 1:
        raise InvalidArgumentError(
            f"The option eventhubs.credential is {text!r}.",
            next_step="Write MODULE:NAME of a class or function without arguments that returns a credential, "
            "such as azure.identity.aio:DefaultAzureCredential.",
        )
    if connection_string.shared_access_key or connection_string.shared_access_signature:
        raise InvalidArgumentError(
            "The option eventhubs.credential is given, but the connection string holds a key or a signature.",
            next_step="Leave one of the two out; with a credential, Endpoint and EntityPath are enough.",
        )
    return text


STORAGE_OPTIONS: Final = (
    "path",
    "storageConnectionString",
    "storageAccessKey",
    "storageToken",
    "storageOptions",
)
"""The options that say where files are stored."""


def storage_path(given: Mapping[str, str]) -> str:
    """A directory, or a URL that fsspec supports, without credentials. Raises InvalidArgumentError."""
    path = given.get("path", "").strip()
    if not path:
        raise InvalidArgumentError(
            "The option path is missing.",
            next_step="Set it to a directory, or to a URL such as az://container/folder.",
        )
    scheme, separator, rest = path.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0] if separator else ""
    if separator and (not scheme or "?" in path or ":" in user):
        # Do not repeat it, because it may contain a signature or a password.
        raise InvalidArgumentError(
            "The option path is a URL with a query or a password.",
            next_step="Pass credentials in storageConnectionString, storageAccessKey, storageToken or "
            "storageOptions.",
        )
    return path.rstrip("/") or "/"


def storage_options(given: Mapping[str, str]) -> dict[str, object]:
    """Arguments for the file system's library, by adlfs's names. Raises InvalidArgumentError."""
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
    for option, name in (
        ("storageConnectionString", "connection_string"),
        ("storageAccessKey", "account_key"),
        ("storageToken", "sas_token"),
    ):
        if option in given:
            found[name] = given[option]
    return found
