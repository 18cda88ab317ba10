"""The options of the format ``eventhubs``, as a source."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.spark.runtime.options import (
    HUB_OPTIONS,
    PREFIX,
    connection_string_of,
    credential_of,
    flag,
    option,
    positive_integer,
    read_certificates,
    read_options,
    short_name,
    text,
)
from tidegate.spark.source.positions import (
    ENDING_OPTIONS,
    STARTING_OPTIONS,
    StartingPositions,
    ending_positions_of,
    starting_positions_of,
)

_logger = logging.getLogger(__name__)

COMMITS_OPTION: Final = "commits"
"""The internal option of a stream whose query moves the SQL checkpoints; its value does not matter."""

# Options of the JVM connector (azure-eventhubs-spark 2.3.22) that have no counterpart here.
WITHOUT_EFFECT: Final = {
    "useExclusiveReceiver": "this source takes no owner level, so its receivers never push others out",
    "prefetchCount": "a task reads its whole range with one receiver, at its own pace",
    "receiverTimeout": "a task knows how many events it has to read and waits for those",
    "operationTimeout": "operations have a deadline of their own and are retried",
    "threadPoolSize": "there is no thread pool",
    "maxSilentTime": "a silent connection is closed by its AMQP idle time-out",
    "slowPartitionAdjustment": "partitions are dealt to tasks by their backlog",
    "maxAcceptableBatchReceiveTime": "partitions are dealt to tasks by their backlog",
    "maxBatchReceiveTime": "a task reads its whole range, however long that takes",
    "partitionPreferredLocationStrategy": "Spark places the tasks, and each connects from where it runs",
    "dynamicPartitionDiscovery": "partitions are looked up whenever a micro-batch is planned",
}
"""Tuning that changes no result: accepted, with a warning in the log, so that a job can move unchanged."""

REFUSED: Final = {
    "maxRatePerPartition": "use maxEventsPerTrigger, which is shared by backlog",
    "maxRatesPerPartition": "use maxEventsPerTrigger, which is shared by backlog",
    "maxEventsPerTriggerPerPartition": "use maxEventsPerTrigger, which is shared by backlog",
    "useAadAuth": "use eventhubs.credential, which names what makes the Entra ID credential",
    "aadAuthCallback": "use eventhubs.credential, which names what makes the Entra ID credential",
    "aadAuthCallbackParams": "use eventhubs.credential, which names what makes the Entra ID credential",
    "metricPlugin": "a JVM class cannot be called; query.lastProgress has the figures",
    "throttlingStatusPlugin": "a JVM class cannot be called; query.lastProgress has the figures",
    "useSimulatedClient": "tidegate serve is a whole service to test against",
}
"""Options that would change a result, or whose effect would be missed, if they were ignored."""

# Spark hands names over in lower case; errors and warnings have them as they are documented.
_SPELLED: Final = {name.lower(): name for name in (*WITHOUT_EFFECT, *REFUSED)}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one ``eventhubs`` source."""

    connection_string: ConnectionString = option(connection_string_of, *HUB_OPTIONS)
    """Names the event hub in ``entity_path``."""
    consumer_group: str = option(text(DEFAULT_CONSUMER_GROUP), "eventhubs.consumerGroup")
    starting: StartingPositions = option(starting_positions_of, *STARTING_OPTIONS)
    ending: StartingPositions | None = option(ending_positions_of, *ENDING_OPTIONS)
    """The first event that a batch query does not read; None: the end at its start. Streams have no end."""
    max_events_per_trigger: int | None = option(positive_integer, "eventhubs.maxEventsPerTrigger")
    """Most events in one micro-batch; None: all available."""
    fail_on_data_loss: bool = option(flag(True), "eventhubs.failOnDataLoss")
    ca_certificates: str | None = option(read_certificates, "eventhubs.caFile", is_secret=True)
    """The content of the file (PEM), since executors on other machines do not have it."""
    tasks_min: int | None = option(positive_integer, "eventhubs.tasksMin")
    """Most Spark tasks for a small (micro-)batch; None: as many as for a large one."""
    tasks_max: int | None = option(positive_integer, "eventhubs.tasksMax")
    """Most Spark tasks per (micro-)batch; None: as many as this machine has cores, or ``tasks_min``."""
    encoded_events: bool = option(flag(False), "eventhubs.encodedEvents")
    credential: str | None = option(credential_of, "eventhubs.credential")
    """``module:name`` of the credential factory that every connecting process calls; None: the connection
    string has a key or signature."""
    split_partitions: bool | None = option(flag(None), "eventhubs.splitPartitions")
    """Whether one partition may be read by several tasks; None: batch queries may, streams may not."""
    push_filters: bool = option(flag(False), "eventhubs.pushFilters")
    """Whether a batch query's conditions limit what is read, which binds the DataFrame to one query."""
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    """The given options of ``WITHOUT_EFFECT``, by their names there."""

    @property
    def event_hub(self) -> str:
        """Its name."""
        assert self.connection_string.entity_path is not None
        return self.connection_string.entity_path

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options that Spark hands over (names in any case, with or without ``eventhubs.``).

        Raises InvalidArgumentError naming the option at fault; ConnectionStringError for the string itself.
        """
        foreign = [short for name in options if (short := short_name(name)) in _SPELLED]
        spelled = {_SPELLED[short] for short in foreign}
        for name in sorted(spelled & REFUSED.keys()):
            raise InvalidArgumentError(
                f"The option {PREFIX}{name} is not supported: {REFUSED[name]}.", next_step="Leave it out."
            )
        parsed = read_options(cls, options, subject="The format eventhubs", ignored=foreign)
        tasks_min, tasks_max = parsed.tasks_min, parsed.tasks_max
        if tasks_min is not None and tasks_max is not None and tasks_min > tasks_max:
            raise InvalidArgumentError(
                f"The option eventhubs.tasksMin ({tasks_min}) exceeds eventhubs.tasksMax ({tasks_max}).",
                next_step="Lower tasksMin, or leave one of the two out.",
            )
        return replace(parsed, without_effect=tuple(sorted(spelled)))

    def warn_of_those_without_effect(self) -> None:
        """Log which options have no effect, and why. To be called once per query, by its planner.

        Not done by ``parse``, which Spark runs in several processes per query.
        """
        for name in self.without_effect:
            _logger.warning("The option %s%s has no effect: %s.", PREFIX, name, WITHOUT_EFFECT[name])
