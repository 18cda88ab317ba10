"""The options of the format ``eventhubs-capture``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.model.capture import NAME_FORMAT_DEFAULT
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.times import next_millisecond
from tidegate.spark.capture.names import NameFormat
from tidegate.spark.runtime.options import (
    STORAGE_OPTIONS,
    Given,
    aware_time,
    flag,
    option,
    positive_integer,
    read_options,
    storage_options,
    storage_path,
    text,
)
from tidegate.spark.source.pushdown import Bounds

RETENTION_HOURS_DEFAULT: Final = 90 * 24
"""The longest retention of Azure's tiers ("90 days", Azure "Event Hubs quotas and limits", Premium)."""


def _partition_ids(given: Given, option: str) -> frozenset[str] | None:
    value = given.get(option)
    if value is None:
        return None
    ids = [part.strip() for part in value.strip().removeprefix("[").removesuffix("]").split(",")]
    ids = [part.strip("\"'") for part in ids]
    if not all(part.isascii() and part.isdigit() for part in ids):
        raise InvalidArgumentError(
            f"The option {option} must be a list of partition ids such as 0,3, not {value!r}."
        )
    return frozenset(ids)


def _time_bounds(given: Given, start: str, until: str) -> Bounds:
    return Bounds(_time_ms(given, start), _time_ms(given, until))


def _time_ms(given: Given, option: str) -> int | None:
    value = given.get(option)
    if value is None:
        return None
    return next_millisecond(aware_time(option, value.strip()))  # rounding up skips no event


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """The checked options of one ``eventhubs-capture`` table."""

    path: str = option(storage_path, "path")
    """The base of the files' names: a directory, or a URL that fsspec supports, without credentials."""
    name_format: str = option(text(NAME_FORMAT_DEFAULT), "nameFormat")
    namespace: str | None = option(text(None), "namespace")
    event_hub: str | None = option(text(None), "eventHubName")
    """None: any, but there must be only one."""
    partition_ids: frozenset[str] | None = option(_partition_ids, "partitions")
    """None: all."""
    times_ms: Bounds = option(_time_bounds, "startingTime", "endingTime")
    """Of the events' enqueued times: milliseconds since 1970-01-01 UTC."""
    retention_hours: int = option(
        lambda given, name: positive_integer(given, name) or RETENTION_HOURS_DEFAULT,
        "retentionHours",
    )
    """The greatest age of an event when its file is named; see ``names``."""
    is_bad_file_skipped: bool = option(flag(False), "skipBadFiles")
    push_filters: bool = option(flag(False), "pushFilters")
    """Whether a query's conditions limit what is read, which binds the DataFrame to one query."""
    tasks_max: int | None = option(positive_integer, "tasksMax")
    """Most Spark tasks per query, if no partition is worth splitting; None: as many as cores."""
    storage_options: Mapping[str, object] = option(storage_options, *STORAGE_OPTIONS, is_secret=True)
    """For the file system's library."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> CaptureOptions:
        """Check the options that Spark passes (names in any case).

        Raises InvalidArgumentError naming the option at fault.
        """
        parsed = read_options(cls, options, subject="The format eventhubs-capture")
        parsed.names()
        return parsed

    def names(self) -> NameFormat:
        """The files' naming format. Raises InvalidArgumentError for an invalid one."""
        return NameFormat(self.name_format, namespace=self.namespace, event_hub=self.event_hub)
