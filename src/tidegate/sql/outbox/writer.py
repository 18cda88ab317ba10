"""Stores the events that a handler publishes, as rows of its transaction.

Events are buffered as the batches in which they will be sent. They become rows at the end of the call, and
before each statement that sets or releases a savepoint; one that rolls back drops what is buffered. So a
rolled back savepoint undoes exactly what was published in it, and a call's events cost three statements.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol
from zlib import crc32

from sqlalchemy import Connection, bindparam, event, insert, select, update

from tidegate.client.batching import BatchAccumulator, check_destination, check_size
from tidegate.client.repeatable import HubLayout
from tidegate.model.errors import PartitionPausedError, TidegateError
from tidegate.model.events import EventData
from tidegate.model.hub_properties import no_partition
from tidegate.model.partition_key import partition_for_key
from tidegate.sql.core.database import Database
from tidegate.sql.core.schema import of_consumer, outbox, outbox_lane
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.outbox.lanes import new_producer_id, read_hub
from tidegate.tracing import find_tracing
from tidegate.wire.event_codec import encode_event

OUTBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a partition may have published that is not relayed (our choice: minutes of an ordinary handler)."""

_SAVES = re.compile(r"\s*(savepoint|release|save\s+tran|if\s+current_transaction_id)", re.IGNORECASE)
"""SQL Server has other words, and what checks its transaction instead of RELEASE."""
_ROLLS_BACK = re.compile(r"\s*rollback\b", re.IGNORECASE)
_lane = outbox_lane.c


class Relay(Protocol):
    """What sends the rows of a process's hosts."""

    def wake(self) -> None:
        """There are rows. Thread-safe."""
        ...

    def read_layout(self, target_hub: str) -> HubLayout:
        """Ask the service. Called in other threads than the relay's."""
        ...


@dataclass(eq=False)
class Outbox:
    """What transactions of a process share: the relays that run in it, and the hubs as last read."""

    database: Database
    bytes_max: int = OUTBOX_BYTES_MAX
    """Of a partition; with more, its transactions wait."""
    relays: list[Relay] = field(default_factory=list)
    layouts: dict[str, HubLayout] = field(default_factory=dict)
    turns: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def layout_of(self, target_hub: str) -> HubLayout:
        """The hub's partitions and limit. Raises PartitionPausedError if they are not known yet."""
        found = self.layouts.get(target_hub)
        if found is None:
            with self._lock:
                found = self.layouts.get(target_hub) or self._find_layout(target_hub)
                self.layouts[target_hub] = found
        return found

    def wake(self) -> None:
        """Wake the relays, after a commit."""
        for relay in list(self.relays):
            relay.wake()

    def _find_layout(self, target_hub: str) -> HubLayout:
        kept = read_hub(self.database, target_hub)
        if kept is not None:
            return HubLayout(*kept, is_repeat_safe=True)
        relays = list(self.relays)
        if not relays:
            raise PartitionPausedError(
                f"Nothing was published to the event hub {target_hub!r} yet, and no host runs here that "
                "could read its partitions.",
                next_step="Let a host of the consumer group publish to it once.",
            )
        try:
            return relays[0].read_layout(target_hub)
        except TidegateError as error:
            raise PartitionPausedError(
                f"The event hub {target_hub!r} cannot be published to: {error.message}",
                next_step=error.next_step,
            ) from error


class OutboxWriter:
    """What one transaction of one partition publishes."""

    def __init__(self, outbox_: Outbox, unit: UnitOfWork, partition_id: str) -> None:
        self._outbox = outbox_
        self._unit = unit
        self._partition_id = partition_id
        self._batches: dict[tuple[str, str], list[BatchAccumulator]] = {}
        """By target hub and partition, in order."""
        self._turn: int | None = None
        self.is_used = False
        """Whether something was published, even if it was rolled back."""
        self.paused: PartitionPausedError | None = None
        """Why the transaction must not commit, even if the handler has caught it."""
        self._is_room_known = False

    def add(
        self, target_hub: str, published: EventData, *, partition_key: str | None, partition_id: str | None
    ) -> None:
        """Buffer an event. Raises as ``TransactionContext.publish``."""
        check_destination(partition_key, partition_id)
        target_hub = target_hub.lower()
        with self._pausing():
            layout = self._outbox.layout_of(target_hub)
        ids = layout.partition_ids
        if partition_key is not None:
            partition_id = ids[partition_for_key(partition_key, len(ids))]
        elif partition_id is None:
            partition_id = ids[self._turn_of_call() % len(ids)]
        elif partition_id not in ids:
            raise no_partition(target_hub, partition_id, ids)
        tracing = find_tracing()
        encoded = encode_event(published if tracing is None else tracing.sent(published), partition_key)
        check_size(encoded, layout.batch_bytes_max)
        if not self.is_used:
            self.is_used = True
            event.listen(self._unit.connection, "before_cursor_execute", self._before_statement)
        batches = self._batches.setdefault((target_hub, partition_id), [])
        if not batches or not batches[-1].try_add(encoded):
            batches.append(BatchAccumulator(layout.batch_bytes_max))
            batches[-1].try_add(encoded)

    def _turn_of_call(self) -> int:
        """Events without a key go to one partition until they become rows; then it is the next one's turn."""
        if self._turn is None:
            self._turn = self._outbox.turns() + crc32(self._partition_id.encode())
        return self._turn

    def _before_statement(self, connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if _ROLLS_BACK.match(statement):
            self._batches.clear()
        elif _SAVES.match(statement):
            self.store()

    def store(self) -> None:
        """Make rows of what is buffered. Raises PartitionPausedError, and what SQLAlchemy raises."""
        with self._pausing():
            if self._batches:
                self._store(self._unit.connection)
                self._batches.clear()
                self._turn = None

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        if self.paused is not None:
            raise self.paused
        try:
            yield
        except PartitionPausedError as error:
            self.paused = error
            raise

    def _store(self, connection: Connection) -> None:
        consumer = self._unit.consumer
        known = {
            (lane.target_hub, lane.target_partition_id): lane
            for lane in connection.execute(
                select(outbox_lane).where(of_consumer(outbox_lane, consumer, self._partition_id))
            )
        }
        if not self._is_room_known:
            # Of earlier transactions only: no relay sends what this one has published before.
            self._check_room(sum(lane.next_byte - lane.relayed_bytes for lane in known.values()))
            self._is_room_known = True
        rows: list[dict[str, object]] = []
        new: list[dict[str, object]] = []
        moved: list[dict[str, object]] = []
        for target, batches in self._batches.items():
            lane = known.get(target)
            lane_id = self._lane_id(target) if lane is None else lane.lane_id
            number, byte = (0, 0) if lane is None else (lane.next_number, lane.next_byte)
            for batch in batches:
                byte += batch.size_bytes
                rows.append(
                    {
                        "lane_id": lane_id,
                        "number": number,
                        "event_count": len(batch),
                        "until_byte": byte,
                        "sections": b"".join(batch.parts),
                    }
                )
                number += len(batch)
            if lane is None:
                new.append(self._new_lane(lane_id, target, number, byte))
            else:
                moved.append({"at_lane_id": lane_id, "new_number": number, "new_byte": byte})
        # Lanes before rows, as a relay; in any order, because a relay does not wait for them.
        if moved:
            connection.execute(_MOVE, moved)
        if new:
            connection.execute(insert(outbox_lane), new)
        connection.execute(insert(outbox), rows)

    def _check_room(self, waiting: int) -> None:
        if waiting > self._outbox.bytes_max:
            raise PartitionPausedError(
                f"Partition {self._partition_id} of {self._unit.consumer} has published {waiting:,} bytes "
                f"that are not in their hubs yet; {self._outbox.bytes_max:,} are allowed.",
                next_step="It continues when the relay has sent them: check the hubs that it publishes to.",
            )

    def _lane_id(self, target: Sequence[str]) -> str:
        consumer = self._unit.consumer
        names = (consumer.event_hub, consumer.consumer_group, self._partition_id, *target)
        return blake2b("\0".join(names).encode(), digest_size=16).hexdigest()

    def _new_lane(self, lane_id: str, target: Sequence[str], number: int, byte: int) -> dict[str, object]:
        return {
            "lane_id": lane_id,
            "event_hub": self._unit.consumer.event_hub,
            "consumer_group": self._unit.consumer.consumer_group,
            "partition_id": self._partition_id,
            "target_hub": target[0],
            "target_partition_id": target[1],
            "next_number": number,
            "next_byte": byte,
            "relayed_until": 0,
            "relayed_bytes": 0,
            "sent_until": 0,
            "producer_id": new_producer_id(),
            "producer_epoch": 0,
            "base_number": 0,
            "base_sequence_number": 0,
        }


_MOVE: Final = (
    update(outbox_lane)
    .where(_lane.lane_id == bindparam("at_lane_id"))
    .values(next_number=bindparam("new_number"), next_byte=bindparam("new_byte"))
)
