"""The options of the format ``eventhubs-capture``, checked and turned into typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from tidegate.model.capture import NAME_FORMAT_DEFAULT
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.capture.names import NameFormat
from tidegate.spark.runtime.options import (
    STORAGE_OPTIONS,
    boolean,
    known_options,
    positive_integer,
    storage_options,
    storage_path,
)
from tidegate.spark.source.pushdown import Bounds

RETENTION_HOURS_DEFAULT: Final = 90 * 24
"""The longest retention of Azure's tiers ("90 days", Azure "Event Hubs quotas and limits", Premium)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KNOWN: Final = (
    *STORAGE_OPTIONS,
    "eventHubName",
    "namespace",
    "nameFormat",
    "partitions",
    "startingTime",
    "endingTime",
    "retentionHours",
    "skipBadFiles",
    "tasksMax",
)


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """The checked options of one ``eventhubs-capture`` table."""

    path: str
    """The base of the files' names: a directory, or a URL that fsspec supports, without credentials."""
    name_format: str
    namespace: str | None
    event_hub: str | None
    """None: any, but there must be only one."""
    partition_ids: frozenset[str] | None
    """None: all."""
    times_ms: Bounds
    """Of the events' enqueued times: milliseconds since 1970-01-01 UTC."""
    retention_hours: int
    """The greatest age of an event when its file is named; see ``names``."""
    is_bad_file_skipped: bool
    tasks_max: int | None
    """Most Spark tasks per query, if no partition is worth splitting; None: as many as cores."""
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """For the file system's library; may hold secrets."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> CaptureOptions:
        """Check the options that Spark passes (names in any case).

        Raises InvalidArgumentError naming the option at fault.
        """
        given = known_options(options, KNOWN, subject="The format eventhubs-capture")
        parsed = cls(
            path=storage_path(given),
            name_format=given.get("nameFormat", NAME_FORMAT_DEFAULT),
            namespace=given.get("namespace"),
            event_hub=given.get("eventHubName"),
            partition_ids=_partition_ids(given.get("partitions")),
            times_ms=Bounds(_time_ms(given, "startingTime"), _time_ms(given, "endingTime")),
            retention_hours=positive_integer(given, "retentionHours") or RETENTION_HOURS_DEFAULT,
            is_bad_file_skipped=boolean(given, "skipBadFiles", default=False),
            tasks_max=positive_integer(given, "tasksMax"),
            storage_options=storage_options(given),
        )
        parsed.names()
        return parsed

    def names(self) -> NameFormat:
        """The files' naming format. Raises InvalidArgumentError for an invalid one."""
        return NameFormat(self.name_format, namespace=self.namespace, event_hub=self.event_hub)


def _partition_ids(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    ids = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    ids = [part.strip("\"'") for part in ids]
    if not all(part.isascii() and part.isdigit() for part in ids):
        raise InvalidArgumentError(
            f"The option partitions must be a list of partition ids such as 0,3, not {text!r}."
        )
    return frozenset(ids)


def _time_ms(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    hint = "Write it as 2026-11-20T12:00:00Z."
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgumentError(f"The option {option} is not a time: {text!r}.", next_step=hint) from None
    if time.tzinfo is None:
        raise InvalidArgumentError(f"The option {option} has no time zone: {text!r}.", next_step=hint)
    # Rounding up to the millisecond skips no event.
    return -((_EPOCH - time) // timedelta(milliseconds=1))
