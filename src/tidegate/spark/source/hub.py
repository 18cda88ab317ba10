"""The readers' access to an event hub: bounds, the event at a position, and ranges of encoded events.

Each process keeps one blocking consumer per set of options between tasks: a Python worker lives through many
micro-batches, and a connection costs more than a small micro-batch.
"""

from __future__ import annotations

import importlib
import os
import platform
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.client import FetchedRange
from tidegate.client.blocking.consumer import BlockingConsumer
from tidegate.client.credentials import TokenCredential
from tidegate.model.errors import (
    EventHubReplacedError,
    InvalidArgumentError,
    NotFoundError,
    PositionOutOfRangeError,
    ReceiverStolenError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.model.position import EventPosition, PositionKind
from tidegate.model.times import time_of, time_text
from tidegate.processor.lease import SHADOW_MARK
from tidegate.spark.source.offsets import PartitionRange, StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.positions import StartingPositions
from tidegate.wire.encoded_events import EncodedEvents

_CONSUMERS_MAX = 8
_ENDING_STEP: Final = (
    "Use latest to end at each partition's present end, or set this partition's own end in "
    "eventhubs.endingPositions."
)
_STARTING_STEP: Final = (
    "Use latest to wait for new events, or set this partition's own start in eventhubs.startingPositions."
)


@dataclass(frozen=True, slots=True)
class HubDescription:
    """An event hub at one moment."""

    event_hub: str
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC; distinguishes the hub from a deleted one of the same name."""
    bounds: Mapping[str, PartitionEnds]

    def end_offset(self) -> StreamOffset:
        """The offset after all current events."""
        ends = {key: item.next_sequence_number for key, item in self.bounds.items()}
        return StreamOffset(ends, self.created_at_ms)

    def check_same_hub(self, created_at_ms: int) -> None:
        """Raise EventHubReplacedError if ``created_at_ms`` is that of a deleted hub of this name."""
        if created_at_ms != self.created_at_ms:
            raise EventHubReplacedError(
                f"The event hub {self.event_hub!r} was deleted and created again: the query has read from "
                f"the one of {time_text(time_of(created_at_ms))}, but the present one is of "
                f"{time_text(time_of(self.created_at_ms))}.",
                next_step="To read the new one from its start, give the query a new checkpoint directory "
                "(and a new consumer group, if it writes to SQL).",
            )


class HubReader:
    """Access with one source's options. Cheap to create, because connections are shared."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer = _consumer(options)

    def describe(self) -> HubDescription:
        """The hub and its partitions' current bounds."""
        properties = self._consumer.get_event_hub_properties()
        bounds = {ends.partition_id: ends for ends in self._consumer.get_all_partition_properties(properties)}
        return HubDescription(self._options.event_hub, properties.created_at_ms, bounds)

    def resolve(self, positions: StartingPositions, description: HubDescription) -> dict[str, int]:
        """The sequence number of each partition's first event at a position.

        Raises PositionOutOfRangeError for a sequence number beyond a partition's end, and
        InvalidArgumentError for a position of an unknown partition.
        """
        unknown = [key for key in positions.by_partition if key not in description.bounds]
        if unknown:
            raise InvalidArgumentError(
                f"The option {positions.option_for(unknown[0])} has a position for partition {unknown[0]}, "
                f"which the event hub {self._options.event_hub!r} does not have.",
                next_step=f"Its partitions are {', '.join(description.bounds)}.",
            )
        return {
            partition_id: self._resolve_one(partition_id, positions, bounds)
            for partition_id, bounds in description.bounds.items()
        }

    def _resolve_one(self, partition_id: str, positions: StartingPositions, bounds: PartitionEnds) -> int:
        position = positions.for_partition(partition_id)
        if position.kind is PositionKind.EARLIEST:
            return bounds.begin_sequence_number
        if position.kind is PositionKind.LATEST:
            return bounds.next_sequence_number
        if position.kind is PositionKind.SEQUENCE_NUMBER:
            assert isinstance(position.value, int)
            wanted = position.value if position.is_inclusive else position.value + 1
            if wanted > bounds.next_sequence_number:
                raise PositionOutOfRangeError(
                    f"The option {positions.option_for(partition_id)} names the sequence number {wanted}, "
                    f"which partition {partition_id} has not reached: its next event gets "
                    f"{bounds.next_sequence_number}.",
                    next_step=_ENDING_STEP if positions.is_ending else _STARTING_STEP,
                )
            return wanted
        return self.first_sequence_number(partition_id, position, bounds)

    def first_sequence_number(self, partition_id: str, position: EventPosition, bounds: PartitionEnds) -> int:
        """The first event at an offset or time, found by receiving it; the end if there is none yet."""
        try:
            return self._consumer.first_sequence_number(position, bounds)
        except (NotFoundError, ReceiverStolenError) as error:
            raise with_remedy(error, self._options) from error

    def read_events(self, partition_id: str, sequence_numbers: Sequence[int]) -> Iterator[ReceivedEvent]:
        """Single events, ascending. Raises PositionOutOfRangeError if retention has deleted one."""
        return self._consumer.read_events(self._options.event_hub, partition_id, sequence_numbers)

    def read(self, item: PartitionRange) -> Iterator[EncodedEvents]:
        """The events of a range, still encoded, in order."""
        return self._consumer.read_encoded(
            item.partition_id,
            item.start_sequence_number,
            item.until_sequence_number,
            history_id=item.history_id,
            is_continued=item.is_last_piece,
        )

    def read_together(self, items: Sequence[PartitionRange]) -> list[FetchedRange]:
        """Short ranges of different partitions together; ``read`` the rest of any incomplete one."""
        return self._consumer.read_together(
            [
                (item.partition_id, item.start_sequence_number, item.until_sequence_number, item.history_id)
                for item in items
            ]
        )


def with_remedy(
    error: NotFoundError | ReceiverStolenError, options: SourceOptions
) -> NotFoundError | ReceiverStolenError:
    """The receiver's error, with what to do: create the consumer group if that is missing, or read with
    another one if a processor has this one."""
    group, next_step = options.consumer_group, error.next_step
    if isinstance(error, ReceiverStolenError):
        next_step = (
            f"A host or another processor reads the consumer group {group} and keeps other readers out: stop "
            "it, or name another consumer group in the option eventhubs.consumerGroup."
        )
    elif group != DEFAULT_CONSUMER_GROUP and group.lower() in error.message.lower():
        next_step = (
            f"Create the consumer group with `tidegate group create {options.event_hub} {group}`, or correct "
            "the option eventhubs.consumerGroup."
        )
    return type(error)(error.message, next_step=next_step)


_consumers: dict[tuple[int, str, str, str | None, str | None], BlockingConsumer] = {}
_consumers_lock = threading.Lock()


def _forget_lock() -> None:
    """Replace the lock in a forked child, where it may be held by a thread that does not exist."""
    global _consumers_lock
    _consumers_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def ssl_context_of(certificates: str | None) -> ssl.SSLContext | None:
    """A TLS context that also trusts these certificates (PEM); None: the client makes its own.

    They are not a file, because executors do not have it. Raises InvalidArgumentError.
    """
    if certificates is None:
        return None
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as exc:
        raise InvalidArgumentError(
            f"The file that eventhubs.caFile names holds no certificates: {exc}.",
            next_step="It must be a PEM file, such as ca_file in the service's ready file.",
        ) from exc
    return context


def make_credential(name_of_maker: str | None) -> TokenCredential | None:
    """Call the factory that the option ``credential`` names: credentials cannot be sent between processes."""
    if name_of_maker is None:
        return None
    module_name, _, name = name_of_maker.partition(":")
    try:
        credential: TokenCredential = getattr(importlib.import_module(module_name), name)()
    except (ImportError, AttributeError) as exc:
        raise InvalidArgumentError(
            f"The option eventhubs.credential is {name_of_maker!r}, which cannot be loaded: {exc}.",
            next_step="Install it on the driver and on every executor (Azure's own needs azure-identity and "
            "aiohttp).",
        ) from exc
    return credential


def _receiver_name() -> str:
    """Shown where the service lists a partition's receivers."""
    return f"spark-{platform.node()[:24]}-{os.getpid()}"


def _consumer(options: SourceOptions) -> BlockingConsumer:
    """This process's consumer for the options; the key has the process id because workers are forked."""
    group = options.consumer_group.partition(SHADOW_MARK)[0]  # a shadow reads as its live pipeline
    key = (
        os.getpid(),
        options.connection_string.format(),
        group,
        options.ca_certificates,
        options.credential,
    )
    with _consumers_lock:  # a task's commits have a thread of their own
        consumer = _consumers.get(key)
        if consumer is None:
            if len(_consumers) >= _CONSUMERS_MAX:
                _consumers.pop(next(iter(_consumers))).close()
            consumer = BlockingConsumer(
                options.connection_string,
                consumer_group=group,
                ssl_context=ssl_context_of(options.ca_certificates),
                credential=make_credential(options.credential),
                receiver_name=_receiver_name(),
            )
            _consumers[key] = consumer
        return consumer
