"""The options of the format ``eventhubs``: read once, checked, and turned into typed values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.spark.runtime.certificates import read_certificates
from tidegate.spark.runtime.options import (
    PREFIX,
    boolean,
    connection_string_of,
    credential_of,
    known_options,
    positive_integer,
    short_name,
)
from tidegate.spark.source.positions import CHECKPOINT_PREFIX as CHECKPOINT_PREFIX
from tidegate.spark.source.positions import StartingPositions, ending_positions_of, starting_positions_of

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

# Options of the JVM connector (azure-eventhubs-spark 2.3.22) that have no counterpart here.
WITHOUT_EFFECT: Final = {
    "useexclusivereceiver": "this source takes no owner level, so its receivers never push others out",
    "prefetchcount": "a task reads its whole range with one receiver, at its own pace",
    "receivertimeout": "a task knows how many events it has to read and waits for those",
    "operationtimeout": "operations have a deadline of their own and are retried",
    "threadpoolsize": "there is no thread pool",
    "maxsilenttime": "a silent connection is closed by its AMQP idle time-out",
    "slowpartitionadjustment": "partitions are dealt to tasks by their backlog",
    "maxacceptablebatchreceivetime": "partitions are dealt to tasks by their backlog",
    "maxbatchreceivetime": "a task reads its whole range, however long that takes",
    "partitionpreferredlocationstrategy": "Spark places the tasks, and each connects from where it runs",
    "dynamicpartitiondiscovery": "partitions are looked up whenever a micro-batch is planned",
}
"""Tuning that changes no result: accepted, with a warning in the log, so that a job can move unchanged."""

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
"""Options that would change a result, or whose effect would be missed, if they were ignored."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one ``eventhubs`` source."""

    connection_string: ConnectionString
    """Names the event hub in ``entity_path``."""
    event_hub: str
    consumer_group: str
    starting: StartingPositions
    ending: StartingPositions
    """The first event that a batch query does not read. Streams have no end."""
    has_ending: bool
    max_events_per_trigger: int | None
    """Most events in one micro-batch; None: all available."""
    fail_on_data_loss: bool
    ca_certificates: str | None = field(repr=False)
    """The content of the file ``caFile`` (PEM), since executors on other machines do not have the file."""
    tasks_min: int | None
    """Most Spark tasks for a small (micro-)batch; None: as many as for a large one."""
    tasks_max: int | None
    """Most Spark tasks per (micro-)batch; None: as many as this machine has cores, or ``tasks_min``."""
    encoded_events: bool
    credential: str | None = None
    """``module:name`` of the credential factory that every connecting process calls; None: the connection
    string has a key or signature."""
    split_partitions: bool | None = None
    """Whether one partition may be read by several tasks; None: batch queries may, streams may not."""
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    """The given options of ``WITHOUT_EFFECT``, by their names there."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options that Spark hands over (names in any case, with or without ``eventhubs.``).

        Raises InvalidArgumentError naming the option at fault; ConnectionStringError for the string itself.
        """
        for name in options:
            if (reason := REFUSED.get(short_name(name))) is not None:
                raise InvalidArgumentError(
                    f"The option {name} is not supported: {reason}.", next_step="Leave it out."
                )
        given = known_options(options, KNOWN, subject="The format eventhubs", ignored=WITHOUT_EFFECT)
        connection_string = connection_string_of(given)
        event_hub = connection_string.entity_path
        assert event_hub is not None
        tasks_min = positive_integer(given, "eventhubs.tasksMin")
        tasks_max = positive_integer(given, "eventhubs.tasksMax")
        if tasks_min is not None and tasks_max is not None and tasks_min > tasks_max:
            raise InvalidArgumentError(
                f"The option eventhubs.tasksMin ({tasks_min}) exceeds eventhubs.tasksMax ({tasks_max}).",
                next_step="Lower tasksMin, or leave one of the two out.",
            )
        return cls(
            connection_string=connection_string,
            event_hub=event_hub,
            consumer_group=given.get("eventhubs.consumerGroup", DEFAULT_CONSUMER_GROUP),
            starting=starting_positions_of(given, event_hub),
            ending=ending_positions_of(given, event_hub),
            has_ending="eventhubs.endingPosition" in given or "eventhubs.endingPositions" in given,
            max_events_per_trigger=positive_integer(given, "eventhubs.maxEventsPerTrigger"),
            fail_on_data_loss=boolean(given, "eventhubs.failOnDataLoss", default=True),
            ca_certificates=read_certificates(given.get("eventhubs.caFile")),
            tasks_min=tasks_min,
            tasks_max=tasks_max,
            encoded_events=boolean(given, "eventhubs.encodedEvents", default=False),
            credential=credential_of(given, connection_string),
            split_partitions=boolean(given, "eventhubs.splitPartitions", default=None),
            without_effect=tuple(sorted({short_name(name) for name in options} & WITHOUT_EFFECT.keys())),
        )

    def warn_of_those_without_effect(self) -> None:
        """Log which options have no effect, and why. To be called once per query, by its planner.

        Not done by ``parse``, which Spark runs in several processes per query.
        """
        for name in self.without_effect:
            _logger.warning("The option %s%s has no effect: %s.", PREFIX, name, WITHOUT_EFFECT[name])
