"""The names of capture files, which give a file's partition and bounds for its events' times.

Pure. A name has the time when the file's window opened, not the time of an event, so it bounds the events'
enqueued times only loosely:

    events of the file:   time - retention  ≤  enqueued time  <  time + 1 s + longest window + clocks
                               (lower bound)                     (upper bound)

The upper bound holds because any service's windows are at most 15 minutes long ("between 1 and 15 minutes",
Azure "Capture streaming events through Azure Event Hubs"). The lower bound is wide because Capture, after it
was blocked (by an unreachable storage account), may name a file for the later time at which it resumed, so an
event in it can be as old as the hub's retention allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidegate.model.capture import NAME_FIELDS
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import CAPTURE_TIME_WINDOW_S_MAX
from tidegate.spark.source.pushdown import Bounds
from tidegate.wire.capture import FILE_SUFFIX

_CLOCKS_S: Final = 300
"""How far the clock that stamps events may be ahead of the one that names files (our choice)."""
LATEST_EVENT_S: Final = 1 + CAPTURE_TIME_WINDOW_S_MAX + _CLOCKS_S
"""All events of a file were enqueued less than this many seconds after its time."""

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_TIME_FIELDS: Final = ("Year", "Month", "Day", "Hour", "Minute", "Second")
_PATTERNS: Final[Mapping[str, str]] = {
    "Namespace": "[^/]+",
    "EventHub": "[^/]+",
    "PartitionId": "[0-9]+",
    **dict.fromkeys(_TIME_FIELDS, "[0-9]{2}"),
    "Year": "[0-9]{4}",
}


@dataclass(frozen=True, slots=True)
class CaptureFile:
    """A file, as its name describes it."""

    name: str
    """Relative to Capture's destination."""
    namespace: str
    event_hub: str
    partition_id: str
    time_s: int
    """When its window opened: seconds since 1970-01-01 UTC."""
    size_bytes: int

    @property
    def latest_event_ms(self) -> int:
        """All events of the file were enqueued before this: milliseconds since 1970-01-01 UTC."""
        return (self.time_s + LATEST_EVENT_S) * 1000

    def earliest_event_ms(self, retention_hours: int) -> int:
        """No event of the file was enqueued before this: milliseconds since 1970-01-01 UTC."""
        return (self.time_s - retention_hours * 3600) * 1000


class NameFormat:
    """Capture's naming format, used in reverse: from names to their fields."""

    def __init__(self, text: str, *, namespace: str | None = None, event_hub: str | None = None) -> None:
        """text: as configured for Capture, without ``.avro``. namespace, event_hub: accept only these;
        None: any.

        Raises InvalidArgumentError unless it holds each of ``NAME_FIELDS`` and no other field.
        """
        named = _FIELD.findall(text)
        problem = next((f"lacks {{{name}}}" for name in NAME_FIELDS if name not in named), "") or next(
            (f"has the unknown field {{{name}}}" for name in named if name not in NAME_FIELDS), ""
        )
        if problem:
            raise InvalidArgumentError(
                f"The capture name format {text!r} {problem}.",
                next_step=f"Write it as in Capture: each of {', '.join(NAME_FIELDS)}, in braces.",
            )
        self.text = text
        self._wanted = {"Namespace": namespace, "EventHub": event_hub}
        self._any = self._expression(_PATTERNS)
        wanted = {name: re.escape(value) for name, value in self._wanted.items() if value is not None}
        self._wanted_only = self._expression({**_PATTERNS, **wanted})

    def _expression(self, patterns: Mapping[str, str]) -> re.Pattern[str]:
        """What names match, with a group per field; a field that occurs again has the same value."""
        seen: set[str] = set()
        parts: list[str] = []
        for position, part in enumerate(_FIELD.split(self.text + FILE_SUFFIX)):
            if position % 2 == 0:  # the text between two fields
                parts.append(re.escape(part))
            else:
                parts.append(f"(?P={part})" if part in seen else f"(?P<{part}>{patterns[part]})")
                seen.add(part)
        return re.compile("".join(parts))

    @property
    def folder(self) -> str:
        """The deepest folder that holds all accepted files: the leading parts of names in which no field
        varies. Empty, or ends with ``/``.
        """
        known: list[str] = []
        for part in self.text.split("/")[:-1]:
            filled = _FIELD.sub(lambda match: self._wanted.get(match[1]) or match[0], part)
            if "{" in filled:
                break
            known.append(filled + "/")
        return "".join(known)

    def is_wanted(self, file: CaptureFile) -> bool:
        """Whether its namespace and event hub are accepted."""
        found = {"Namespace": file.namespace, "EventHub": file.event_hub}
        return all(wanted in (None, found[field]) for field, wanted in self._wanted.items())

    def parse(self, name: str, size_bytes: int) -> CaptureFile:
        """The file of this name, as one that is accepted if the format leaves that open.

        Raises InvalidArgumentError for a name that does not match the format.
        """
        match = self._wanted_only.fullmatch(name) or self._any.fullmatch(name)
        if match is None:
            raise self._foreign(name)
        try:
            time = datetime(*(int(match[field]) for field in _TIME_FIELDS), tzinfo=UTC)  # type: ignore[arg-type,misc]
        except ValueError:
            raise self._foreign(name) from None
        return CaptureFile(
            name=name,
            namespace=match["Namespace"],
            event_hub=match["EventHub"],
            partition_id=match["PartitionId"],
            time_s=int(time.timestamp()),
            size_bytes=size_bytes,
        )

    def _foreign(self, name: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"The name of the file {name} does not match Capture's name format {self.text}.",
            next_step="Set the option nameFormat to the one that Capture used, and the option path to the "
            "parent of such names; or move the file away.",
        )


def prune(
    files: Iterable[CaptureFile],
    *,
    partition_ids: frozenset[str] | None,
    times_ms: Bounds,
    retention_hours: int,
) -> list[CaptureFile]:
    """The files that may hold a wanted event, judging by their names alone.

    partition_ids: None: all. times_ms: of events. retention_hours: see ``CaptureFile.earliest_event_ms``.
    """
    return [
        file
        for file in files
        if (partition_ids is None or file.partition_id in partition_ids)
        and (times_ms.start is None or file.latest_event_ms > times_ms.start)
        and (times_ms.until is None or file.earliest_event_ms(retention_hours) < times_ms.until)
    ]


def check_one_hub(files: Iterable[CaptureFile]) -> None:
    """Raise InvalidArgumentError for files of more than one event hub, whose numbers would mix."""
    hubs = {(file.namespace, file.event_hub) for file in files}
    if len(hubs) > 1:
        (first, second, *_) = sorted(hubs)
        raise InvalidArgumentError(
            f"The path holds the captured events of several event hubs, including {'/'.join(first)} and "
            f"{'/'.join(second)}.",
            next_step="Choose one with the options eventHubName and namespace.",
        )
