"""Parses where a query starts and ends: a word, the JVM connector's JSON, positions by partition, or a SQL
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition
from tidegate.spark.runtime.options import Given, aware_time, connection_string_of

CHECKPOINT_PREFIX = "checkpoint:"
"""``startingPosition = checkpoint:<database URL>`` starts at the consumer group's SQL checkpoint."""


@dataclass(frozen=True, slots=True)
class StartingPositions:
    """Where a query without a Spark checkpoint starts, or where a batch query ends."""

    default: EventPosition
    by_partition: Mapping[str, EventPosition]
    """Partitions whose position is not ``default``."""
    checkpoint_database_url: str | None = field(default=None, repr=False)
    """If set, a partition with a SQL checkpoint starts there, whatever the other two say."""
    is_ending: bool = False
    """True: where a query ends."""

    def for_partition(self, partition_id: str) -> EventPosition:
        """The position of one partition, ignoring SQL checkpoints."""
        return self.by_partition.get(partition_id, self.default)

    def option_for(self, partition_id: str) -> str:
        """The name of the option that sets it, for errors."""
        return (ENDING_OPTIONS if self.is_ending else STARTING_OPTIONS)[partition_id in self.by_partition]


STARTING_OPTIONS: Final = ("eventhubs.startingPosition", "eventhubs.startingPositions")
ENDING_OPTIONS: Final = ("eventhubs.endingPosition", "eventhubs.endingPositions")
"""A position for all partitions, and positions by partition."""


def starting_positions_of(given: Given, option: str, map_option: str) -> StartingPositions:
    """Reads ``STARTING_OPTIONS``."""
    value = given.get(option, "earliest").strip()
    by_partition = _position_map(given, map_option)
    if not value.lower().startswith(CHECKPOINT_PREFIX):
        return StartingPositions(_position(option, value), by_partition)
    url = value[len(CHECKPOINT_PREFIX) :].strip()
    if not url:
        raise InvalidArgumentError(
            f"The option {option} is `checkpoint:` without a database.",
            next_step="Write checkpoint:<database URL>, such as checkpoint:sqlite:///flights.db.",
        )
    return StartingPositions(EventPosition.earliest(), by_partition, url)


def ending_positions_of(given: Given, option: str, map_option: str) -> StartingPositions | None:
    """Reads ``ENDING_OPTIONS``; None if neither is given."""
    if option not in given and map_option not in given:
        return None
    value = given.get(option, "latest")
    if value.strip().lower().startswith(CHECKPOINT_PREFIX):
        raise InvalidArgumentError(
            f"The option {option} cannot be a checkpoint: that is where a query starts.",
            next_step="Write a sequence number, an offset, a time or latest.",
        )
    return StartingPositions(_position(option, value), _position_map(given, map_option), is_ending=True)


def _position_map(given: Given, option: str) -> dict[str, EventPosition]:
    """``{"0": POSITION, …}``; a key may also be the JVM connector's ``{"ehName": …, "partitionId": 0}``."""
    value = _json(option, given.get(option, "{}"))
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"The option {option} is not a JSON object of partition → position.")
    positions: dict[str, EventPosition] = {}
    for key, position in value.items():
        partition_id = _partition_of_key(given, option, key)
        if partition_id in positions:
            raise InvalidArgumentError(f"The option {option} names the partition {partition_id} twice.")
        positions[partition_id] = _position(
            f"{option}[{partition_id}]", position if isinstance(position, str) else json.dumps(position)
        )
    return positions


def _partition_of_key(given: Given, option: str, key: str) -> str:
    """``"0"``, or the 0 of the JVM connector's key, which must name the event hub that is read."""
    partition_id = key.strip()
    if partition_id.startswith("{"):
        value = _json(option, partition_id)
        assert isinstance(value, dict)
        name, event_hub = value.get("ehName"), connection_string_of(given).entity_path or ""
        if name is not None and str(name).lower() != event_hub.lower():
            raise InvalidArgumentError(
                f"The option {option} has a position for the event hub {name!r}, but {event_hub!r} is read."
            )
        partition_id = str(value.get("partitionId", ""))
    if not partition_id.isascii() or not partition_id.isdigit():
        raise InvalidArgumentError(f"The option {option} has the key {key!r}, which is not a partition.")
    return partition_id


def _position(option: str, text: str) -> EventPosition:
    """``earliest``, ``latest`` or the JVM connector's JSON with one of offset, seqNo and enqueuedTime."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EventPosition.earliest() if word == "earliest" else EventPosition.latest()
    hint = (
        'Write earliest, latest, or {"offset": null, "seqNo": 4711, "enqueuedTime": null, '
        '"isInclusive": true} with one of the three set.'
    )
    value = _json(option, text, hint)
    refused = InvalidArgumentError(f"The option {option} is {_quoted(text)}.", next_step=hint)
    if not isinstance(value, dict) or value.keys() - {"offset", "seqNo", "enqueuedTime", "isInclusive"}:
        raise refused
    offset, number, time = value.get("offset"), value.get("seqNo"), value.get("enqueuedTime")
    is_inclusive = value.get("isInclusive", True)
    if isinstance(number, int) and number < -1:
        raise InvalidArgumentError(
            f"The option {option} has the seqNo {number}; they begin with 0 (-1: not given).", next_step=hint
        )
    chosen = [offset not in (None, ""), number not in (None, -1), time not in (None, "")]
    if sum(chosen) != 1 or not isinstance(is_inclusive, bool):
        raise refused
    if offset in ("-1", "@latest"):
        return EventPosition.earliest() if offset == "-1" else EventPosition.latest()
    if isinstance(offset, str) and offset:
        return EventPosition.from_offset(offset, is_inclusive=is_inclusive)
    if type(number) is int and number >= 0:
        return EventPosition.from_sequence_number(number, is_inclusive=is_inclusive)
    if isinstance(time, str):
        enqueued_time = aware_time(f"{option} (enqueuedTime)", time)
        return EventPosition.from_enqueued_time(enqueued_time, is_inclusive=is_inclusive)
    raise refused


def _quoted(text: str) -> str:
    """``text`` for an error, without the password that a misspelt ``checkpoint:URL`` would put into a log."""
    return "a URL, which is not shown because it may hold a password" if "://" in text else repr(text)


def _json(option: str, text: str, hint: str = "") -> object:
    try:
        value: object = json.loads(text)
    except ValueError as exc:
        raise InvalidArgumentError(
            f"The option {option} is not JSON, but {_quoted(text)}.", next_step=hint
        ) from exc
    return value
