"""The options of the format ``eventhubs``: read once, checked, and turned into typed values.

Spark hands options over with lower-cased names and text values. A name that nobody knows is refused,
because a misspelt ``maxEventsPerTriger`` that is silently ignored costs somebody a night.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.model.position import EventPosition
from tidegate.spark.certificates import read_certificates

CHECKPOINT_PREFIX = "checkpoint:"
"""``startingPosition = checkpoint:<database URL>`` starts at the consumer group's SQL checkpoint."""

_PREFIX = "eventhubs."

_KNOWN: Final = (
    "eventhubs.connectionString",
    "eventhubs.eventHubName",
    "eventhubs.consumerGroup",
    "eventhubs.startingPosition",
    "eventhubs.startingPositions",
    "eventhubs.endingPosition",
    "eventhubs.endingPositions",
    "eventhubs.maxEventsPerTrigger",
    "eventhubs.failOnDataLoss",
    "eventhubs.caFile",
    "eventhubs.tasksMax",
    "eventhubs.encodedEvents",
)
_NAMES: Final = {name.lower(): name for name in _KNOWN}

# Options of the JVM connector that have no meaning here, with what to do about them.
_NOT_NEEDED: Final = {
    "useexclusivereceiver": "this source takes no owner level, so its receivers never push others out",
    "prefetchcount": "a task reads its whole range with one receiver, at its own pace",
    "receivertimeout": "a task knows how many events it has to read and waits for those",
    "operationtimeout": "operations have a deadline of their own and are retried",
    "threadpoolsize": "there is no thread pool",
    "maxsilenttime": "a silent connection is noticed by its AMQP idle time-out",
    "slowpartitionadjustment": "partitions are dealt to tasks by their backlog",
    "maxeventspertriggerperpartition": "use maxEventsPerTrigger: it is shared by backlog",
}


@dataclass(frozen=True, slots=True)
class StartingPositions:
    """Where a query that has no Spark checkpoint yet starts."""

    default: EventPosition
    by_partition: Mapping[str, EventPosition]
    """Partitions that start elsewhere than ``default``."""
    checkpoint_database_url: str | None = field(default=None, repr=False)
    """Set: a partition that has a SQL checkpoint starts there, whatever the other two say."""

    def for_partition(self, partition_id: str) -> EventPosition:
        """The position of one partition, SQL checkpoints left aside."""
        return self.by_partition.get(partition_id, self.default)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one ``eventhubs`` source."""

    connection_string: ConnectionString
    """Names the event hub in ``entity_path``."""
    event_hub: str
    consumer_group: str
    starting: StartingPositions
    ending: StartingPositions
    """Where a batch query ends: the first event that is not read. Streams have no end."""
    has_ending: bool
    max_events_per_trigger: int | None
    """Events in one micro-batch at most; None: everything there is."""
    fail_on_data_loss: bool
    ca_certificates: str | None = field(repr=False)
    """What the option ``caFile`` names, in PEM: executors on other machines have no such file."""
    tasks_max: int | None
    """Spark tasks per (micro-)batch at most; None: as many as this machine has cores."""
    encoded_events: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options that Spark hands over (names in any case, with or without ``eventhubs.``).

        Raises InvalidArgumentError naming the option at fault; ConnectionStringError for the string itself.
        """
        given = _known_options(options)
        connection_string = _connection_string(given)
        assert connection_string.entity_path is not None
        starting = _starting(given)
        ending = StartingPositions(
            _position("eventhubs.endingPosition", given.get("eventhubs.endingPosition", "latest")),
            _position_map("eventhubs.endingPositions", given.get("eventhubs.endingPositions")),
        )
        ca_file = given.get("eventhubs.caFile")
        return cls(
            connection_string=connection_string,
            event_hub=connection_string.entity_path,
            consumer_group=given.get("eventhubs.consumerGroup", DEFAULT_CONSUMER_GROUP),
            starting=starting,
            ending=ending,
            has_ending="eventhubs.endingPosition" in given or "eventhubs.endingPositions" in given,
            max_events_per_trigger=_positive_integer(given, "eventhubs.maxEventsPerTrigger"),
            fail_on_data_loss=_boolean(given, "eventhubs.failOnDataLoss", default=True),
            ca_certificates=None if ca_file is None else read_certificates(ca_file),
            tasks_max=_positive_integer(given, "eventhubs.tasksMax"),
            encoded_events=_boolean(given, "eventhubs.encodedEvents", default=False),
        )


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for raw_name, value in options.items():
        short = raw_name.lower().removeprefix(_PREFIX)
        name = _NAMES.get(_PREFIX + short)
        if name is None:
            if short in _NOT_NEEDED:
                raise InvalidArgumentError(
                    f"The option {raw_name} has no meaning here: {_NOT_NEEDED[short]}.",
                    next_step="Leave it out.",
                )
            raise InvalidArgumentError(
                f"The format eventhubs has no option {raw_name!r}.",
                next_step=f"It knows {', '.join(_KNOWN)} (each also without `eventhubs.`, in any case).",
            )
        if name in given and given[name] != value:
            raise InvalidArgumentError(
                f"The option {name} is given twice, with different values.", next_step="Give it once."
            )
        given[name] = value
    return given


def _connection_string(given: Mapping[str, str]) -> ConnectionString:
    text = given.get("eventhubs.connectionString")
    if text is None:
        raise InvalidArgumentError(
            "The option eventhubs.connectionString is missing.",
            next_step="Give the string that `tidegate serve` prints, or the one of Azure's portal.",
        )
    parsed = ConnectionString.parse(text)
    name = given.get("eventhubs.eventHubName")
    if name is not None and parsed.entity_path is not None and name.lower() != parsed.entity_path.lower():
        raise InvalidArgumentError(
            f"The option eventhubs.eventHubName says {name!r}, and the connection string's EntityPath says "
            f"{parsed.entity_path!r}.",
            next_step="Leave one of the two out.",
        )
    hub = parsed.entity_path or name
    if not hub:
        raise InvalidArgumentError(
            "No event hub is named.",
            next_step="Add `;EntityPath=HUB` to the connection string, or the option eventhubs.eventHubName.",
        )
    return parsed.with_entity_path(hub)


def _starting(given: Mapping[str, str]) -> StartingPositions:
    text = given.get("eventhubs.startingPosition", "earliest").strip()
    by_partition = _position_map("eventhubs.startingPositions", given.get("eventhubs.startingPositions"))
    if text.lower().startswith(CHECKPOINT_PREFIX):
        url = text[len(CHECKPOINT_PREFIX) :].strip()
        if not url:
            raise InvalidArgumentError(
                "The option eventhubs.startingPosition says `checkpoint:` without a database.",
                next_step="Write checkpoint:<database URL>, as in checkpoint:sqlite:///flights.db.",
            )
        return StartingPositions(EventPosition.earliest(), by_partition, url)
    return StartingPositions(_position("eventhubs.startingPosition", text), by_partition)


def _position_map(option: str, text: str | None) -> dict[str, EventPosition]:
    """``{"0": POSITION, …}``; a key may also be the JVM connector's ``{"ehName": …, "partitionId": 0}``."""
    if text is None:
        return {}
    value = _json(option, text)
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"The option {option} is not a JSON object of partition → position.")
    positions: dict[str, EventPosition] = {}
    for key, position in value.items():
        partition_id = key.strip()
        if partition_id.startswith("{"):
            name_and_partition = _json(option, partition_id)
            assert isinstance(name_and_partition, dict)
            partition_id = str(name_and_partition.get("partitionId", ""))
        if not partition_id.isdigit():
            raise InvalidArgumentError(f"The option {option} has the key {key!r}, which names no partition.")
        positions[partition_id] = _position(
            f"{option}[{partition_id}]", position if isinstance(position, str) else json.dumps(position)
        )
    return positions


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
    if not isinstance(value, dict) or value.keys() - {"offset", "seqNo", "enqueuedTime", "isInclusive"}:
        raise InvalidArgumentError(f"The option {option} says {_quoted(text)}.", next_step=hint)
    offset = value.get("offset")
    sequence_number = value.get("seqNo")
    enqueued_time = value.get("enqueuedTime")
    is_inclusive = value.get("isInclusive", True)
    chosen = [
        offset not in (None, ""),
        sequence_number not in (None, -1),
        enqueued_time not in (None, ""),
    ]
    if sum(chosen) != 1 or not isinstance(is_inclusive, bool):
        raise InvalidArgumentError(f"The option {option} says {_quoted(text)}.", next_step=hint)
    if offset in ("-1", "@latest"):
        return EventPosition.earliest() if offset == "-1" else EventPosition.latest()
    if isinstance(offset, str) and offset:
        return EventPosition.from_offset(offset, is_inclusive=is_inclusive)
    if isinstance(sequence_number, int) and sequence_number >= 0:
        return EventPosition.from_sequence_number(sequence_number, is_inclusive=is_inclusive)
    if isinstance(enqueued_time, str):
        return EventPosition.from_enqueued_time(_time(option, enqueued_time), is_inclusive=is_inclusive)
    raise InvalidArgumentError(f"The option {option} says {_quoted(text)}.", next_step=hint)


def _time(option: str, text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidArgumentError(f"The option {option} has the enqueuedTime {text!r}.") from exc
    if time.tzinfo is None:
        raise InvalidArgumentError(
            f"The option {option} has the enqueuedTime {text!r} without a time zone.",
            next_step="Write it as 2026-11-20T12:00:00Z.",
        )
    return time


def _quoted(text: str) -> str:
    """``text`` as an error may show it: a misspelt ``checkpoint:URL`` would carry a password into a log."""
    return "a URL, which is not shown here for it may hold a password," if "://" in text else repr(text)


def _json(option: str, text: str, hint: str = "") -> object:
    try:
        value: object = json.loads(text)
    except ValueError as exc:
        raise InvalidArgumentError(
            f"The option {option} says {_quoted(text)}, which is not JSON.", next_step=hint
        ) from exc
    return value


def _positive_integer(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) == 0:
        raise InvalidArgumentError(f"The option {option} takes a whole number of at least 1, not {text!r}.")
    return int(text)


def _boolean(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = given.get(option)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidArgumentError(f"The option {option} takes true or false, not {text!r}.")
    return text.strip().lower() == "true"
