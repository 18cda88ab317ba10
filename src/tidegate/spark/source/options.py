"""The options of the format ``eventhubs``: read once, checked, and turned into typed values.

Spark hands options over with lower-cased names and text values. A name that nobody knows is refused,
because a misspelt ``maxEventsPerTriger`` that is silently ignored costs somebody a night.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, overload

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.spark.runtime.certificates import read_certificates
from tidegate.spark.source.positions import CHECKPOINT_PREFIX as CHECKPOINT_PREFIX
from tidegate.spark.source.positions import StartingPositions, ending_positions_of, starting_positions_of

_PREFIX = "eventhubs."
_logger = logging.getLogger(__name__)

KNOWN: Final = (
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
    "eventhubs.tasksMin",
    "eventhubs.tasksMax",
    "eventhubs.encodedEvents",
    "eventhubs.credential",
    "eventhubs.splitPartitions",
)
TASK_OPTIONS: Final = ("eventhubs.tasksMin", "eventhubs.tasksMax")
"""Those that limit each other."""
_NAMES: Final = {name.lower(): name for name in KNOWN}

# What the JVM connector's options (azure-eventhubs-spark 2.3.22) become that have no counterpart here.
WITHOUT_EFFECT: Final = {
    "useexclusivereceiver": "this source takes no owner level, so its receivers never push others out",
    "prefetchcount": "a task reads its whole range with one receiver, at its own pace",
    "receivertimeout": "a task knows how many events it has to read and waits for those",
    "operationtimeout": "operations have a deadline of their own and are retried",
    "threadpoolsize": "there is no thread pool",
    "maxsilenttime": "a silent connection is noticed by its AMQP idle time-out",
    "slowpartitionadjustment": "partitions are dealt to tasks by their backlog",
    "maxacceptablebatchreceivetime": "partitions are dealt to tasks by their backlog",
    "maxbatchreceivetime": "a task reads its whole range, however long that takes",
    "partitionpreferredlocationstrategy": "Spark places the tasks, and connections are made where they are",
    "dynamicpartitiondiscovery": "partitions are always looked for when a micro-batch is planned",
}
"""Tuning, which changes no result: taken and told in the log, so that a job moves without a change."""

REFUSED: Final = {
    "maxrateperpartition": "use maxEventsPerTrigger, which is shared by backlog",
    "maxratesperpartition": "use maxEventsPerTrigger, which is shared by backlog",
    "maxeventspertriggerperpartition": "use maxEventsPerTrigger, which is shared by backlog",
    "useaadauth": "use eventhubs.credential, which names what makes the Entra ID credential",
    "aadauthcallback": "use eventhubs.credential, which names what makes the Entra ID credential",
    "aadauthcallbackparams": "use eventhubs.credential, which names what makes the Entra ID credential",
    "metricplugin": "a JVM class cannot be called; query.lastProgress has the figures",
    "throttlingstatusplugin": "a JVM class cannot be called; query.lastProgress has the figures",
    "usesimulatedclient": "tidegate serve is a whole service to test against",
}
"""What would change a result or be missed, if it were passed over."""


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
    tasks_min: int | None
    """Spark tasks that a small (micro-)batch is dealt to at most; None: as many as a large one."""
    tasks_max: int | None
    """Spark tasks per (micro-)batch at most; None: as many as this machine has cores, or ``tasks_min``."""
    encoded_events: bool
    credential: str | None = None
    """``module:name`` of what makes a credential, in every process that connects; None: the key or signature
    of the connection string."""
    split_partitions: bool | None = None
    """Whether one partition may be read by several tasks; None: batch queries may, streams may not."""
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    """The given ones of ``WITHOUT_EFFECT``, by the names that they have there."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options that Spark hands over (names in any case, with or without ``eventhubs.``).

        Raises InvalidArgumentError naming the option at fault; ConnectionStringError for the string itself.
        """
        given = _known_options(options)
        connection_string = _connection_string(given)
        assert connection_string.entity_path is not None
        event_hub = connection_string.entity_path
        ca_file = given.get("eventhubs.caFile")
        tasks_min, tasks_max = _task_limits(given)
        return cls(
            connection_string=connection_string,
            event_hub=event_hub,
            consumer_group=given.get("eventhubs.consumerGroup", DEFAULT_CONSUMER_GROUP),
            starting=starting_positions_of(given, event_hub),
            ending=ending_positions_of(given, event_hub),
            has_ending="eventhubs.endingPosition" in given or "eventhubs.endingPositions" in given,
            max_events_per_trigger=_positive_integer(given, "eventhubs.maxEventsPerTrigger"),
            fail_on_data_loss=_boolean(given, "eventhubs.failOnDataLoss", default=True),
            ca_certificates=None if ca_file is None else read_certificates(ca_file),
            tasks_min=tasks_min,
            tasks_max=tasks_max,
            encoded_events=_boolean(given, "eventhubs.encodedEvents", default=False),
            credential=_credential(given, connection_string),
            split_partitions=_boolean(given, "eventhubs.splitPartitions", default=None),
            without_effect=tuple(sorted({_short_name(name) for name in options} & WITHOUT_EFFECT.keys())),
        )

    def warn_of_those_without_effect(self) -> None:
        """Say in the log which options do nothing, and why; for who plans a query, once.

        Not where options are read: Spark has that done in several processes per query.
        """
        for name in self.without_effect:
            _logger.warning("The option %s%s has no effect: %s.", _PREFIX, name, WITHOUT_EFFECT[name])


def option_name(text: str) -> str | None:
    """The option's name as ``KNOWN`` has it, however it is written; None: there is no such option."""
    return _NAMES.get(_PREFIX + _short_name(text))


def _short_name(text: str) -> str:
    return text.lower().removeprefix(_PREFIX)


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for raw_name, value in options.items():
        name = option_name(raw_name)
        if name is None:
            short = _short_name(raw_name)
            if short in WITHOUT_EFFECT:
                continue
            if short in REFUSED:
                raise InvalidArgumentError(
                    f"The option {raw_name} has no meaning here: {REFUSED[short]}.", next_step="Leave it out."
                )
            raise InvalidArgumentError(
                f"The format eventhubs has no option {raw_name!r}.",
                next_step=f"It knows {', '.join(KNOWN)} (each also without `eventhubs.`, in any case).",
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


def _positive_integer(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) == 0:
        raise InvalidArgumentError(f"The option {option} takes a whole number of at least 1, not {text!r}.")
    return int(text)


def _task_limits(given: Mapping[str, str]) -> tuple[int | None, int | None]:
    tasks_min = _positive_integer(given, "eventhubs.tasksMin")
    tasks_max = _positive_integer(given, "eventhubs.tasksMax")
    if tasks_min is not None and tasks_max is not None and tasks_min > tasks_max:
        raise InvalidArgumentError(
            f"The option eventhubs.tasksMin says {tasks_min}, and eventhubs.tasksMax says {tasks_max}.",
            next_step="Let tasksMin be tasksMax at most, or leave one of the two out.",
        )
    return tasks_min, tasks_max


def _credential(given: Mapping[str, str], connection_string: ConnectionString) -> str | None:
    text = given.get("eventhubs.credential")
    has_key = connection_string.shared_access_key or connection_string.shared_access_signature
    if text is None:
        return None
    if not all(part.isidentifier() for part in text.replace(":", ".").split(".")) or text.count(":") != 1:
        raise InvalidArgumentError(
            f"The option eventhubs.credential says {text!r}.",
            next_step="Write MODULE:NAME of a class or function without arguments that returns a credential, "
            "as in azure.identity.aio:DefaultAzureCredential.",
        )
    if has_key:
        raise InvalidArgumentError(
            "The option eventhubs.credential is given, and the connection string holds a key or a signature.",
            next_step="Leave one of the two out; with a credential, Endpoint and EntityPath are enough.",
        )
    return text


@overload
def _boolean(given: Mapping[str, str], option: str, *, default: bool) -> bool: ...
@overload
def _boolean(given: Mapping[str, str], option: str, *, default: None) -> bool | None: ...
def _boolean(given: Mapping[str, str], option: str, *, default: bool | None) -> bool | None:
    text = given.get(option)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidArgumentError(f"The option {option} takes true or false, not {text!r}.")
    return text.strip().lower() == "true"
