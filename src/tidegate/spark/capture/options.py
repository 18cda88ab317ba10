"""The options of the format ``eventhubs-capture``: read once, checked, and turned into typed values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from tidegate.model.capture import NAME_FORMAT_DEFAULT
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.capture.names import NameFormat, TimeBounds

RETENTION_HOURS_DEFAULT: Final = 90 * 24
"""The longest retention of Azure's tiers ("90 days", Azure "Event Hubs quotas and limits", Premium)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN: Final = (
    "path",
    "eventHubName",
    "namespace",
    "nameFormat",
    "partitions",
    "startingTime",
    "endingTime",
    "retentionHours",
    "skipBadFiles",
    "tasksMax",
    "storageConnectionString",
    "storageAccessKey",
    "storageToken",
    "storageOptions",
)
_NAMES: Final = {name.lower(): name for name in _KNOWN}


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """The checked options of one ``eventhubs-capture`` table."""

    path: str
    """What the files' names are below: a directory, or a URL that fsspec knows, without credentials."""
    name_format: str
    namespace: str | None
    event_hub: str | None
    """None: whichever it is; there must be only one then."""
    partition_ids: frozenset[str] | None
    """None: all."""
    times: TimeBounds
    """Of the events' enqueued times."""
    retention_hours: int
    """How old an event can be when its file is named; see ``names``."""
    is_bad_file_skipped: bool
    tasks_max: int | None
    """Spark tasks per query at most, where a partition is not worth splitting; None: as many as cores."""
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """For the file system's library; holds secrets."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> CaptureOptions:
        """Check the options that Spark hands over (names in any case).

        Raises InvalidArgumentError naming the option at fault.
        """
        given = _known_options(options)
        name_format = given.get("nameFormat", NAME_FORMAT_DEFAULT)
        namespace, event_hub = given.get("namespace"), given.get("eventHubName")
        NameFormat(name_format, namespace=namespace, event_hub=event_hub)
        return cls(
            path=_path(given),
            name_format=name_format,
            namespace=namespace,
            event_hub=event_hub,
            partition_ids=_partition_ids(given.get("partitions")),
            times=TimeBounds(_time_ms(given, "startingTime"), _time_ms(given, "endingTime")),
            retention_hours=_positive_integer(given, "retentionHours") or RETENTION_HOURS_DEFAULT,
            is_bad_file_skipped=_boolean(given, "skipBadFiles"),
            tasks_max=_positive_integer(given, "tasksMax"),
            storage_options=_storage_options(given),
        )

    def names(self) -> NameFormat:
        """How the files are named."""
        return NameFormat(self.name_format, namespace=self.namespace, event_hub=self.event_hub)


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for raw_name, value in options.items():
        name = _NAMES.get(raw_name.lower())
        if name is None:
            raise InvalidArgumentError(
                f"The format eventhubs-capture has no option {raw_name!r}.",
                next_step=f"It knows {', '.join(_KNOWN)} (in any case).",
            )
        given[name] = value
    return given


def _path(given: Mapping[str, str]) -> str:
    path = given.get("path", "").strip()
    if not path:
        raise InvalidArgumentError(
            "The option path is missing.",
            next_step="Give Capture's destination: a directory, or a URL such as az://container/folder.",
        )
    scheme, separator, rest = path.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0] if separator else ""
    if separator and (not scheme or "?" in path or ":" in user):
        # It may hold a signature or a password, so it is not repeated.
        raise InvalidArgumentError(
            "The option path is a URL with a query or a password.",
            next_step="Give credentials by storageConnectionString, storageAccessKey, storageToken or "
            "storageOptions.",
        )
    return path.rstrip("/") or "/"


def _partition_ids(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    ids = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    ids = [part.strip("\"'") for part in ids]
    if not all(part.isascii() and part.isdigit() for part in ids):
        raise InvalidArgumentError(f"The option partitions takes partition ids such as 0,3, not {text!r}.")
    return frozenset(ids)


def _time_ms(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    hint = "Write it as 2026-11-20T12:00:00Z."
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgumentError(f"The option {option} is no time: {text!r}.", next_step=hint) from None
    if time.tzinfo is None:
        raise InvalidArgumentError(f"The option {option} has no time zone: {text!r}.", next_step=hint)
    # Rounded up to the millisecond: no event lies between.
    return -((_EPOCH - time) // timedelta(milliseconds=1))


def _positive_integer(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) == 0:
        raise InvalidArgumentError(f"The option {option} takes a whole number of at least 1, not {text!r}.")
    return int(text)


def _boolean(given: Mapping[str, str], option: str) -> bool:
    text = given.get(option, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgumentError(f"The option {option} takes true or false, not {given[option]!r}.")
    return text == "true"


def _storage_options(given: Mapping[str, str]) -> dict[str, object]:
    """What the file system's library is given, under the names that adlfs has for them."""
    found: dict[str, object] = {}
    text = given.get("storageOptions")
    if text is not None:
        try:
            found = json.loads(text)
        except ValueError:
            found = []  # type: ignore[assignment]  # refused below
        if not isinstance(found, dict):
            raise InvalidArgumentError(
                "The option storageOptions is no JSON object.",
                next_step='Write it as {"account_name": "…", "account_key": "…"}, as fsspec\'s file system '
                "takes it.",
            )
    for option, name in (
        ("storageConnectionString", "connection_string"),
        ("storageAccessKey", "account_key"),
        ("storageToken", "sas_token"),
    ):
        if option in given:
            found[name] = given[option]
    return found
