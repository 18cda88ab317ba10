"""Failed events, and who keeps them: the dead letter manager of a host, if it is not the database's table.

It stores dead letters before the checkpoint moves, and the two are not one transaction: at least once. None
is lost; after a crash in between, the same event comes a second time, with the same ``FailedEvent.id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tidegate.model.errors import EventTooLargeError, InvalidArgumentError, StoreUnavailableError, text_of
from tidegate.model.events import EventContents, EventData, ReceivedEvent
from tidegate.model.limits import PARTITION_KEY_CHARACTERS_MAX
from tidegate.processor.lease import GroupKey

if TYPE_CHECKING:
    from tidegate.client import EventHubProducer

REJECTED: Final = "RejectedByHandler"
"""The error type of a dead letter whose handler gave a string instead of an exception."""
_DESCRIPTION_CHARACTERS_MAX: Final = 4096
"""Of a reason in an event's properties (Azure Service Bus: "Dead-letter queues", 2026-11)."""


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An event that could not be processed: what IDeadLetterManager.AddFailedEvents gets a list of."""

    event: ReceivedEvent
    failed_at: datetime
    """By the host's clock, aware."""
    error: BaseException | str
    """An exception, or a reason that the handler gave."""
    group: GroupKey
    """Whose handler failed; its event hub is the event's."""

    @property
    def id(self) -> str:
        """32 characters, the same each time this event fails in this group: a reader drops all but one.

        An event that gets this one's number later, in a hub created again or a restored log, has another.
        """
        event, group = self.event, self.group
        place = (event.partition_id, event.sequence_number, event.enqueued_time_ms)
        parts = (group.namespace, group.event_hub, group.consumer_group, *place)
        return blake2b("\0".join(map(str, parts)).encode(), digest_size=16).hexdigest()

    @property
    def error_type(self) -> str:
        """The exception's class name."""
        return REJECTED if isinstance(self.error, str) else type(self.error).__name__

    @property
    def reason(self) -> str:
        """The error as text that can be encoded, never empty."""
        text = (self.error if isinstance(self.error, str) else text_of(self.error)) or self.error_type
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    @property
    def contents(self) -> EventContents:
        """The event's contents; empty if its bytes cannot be decoded, but its place is known."""
        try:
            return self.event.decode()
        except Exception:  # whatever is wrong with the bytes, the pointer is still valid
            return EventContents(b"")


@runtime_checkable
class DeadLetterManager(Protocol):
    """Keeps dead letters outside of the transaction, as IDeadLetterManager: a queue, a table, a hub.

    ``tidegate.testing.stores`` has the tests for it.
    """

    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        """Store failed events of one partition, ascending, and return once they are durable.

        Whatever it raises, nothing counts as stored: the batch comes again, and with it these events.
        An event with a known ``id`` is accepted again. Cancellation: may have stored them.
        """
        ...


class HubDeadLetters:
    """Sends dead letters to an event hub, with their partition keys; it may be on another service.

    An event keeps its body, its properties, its content type, and 128 characters of its key. Its message id
    becomes ``FailedEvent.id``, and properties say why and where it failed: DeadLetterReason and
    DeadLetterErrorDescription as in Azure Service Bus, and DeadLetterSource, the number in
    DeadLetterSequenceNumber, DeadLetterFailedAt. One that is too large with them is sent without its own
    contents. An AMQP value as a body is left out.
    """

    def __init__(self, producer: EventHubProducer) -> None:
        """producer: for this alone; ``close`` closes it."""
        self._producer = producer
        self._turn = asyncio.Lock()
        """Held from the first event to the flush, which raises what failed of all events."""

    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        """See ``DeadLetterManager``. Raises what the producer raises."""
        async with self._turn:
            for each in failed:
                contents = each.contents
                key = contents.partition_key
                # The service checks a batch's key, not those of its events: theirs may be longer.
                key = None if key is None else key[:PARTITION_KEY_CHARACTERS_MAX]
                try:
                    await self._producer.enqueue(_letter(each, contents), partition_key=key)
                except (EventTooLargeError, InvalidArgumentError):
                    await self._producer.enqueue(_letter(each, EventContents(b"")), partition_key=key)
            await self._producer.flush()

    async def close(self) -> None:
        """Close the producer. Idempotent."""
        await self._producer.close()


def _letter(failed: FailedEvent, contents: EventContents) -> EventData:
    return EventData(
        contents.body,
        {
            **contents.properties,
            "DeadLetterReason": failed.error_type,
            "DeadLetterErrorDescription": failed.reason[:_DESCRIPTION_CHARACTERS_MAX],
            "DeadLetterSource": f"{failed.group}/{failed.event.partition_id}",
            "DeadLetterSequenceNumber": failed.event.sequence_number,
            "DeadLetterFailedAt": failed.failed_at,
        },
        contents.content_type,
        failed.id,
        contents.message_id,
    )


async def store_failed(manager: DeadLetterManager, failed: Sequence[FailedEvent]) -> None:
    """Give failed events to the manager. Raises StoreUnavailableError whatever that raises."""
    try:
        await manager.add_failed_events(failed)
    except Exception as error:  # a user's code: the events come again
        raise StoreUnavailableError(
            f"The dead letters of partition {failed[0].event.partition_id} of {failed[0].group} were not "
            f"stored: {type(error).__name__}: {text_of(error)}",
            next_step="The batch comes again; the checkpoint waits until its dead letters are stored.",
        ) from error
