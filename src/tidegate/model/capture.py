"""The Capture settings of one event hub, and what Capture reports about it: frozen, validated values.

The rule: no secrets here. The catalog stores these settings as they are; the credentials for a storage
account come from the service's environment (see docs/concepts/capture.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

from tidegate.model import limits
from tidegate.model.capture_destination import check_no_password
from tidegate.model.errors import InvalidArgumentError

NAME_FIELDS: Final = (
    "Namespace",
    "EventHub",
    "PartitionId",
    "Year",
    "Month",
    "Day",
    "Hour",
    "Minute",
    "Second",
)
"""The parameters of a name format: "all the parameters (Namespace,EventHub .. etc) are mandatory irrespective
of order" (Azure REST "EventHubDestination", archiveNameFormat, 2024-01-01)."""

NAME_FORMAT_DEFAULT: Final = "/".join(f"{{{field}}}" for field in NAME_FIELDS)
"""``{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}``."""

_NAME_CHARACTERS_MAX = 400
"""Our choice: leaves room for a hub's name of 256 characters within the 1,024 that a blob's name may have."""
_FIELD = re.compile(r"\{([^{}]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._=/-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Where Capture writes a hub's events, and when it closes a file: at the first of size and time.

    Raises InvalidArgumentError, naming the setting, for a value out of its range.
    """

    destination: str
    """A directory of the service's machine (an absolute path or ``file:///…``), or a URL that fsspec knows,
    such as ``abfs://container@account.dfs.core.windows.net/folder`` or ``s3://bucket/folder``."""
    is_enabled: bool = True
    """False: paused; once enabled again, it continues where it stopped."""
    size_window_bytes: int = limits.CAPTURE_SIZE_WINDOW_BYTES_DEFAULT
    """Bytes of events, as stored and 150 more for each, after which a file is closed: 10 MB to 500 MB."""
    time_window_s: int = limits.CAPTURE_TIME_WINDOW_S_DEFAULT
    """Seconds of enqueued time that one file covers at most: 60 to 900."""
    is_empty_skipped: bool = False
    """False: a time window without events leaves a file without events, as a sign of life."""
    name_format: str = NAME_FORMAT_DEFAULT
    """Holds each of ``NAME_FIELDS`` in braces, once or more, in any order; ``.avro`` is added."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("size_window_bytes", limits.CAPTURE_SIZE_WINDOW_BYTES_MIN, limits.CAPTURE_SIZE_WINDOW_BYTES_MAX),
            ("time_window_s", limits.CAPTURE_TIME_WINDOW_S_MIN, limits.CAPTURE_TIME_WINDOW_S_MAX),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InvalidArgumentError(
                    f"Invalid value {value!r} for the capture setting {name}: use {low} to {high}."
                )
        _check_destination(self.destination)
        _check_name_format(self.name_format)

    def to_mapping(self) -> dict[str, object]:
        """As plain values for JSON, every setting by its name."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> CaptureSettings:
        """The settings that ``to_mapping`` gave; what is missing has its default.

        Raises InvalidArgumentError for an unknown name, a wrong type or a value out of its range.
        """
        # Here, since msgspec takes 25 ms to import and few programs read capture settings.
        from tidegate.model.validation import given_fields

        return cls(**given_fields(values, cls, "capture"))


@dataclass(frozen=True, slots=True)
class CaptureStatistics:
    """The state of a hub's capture. Counts start over when the service starts or the settings change."""

    captured_files: int = 0
    captured_events: int = 0
    captured_bytes: int = 0
    """Bytes of events, as stored."""
    backlog_events: int = 0
    """Events in the log that are in no finished file."""
    backlog_bytes: int = 0
    """Their bytes, except those after a file that is being written, which are not counted yet."""
    missing_events: int = 0
    """Events that retention removed before they were captured."""
    is_failing: bool = False
    """True while something blocks it, such as an unreachable destination."""
    last_error: str = ""
    """The current error, or the last one."""


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """How far the capture of one partition has progressed."""

    partition_id: str
    next_sequence_number: int
    """Events before it are in files, or no longer in the log."""
    backlog_events: int
    """Events in the log that are in no finished file."""
    last_file: str | None
    """Name of the last finished file, below the destination; None if there is none, or another is being
    written."""
    planned_file: str | None
    """Name of the file that is being written or retried; None while a window is open."""
    last_error: str
    """The error that blocks it; empty if none does."""


class WindowEnd(Enum):
    """What closed a file's window."""

    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """A file that Capture has written."""

    name: str
    """Below the destination."""
    destination: str
    """As the settings named it then."""
    partition_id: str
    start_sequence_number: int
    until_sequence_number: int
    """Equal to the start in a file without events."""
    event_count: int | None
    """None: the file was complete before a crash, and retention has removed some of its events since."""
    file_bytes: int | None
    """Of the Avro file; None as above."""
    window_start_ms: int
    """The time in its name: milliseconds since 1970-01-01 UTC."""
    window_end_ms: int
    """When the next window opened, the same way."""
    written_at_ms: int
    """When it was complete, the same way."""
    closed_by: WindowEnd


_IN_SECRETS: Final = frozenset("?=;@")
"""Characters that mark a destination with a key or a signature in it."""


def _check_destination(destination: str) -> None:
    scheme, separator, rest = destination.partition("://")
    if separator:
        is_meant = bool(scheme) and bool(rest.strip("/")) and (scheme != "file" or rest.startswith("/"))
    else:
        is_meant = destination.startswith("/") and not destination.isspace()
    if not is_meant or "\x00" in destination or "?" in destination:
        # A SAS URL or a connection string contains a secret: keep it out of logs.
        quoted = "" if _IN_SECRETS.intersection(destination) else f" {destination[:200]!r}"
        raise InvalidArgumentError(
            f"The capture destination{quoted} is neither an absolute path nor a URL without a query.",
            next_step="Use /a/directory, or a URL such as "
            "abfs://container@account.dfs.core.windows.net/folder.",
        )
    user = rest.partition("/")[0].rpartition("@")[0] if separator else ""
    check_no_password(user)


def _check_name_format(name_format: str) -> None:
    named = _FIELD.findall(name_format)
    missing = [name for name in NAME_FIELDS if name not in named]
    unknown = [name for name in named if name not in NAME_FIELDS]
    literal = _FIELD.sub("", name_format)
    segments = _FIELD.sub("x", name_format).split("/")
    problem = ""
    if missing:
        problem = f"lacks {{{missing[0]}}}"
    elif unknown:
        problem = f"has the unknown field {{{unknown[0][:40]}}}"
    elif _LITERAL.fullmatch(literal) is None:
        problem = "has characters other than letters, digits, '.', '_', '=', '-' and '/' between its fields"
    elif any(segment in ("", ".", "..") for segment in segments):
        problem = "has an empty part, or one that leads out of its folder"
    elif len(name_format) > _NAME_CHARACTERS_MAX:
        problem = f"has more than {_NAME_CHARACTERS_MAX} characters"
    if problem:
        raise InvalidArgumentError(
            f"The capture name format {name_format[:200]!r} {problem}.",
            next_step=f"Use every field in braces, as in {NAME_FORMAT_DEFAULT}.",
        )
