"""Idempotent producers attached to a partition: where each continues, and which one excludes which.

Values that a producer omits when it attaches are filled in. Others are accepted, as only the producer knows
which acknowledgements it has received: a repeated batch is then recognised by its number (``storage``).

    when attaching               result
    no producer id               a new, unused one
    no epoch                     the highest known one of the producer, else 0
    an epoch                     accepted if not lower than the known one; lower ones are stolen from
    no last sequence number      the last stored one, else -1
    a last sequence number       accepted
    as another LINKS_MAX have    the oldest link of the producer is detached

Source of names and rules: @azure/event-hubs 6.0.4 (``eventHubSender``) and the design of .NET's idempotent
producer (azure-sdk-for-net#13188, #18016: -1 before anything was sent). Our choice: equal epochs do not steal
from each other, so that a producer can reconnect while its old link is half open. A producer has few links,
so that a higher epoch has few to steal from, in one step of the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final
from weakref import WeakValueDictionary

from tidegate.model.errors import ProducerEpochStolenError
from tidegate.storage.engine import PartitionLog
from tidegate.storage.producers import SEQUENCE_MODULUS
from tidegate.storage.record import ProducerBatch

OnProducerStolen = Callable[[ProducerEpochStolenError], None]

LINKS_MAX: Final = 5
"""Links of one producer at one partition. Our choice, as many as receivers without an owner level: official
clients and ours have one, and for a while those of lost connections."""

_ASKING_MAX: Final = 16
"""Producers of one party for which the log is asked at a time. Our choice, as many as it answers in a round:
parties take turns, and one alone does not wait longer."""

_PRODUCER_ID_BITS = 48
"""Of generated ids: enough to be unique, and exact as JavaScript's numbers."""

_NOTHING_SENT = -1


class ProducerHandle:
    """One attached producer. ``close`` it when its link ends; closing twice is harmless."""

    __slots__ = (
        "_on_stolen",
        "_registry",
        "epoch",
        "known_since",
        "last_sequence_number",
        "producer_id",
        "stolen_error",
        "stored_count",
    )

    def __init__(
        self, registry: ProducerRegistry, producer_id: int, epoch: int, on_stolen: OnProducerStolen
    ) -> None:
        self._registry: ProducerRegistry | None = registry
        self._on_stolen = on_stolen
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_sequence_number = _NOTHING_SENT
        """From when it attached: its first batch begins with the next number."""
        self.stored_count = 0
        """Events stored under its epoch when it attached: the number of its next batch."""
        self.known_since = 0
        """From which sequence number on its partition would have known it when it attached."""
        self.stolen_error: ProducerEpochStolenError | None = None
        """Why it may no longer send, if so."""

    def batch(self, sequence: int) -> ProducerBatch:
        """The identity of its batch whose first event has the number ``sequence``."""
        first = (self.last_sequence_number + 1) % SEQUENCE_MODULUS
        return ProducerBatch(self.producer_id, self.epoch, sequence, is_start=sequence == first)

    def close(self) -> None:
        """The producer is gone."""
        if self._registry is not None:
            self._registry._discard(self)
            self._registry = None

    def _steal(self, error: ProducerEpochStolenError) -> None:
        self._registry = None
        self.stolen_error = error
        self._on_stolen(error)

    def __repr__(self) -> str:
        state = "stolen" if self.stolen_error else "attached" if self._registry else "closed"
        return f"<ProducerHandle {self.producer_id} epoch={self.epoch} {state}>"


class _Asking:
    """What one party has left of ``_ASKING_MAX``: a semaphore in order of arrival, which a waiter leaves in
    constant time (asyncio's looks through all others: 33 ms for 50 of 31,500)."""

    def __init__(self) -> None:
        self._free = _ASKING_MAX
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = None
        try:
            await place
        except BaseException:
            self._waiting.pop(place, None)
            if not place.cancelled():  # it was given, and then the waiter was cancelled
                self._give_place()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_place()

    def _give_place(self) -> None:
        while self._waiting:
            place, _ = self._waiting.popitem(last=False)
            if not place.done():  # else its waiter has been cancelled, and has not run since
                place.set_result(None)
                return
        self._free += 1


class ProducerRegistry:
    """The idempotent producers attached to one partition."""

    def __init__(self, log: PartitionLog) -> None:
        """log: of the partition, which remembers producers."""
        self._log = log
        self._attached: dict[int, list[ProducerHandle]] = {}
        self._asking: WeakValueDictionary[Hashable, _Asking] = WeakValueDictionary()
        """What each party has left of ``_ASKING_MAX``, while producers of it attach."""

    async def open(
        self,
        *,
        producer_id: int | None,
        epoch: int | None,
        last_sequence_number: int | None,
        on_stolen: OnProducerStolen,
        party: Hashable = None,
    ) -> ProducerHandle:
        """Admit a producer by the table above; see ``Partition.open_producer``."""
        _check_numbers(producer_id, epoch, last_sequence_number)
        if producer_id is None:
            producer_id = secrets.randbits(_PRODUCER_ID_BITS)
        # Before the log is read, so that nothing of lower epochs is queued behind that.
        self._shut_out(producer_id, epoch)
        self._make_room(producer_id)
        handle = ProducerHandle(self, producer_id, epoch or 0, on_stolen)
        self._attached.setdefault(producer_id, []).append(handle)
        asking = self._asking.setdefault(party, _Asking())
        try:
            async with asking:
                state = await self._log.producer_state(producer_id)
            handle.known_since = self._log.producers_known_since  # after that: it only grows
            if handle.stolen_error is not None:
                raise handle.stolen_error
            if state is not None and epoch is not None and epoch < state.epoch:
                raise _refused(producer_id, epoch, state.epoch)
        except BaseException:
            handle.close()
            raise
        if epoch is None:
            others = [other.epoch for other in self._attached[producer_id]]
            handle.epoch = max(*others, 0 if state is None else state.epoch)
        if state is not None and state.epoch == handle.epoch:
            handle.stored_count = state.next_sequence
        if last_sequence_number is not None:
            handle.last_sequence_number = last_sequence_number
        elif state is not None:
            handle.last_sequence_number = (state.next_sequence - 1) % SEQUENCE_MODULUS
        return handle

    def _shut_out(self, producer_id: int, epoch: int | None) -> None:
        if epoch is None:
            return
        attached = self._attached.get(producer_id, [])
        highest = max((other.epoch for other in attached), default=epoch)
        if epoch < highest:
            raise _refused(producer_id, epoch, highest)
        losers = [other for other in attached if other.epoch < epoch]
        for loser in losers:
            self._discard(loser)
        for loser in losers:
            loser._steal(_refused(producer_id, loser.epoch, epoch))

    def _make_room(self, producer_id: int) -> None:
        attached = self._attached.get(producer_id, [])
        if len(attached) >= LINKS_MAX:
            # Not refused: a producer that reconnects may have lost the others without the service knowing.
            oldest = attached[0]
            self._discard(oldest)
            oldest._steal(
                ProducerEpochStolenError(
                    f"The producer {producer_id} has {LINKS_MAX} newer links; its oldest was detached.",
                    next_step="Give each instance a producer id of its own, or close links no longer used.",
                )
            )

    def _discard(self, handle: ProducerHandle) -> None:
        attached = self._attached[handle.producer_id]
        attached.remove(handle)
        if not attached:
            del self._attached[handle.producer_id]


def _check_numbers(producer_id: int | None, epoch: int | None, last_sequence_number: int | None) -> None:
    # The ranges are those of a batch.
    last = last_sequence_number
    ProducerBatch(
        producer_id or 0, epoch or 0, 0 if last is None or last == _NOTHING_SENT else last
    ).validate()


def _refused(producer_id: int, epoch: int, higher: int) -> ProducerEpochStolenError:
    return ProducerEpochStolenError(
        f"The producer {producer_id} now has epoch {higher}; epoch {epoch} can no longer write.",
        next_step="Another instance took over. Stop this one, or start again as a new producer.",
    )
