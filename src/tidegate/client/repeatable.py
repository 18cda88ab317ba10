"""``RepeatableProducer``: numbers batches under the caller's identity, so that repeats are stored once.

Theory of operation
-------------------
``EventHubProducer`` has a new identity in each process, so it recognises only its own repeats. Here the
caller gives the identity (a producer id and an epoch) of work that another process may repeat, such as a
Spark task in a micro-batch. Its events are numbered from 0 per partition. When a link is attached, the
service reports how many of them are stored:

    batch                                what happens
    entirely below that number           skipped: it is stored
    the last one below it                sent again to be compared: other bytes are a RepeatDiffersError
    across it                            RepeatDiffersError: the batches were cut differently
    from that number on                  sent

So concurrent attempts at the same work (speculative execution) complement each other, and one of an earlier
epoch is refused. For an identity, the caller must always send the same events in the same order, cut into the
same batches. A service without ``tidegate:idempotent-batch`` (Azure) stores repeats again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Unpack

from tidegate.amqp.performatives import Attach
from tidegate.amqp.types import Short
from tidegate.client.batching import largest_batch_bytes
from tidegate.client.blocking.background import run_blocking
from tidegate.client.closing import Closing
from tidegate.client.connector import Connector
from tidegate.client.management import read_event_hub
from tidegate.client.namespace import ConnectionOptions, Namespace, event_hub_of
from tidegate.client.partition_sender import OutgoingBatch, PartitionSender
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    InvalidArgumentError,
    OutboxInDoubtError,
    OutOfOrderSequenceError,
    RepeatDiffersError,
    TidegateError,
)
from tidegate.model.hub_properties import no_partition
from tidegate.wire.addresses import NodeAddress, entity_audience
from tidegate.wire.names import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQUENCE_NUMBER,
    PRODUCERS_KNOWN_SINCE,
)

_UNACKNOWLEDGED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Our choice: half that of ``EventHubProducer``, because a machine runs one producer per core."""
_EPOCHS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The work that batches belong to."""

    producer_id: int
    """0 to 2**63 - 1; the service remembers about a thousand per partition."""
    epoch: int = 0
    """0 to 32767: which part of its work. After a higher epoch, lower ones are refused."""

    def __post_init__(self) -> None:
        if not 0 <= self.producer_id < 1 << 63 or not 0 <= self.epoch < _EPOCHS:
            raise InvalidArgumentError(f"Invalid producer identity {self!r}.")


@dataclass(frozen=True, slots=True)
class HubLayout:
    """The hub's properties that determine how batches are cut."""

    partition_ids: tuple[str, ...]
    batch_bytes_max: int
    """Maximum bytes of data sections in a batch."""
    is_repeat_safe: bool
    """Whether the service supports numbered batches; otherwise repeats are stored again."""


class RepeatableProducer(Closing):
    """One process's connection to one event hub, for any number of ``begin`` calls. ``close`` it."""

    def __init__(
        self,
        connection_string: str | ConnectionString,
        event_hub: str | None = None,
        *,
        is_idempotent: bool = True,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Connects when first used, on this process's background loop.

        is_idempotent: False sends without numbers, to any service.
        """
        self.event_hub = event_hub_of(connection_string, event_hub)
        self._namespace = Namespace.from_connection_string(connection_string, **options)
        self._audience = entity_audience(self._namespace.host, self.event_hub)
        self._is_idempotent = is_idempotent
        self._process_id = os.getpid()
        self._connector: Connector | None = None
        self._layout: HubLayout | None = None

    @property
    def layout(self) -> HubLayout:
        """Partitions and sizes, as last read. Raises as ``EventHubProducer.start``."""
        if self._layout is None:
            self._layout = run_blocking(self._learn_layout)
        return self._layout

    def read_partitions(self) -> None:
        """Read the hub's partitions again, for the next ``begin``: some may have been added."""
        layout = self.layout
        found = run_blocking(lambda: read_event_hub(self._own_connector(), self._audience, self.event_hub))
        self._layout = replace(layout, partition_ids=tuple(found.partition_ids))

    def begin(self, identity: ProducerIdentity) -> RepeatableWork:
        """Begin or continue the work of an identity. The caller must close the result."""
        return RepeatableWork(self, self.layout, identity)

    def close(self) -> None:
        """Close the connection. Idempotent; does nothing in a forked child."""
        connector, self._connector = self._connector, None
        if connector is not None and self._process_id == os.getpid():
            run_blocking(connector.close)

    # --- on the background loop ---------------------------------------------------------------------------

    def sender(self, partition_id: str, identity: ProducerIdentity) -> RepeatableSender:
        """A new sender for one partition; call it only on the background loop."""
        return RepeatableSender(
            self._own_connector(),
            address=NodeAddress.for_sending(self.event_hub, partition_id=partition_id).format(),
            audience=self._audience,
            partition_id=partition_id,
            identity=identity,
            is_idempotent=self._is_idempotent,
        )

    def _own_connector(self) -> Connector:
        if self._process_id != os.getpid():
            raise ClosedError("A producer can be used only in the process that created it.")
        if self._connector is None:
            self._connector = Connector(self._namespace)
        return self._connector

    async def _learn_layout(self) -> HubLayout:
        return await learn_layout(
            self._own_connector(), self.event_hub, self._audience, is_idempotent=self._is_idempotent
        )


async def learn_layout(
    connector: Connector, event_hub: str, audience: str, *, is_idempotent: bool = True
) -> HubLayout:
    """Ask the service for a hub's layout. Raises as ``EventHubProducer.start``."""
    found = await read_event_hub(connector, audience, event_hub)
    first = PartitionSender(
        connector,
        address=NodeAddress.for_sending(event_hub, partition_id=found.partition_ids[0]).format(),
        audience=audience,
        partition_id=found.partition_ids[0],
        is_idempotent=is_idempotent,
    )
    limit = await first.learn_message_bytes_max()
    first.release()
    return HubLayout(tuple(found.partition_ids), largest_batch_bytes(limit), first.is_idempotent)


class RepeatableWork(Closing):
    """The events of one identity, from the first. Not thread-safe; ``close`` it.

    Batches are numbered consecutively per partition, whether they were stored earlier or not.
    """

    def __init__(self, producer: RepeatableProducer, layout: HubLayout, identity: ProducerIdentity) -> None:
        """Use ``RepeatableProducer.begin``."""
        self._producer = producer
        self._layout = layout
        self._identity = identity
        self._senders: dict[str, RepeatableSender] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._settled = asyncio.Event()
        """Set when a batch is settled; waiting for all futures would cost a step per future each time."""
        self._unacknowledged_bytes = 0
        self._failure: BaseException | None = None

    def find_stored(self, partition_ids: Iterable[str]) -> frozenset[str]:
        """The partitions that have events of an earlier run of this work. Call it before ``submit``."""
        return run_blocking(lambda: self._find_stored(partition_ids))

    def submit(self, partition_id: str, sections: bytes, event_count: int) -> None:
        """Send the next batch of a partition; returns when there is room for another one.

        sections: ``event_count`` consecutive data sections (``wire.batch``), at most the layout's
        ``batch_bytes_max`` bytes. Raises the error of an earlier batch, and NotFoundError (partition).
        """
        if partition_id not in self._layout.partition_ids:
            raise no_partition(self._producer.event_hub, partition_id, self._layout.partition_ids)
        run_blocking(lambda: self._submit(partition_id, sections, event_count))

    def flush(self) -> int:
        """Wait until all submitted events are stored; returns how many an earlier run had stored.

        Raises RepeatDiffersError if an earlier run stored more or different events; ProducerEpochStolenError
        if a later epoch has begun; after the retries BrokenError, OperationTimeoutError or ServerBusyError.
        """
        return run_blocking(self._flush)

    def close(self) -> None:
        """Detach; unacknowledged events may be stored. Idempotent."""
        run_blocking(self._close)

    # --- on the background loop ---------------------------------------------------------------------------

    def _sender(self, partition_id: str) -> RepeatableSender:
        sender = self._senders.get(partition_id)
        if sender is None:
            sender = self._senders[partition_id] = self._producer.sender(partition_id, self._identity)
        return sender

    async def _find_stored(self, partition_ids: Iterable[str]) -> frozenset[str]:
        senders = [self._sender(each) for each in partition_ids]
        await asyncio.gather(*(sender.learn_message_bytes_max() for sender in senders))
        return frozenset(sender.partition_id for sender in senders if sender.found_count)

    async def _submit(self, partition_id: str, sections: bytes, event_count: int) -> None:
        sender = self._sender(partition_id)
        while self._unacknowledged_bytes >= _UNACKNOWLEDGED_BYTES_MAX and self._failure is None:
            await self._wait_settled()
        if self._failure is not None:
            raise self._failure
        batch = OutgoingBatch([sections], len(sections), event_count)
        acknowledged = batch.acknowledged = asyncio.get_running_loop().create_future()
        self._unacknowledged_bytes += batch.size_bytes
        self._waiting.add(acknowledged)

        def finish(future: asyncio.Future[None]) -> None:
            self._waiting.discard(future)
            self._unacknowledged_bytes -= batch.size_bytes
            if not future.cancelled() and future.exception() is not None:
                self._failure = self._failure or future.exception()
            self._settled.set()

        acknowledged.add_done_callback(finish)
        sender.submit(batch)

    async def _flush(self) -> int:
        while self._waiting and self._failure is None:
            await self._wait_settled()
        if self._failure is not None:
            raise self._failure
        for sender in self._senders.values():
            sender.check_complete()
        return sum(sender.found_count for sender in self._senders.values())

    async def _wait_settled(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    async def _close(self) -> None:
        for sender in self._senders.values():
            sender.close(ClosedError("The producer was closed before the service responded."))
            sender.release()
        self._senders.clear()


class RepeatableSender(PartitionSender):
    """Sends the batches of one identity to one partition, by the table in this module's docstring."""

    def __init__(
        self,
        connector: Connector,
        *,
        address: str,
        audience: str,
        partition_id: str,
        identity: ProducerIdentity,
        is_idempotent: bool,
    ) -> None:
        super().__init__(
            connector,
            address=address,
            audience=audience,
            partition_id=partition_id,
            is_idempotent=is_idempotent,
        )
        self._producer_id = identity.producer_id
        self._producer_epoch = identity.epoch
        self._stored_count = 0
        """Events of this identity that the service had when the link was last attached."""
        self._acknowledged_count = 0
        self.found_count = 0
        """Events that were stored before this began."""
        self.known_since: int | None = None
        """The service would know a producer that has written at this sequence number or beyond; None: it does
        not say."""
        self._began_at: int | None = None
        self._is_first_attach = True
        self._final_error: TidegateError | None = None
        """The error of a failed batch: no later batch may be stored, because there would be a gap."""

    def skip_to(self, number: int, *, began_at: int) -> None:
        """Let the next batch begin with this number; the caller knows that all before it are stored.

        began_at: the partition's end before anything of this identity was sent. Once the service may have
        forgotten the identity's first batch, batches fail with OutboxInDoubtError: it would be stored again.
        """
        self._next_sequence = self._acknowledged_count = number
        self._began_at = began_at

    def submit(self, batch: OutgoingBatch) -> None:
        """Number and queue a batch."""
        batch.sequence = self._next_sequence
        self._next_sequence += batch.event_count
        assert self._next_sequence < 1 << 31
        super().submit(batch)
        if self._final_error is not None:
            self._fail_all(self._final_error)

    def check_complete(self) -> None:
        """Raises RepeatDiffersError if the service has more events than were submitted."""
        if self._stored_count > self._next_sequence:
            raise self._differs(f"{self._next_sequence} in all")

    def _link_properties(self) -> dict[str, object] | None:
        if not self._is_idempotence_wanted:
            return None
        return {PRODUCER_ID: self._producer_id, PRODUCER_EPOCH: Short(self._producer_epoch)}

    def on_attached(self, attach: Attach) -> None:
        """Note how many events are stored."""
        super().on_attached(attach)
        last = attach.properties.get(PRODUCER_SEQUENCE_NUMBER)
        if not self.is_idempotent or not isinstance(last, int):
            return
        self._stored_count = int(last) + 1
        known_since = attach.properties.get(PRODUCERS_KNOWN_SINCE)
        self.known_since = known_since if isinstance(known_since, int) else None
        if self._is_first_attach:
            self._is_first_attach = False
            self.found_count = self._stored_count
        is_beginning = self._stored_count == self._acknowledged_count == 0
        if is_beginning and self._began_at is not None and not self._would_be_known(self._began_at):
            self._failure = OutboxInDoubtError(
                f"Partition {self.partition_id} may have the first events of the producer "
                f"{self._producer_id}, and the service may have forgotten it."
            )
        if self._stored_count < self._acknowledged_count:
            self._failure = BrokenError(
                f"Partition {self.partition_id} has {self._stored_count} events of the "
                f"producer {self._producer_id}, but had acknowledged "
                f"{self._acknowledged_count}.",
                next_step="Check whether the event hub was recreated, or over 1,000 other producers "
                "wrote to it.",
            )

    def _would_be_known(self, began_at: int) -> bool:
        return self.known_since is not None and self.known_since <= began_at

    def _send_some(self) -> bool:
        while self._queue and _until(self._queue[0]) < self._stored_count:
            self._finish(self._queue.popleft(), None)
            self._changed.set()
        if self._queue and (self._queue[0].sequence or 0) < self._stored_count < _until(self._queue[0]):
            self._failure = self._differs("cut into other batches")
            self._changed.set()
            return False
        return super()._send_some()

    def _in_flight_max(self) -> int:
        # Sent alone until it is known to be the same: if it differs, later batches must not be stored.
        is_compared = self._acknowledged_count >= self._stored_count
        return super()._in_flight_max() if is_compared else 1

    def _finish(self, batch: OutgoingBatch, error: TidegateError | None) -> None:
        if error is None:
            self._acknowledged_count = _until(batch)
        super()._finish(batch, error)

    async def _recover(self, error: TidegateError, retries_done: int) -> int:
        """Wait before the next try, or fail all remaining batches: their numbers cannot be used again."""
        retry = self._connector.namespace.retry
        if isinstance(error, OutOfOrderSequenceError) and retries_done < retry.retries_max:
            # Another attempt at the same work is so far ahead that the service no longer remembers this
            # batch. Attaching again reports how many events are stored.
            self._detach()
            await asyncio.sleep(0)
            return retries_done + 1
        if self._is_token_perhaps_over(error):
            return self._try_new_token(retries_done)
        if retry.decide_retry(error, retries_done=retries_done):
            await self._connector.wait_before_retry(retries_done + 1, error)
            return retries_done + 1
        self._final_error = error
        self._fail_all(error)
        return 0

    def _fail_all(self, error: TidegateError) -> None:
        while self._queue:
            self._finish(self._queue.popleft(), error)

    def _differs(self, what: str) -> RepeatDiffersError:
        return RepeatDiffersError(
            f"Partition {self.partition_id} has {self._stored_count} events of an earlier "
            f"run of this work (producer {self._producer_id}, epoch {self._producer_epoch}), "
            f"but now they are {what}.",
            next_step="A retry must send the same events in the same order.",
        )


def _until(batch: OutgoingBatch) -> int:
    return (batch.sequence or 0) + batch.event_count
