"""Sends what transactions have published to its hubs, in each lane's order, and deletes what is acknowledged.

Theory of operation. A turn takes some of the lanes (``lanes``) of the partitions that the host owns:

    1  attach a sender to each lane without one or silent; the service says how many of its events are stored
    2  one transaction: delete what was acknowledged, and note what may be sent now
    3  read rows, send them numbered, wait for the acknowledgements

A relay may end anywhere, and two may run at once: the next one learns in step 1 what is stored. A lane that
fails waits longer each time, and the others continue. So they do if a transaction has locked a lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate.client import Namespace, ProducerIdentity
from tidegate.client.connector import Connector
from tidegate.client.management import read_partition
from tidegate.client.partition_sender import OutgoingBatch
from tidegate.client.repeatable import HubLayout, RepeatableSender, learn_layout
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    FencedError,
    OperationTimeoutError,
    OutboxInDoubtError,
    ProducerEpochStolenError,
    TidegateError,
)
from tidegate.processor.policies import RESTART
from tidegate.processor.store import RelayStatistics
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.outbox.lanes import (
    Lane,
    LaneStep,
    OutboxRow,
    begin_producer,
    explained,
    find_start,
    read_lanes,
    read_rows,
    save_hub,
    take_steps,
)
from tidegate.sql.outbox.writer import Outbox
from tidegate.wire.addresses import NodeAddress, entity_audience

_logger = logging.getLogger(__name__)

_LANES_MAX: Final = 64
"""In a turn; a connection has 256 links (our choice)."""
_ROWS_MAX: Final = 64
"""In a turn, at most 1 MB each."""
_POLL_S: Final = 5.0
"""How soon rows are found that this process has not stored: a former owner's, or a redrive's (our choice)."""
_KNOWN_S: Final = 10.0
"""How long the service is trusted to know a silent lane's producer (our choice: 1,000 others take longer)."""
_LOCKED_S: Final = 0.1
"""How soon a lane is tried again that a transaction has locked, if no commit wakes the relay (our choice)."""
_LAYOUT_S: Final = 30.0
"""Time between looks for added partitions, as ``EventHubProducer``."""
_LAYOUT_TIMEOUT_S: Final = 10.0
"""A transaction that publishes to a hub for the first time waits for that (our choice)."""


@dataclass(eq=False, slots=True)
class _Open:
    """An attached lane."""

    lane: Lane
    sender: RepeatableSender
    next_number: int
    """The first event that is not known to be stored."""
    known_at: float
    """When the service last knew its producer, by the loop's clock."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a lane waits."""

    error: TidegateError
    tries: int
    until: float
    """When it is tried again, by the loop's clock."""


class OutboxRelay:
    """One host's relay. Use it on the host's event loop; ``finish`` it."""

    def __init__(
        self,
        outbox: Outbox,
        consumer: ConsumerKey,
        namespace: Namespace,
        owned: Callable[[], Collection[str]],
        report: Callable[[Exception, str | None], None],
    ) -> None:
        """owned: the partitions whose lanes it sends. report: gets the error and the partition of a lane when
        it begins to fail."""
        self._outbox = outbox
        self._database = outbox.database
        self._consumer = consumer
        self._namespace = namespace
        self._owned = owned
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._connector = Connector(namespace)
        self._woken = asyncio.Event()
        self._open: dict[str, _Open] = {}
        self._acknowledged: dict[str, LaneStep] = {}
        """By lane: what the next transaction deletes."""
        self._failures: dict[str, _Failure] = {}
        self._locked: dict[str, float] = {}
        """Lanes that a transaction had locked, and when they are tried again, by the loop's clock."""
        self._error: TidegateError | None = None
        """Of the last turn, if it failed as a whole."""
        self._after = ""
        """The last lane that had a turn."""
        self._layouts_read: dict[str, float] = {}
        self._warned_of: set[str] = set()
        """Hubs whose service recognises no repeats."""
        self._waiting = self._relayed = 0
        outbox.relays.append(self)

    def wake(self) -> None:
        """See ``Relay``."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._woken.set)

    def read_layout(self, target_hub: str) -> HubLayout:
        """See ``Relay``. Raises as ``EventHubProducer.start``."""
        reading = asyncio.run_coroutine_threadsafe(self._learn_layout(target_hub), self._loop)
        try:
            return reading.result(_LAYOUT_TIMEOUT_S)
        except TimeoutError as error:
            raise OperationTimeoutError(
                f"Its partitions were not read within {_LAYOUT_TIMEOUT_S:g} s.",
                next_step="Check that the service runs.",
            ) from error
        finally:
            reading.cancel()

    def statistics(self) -> RelayStatistics:
        """As of the last turn."""
        errors = [each.error for each in self._failures.values()]
        return RelayStatistics(self._waiting, self._relayed, self._error or next(iter(errors), None))

    async def run(self) -> None:
        """Relay until cancelled. Cancellation: what was sent is looked up before the next send."""
        tries = 0
        while True:
            if self._woken.is_set():
                self._locked.clear()
            self._woken.clear()
            try:
                is_done = not await self._turn()
            except TidegateError as error:
                self._error, tries = error, tries + 1
                _logger.warning("The relay of %s pauses: %s: %s", self._consumer, type(error).__name__, error)
                await asyncio.sleep(_delay_s(tries))
                continue
            self._error, tries = None, 0
            if is_done:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_s()):
                        await self._woken.wait()

    async def finish(self, partition_ids: Collection[str], timeout_s: float) -> None:
        """Send what these partitions have stored, unless that fails or takes longer, and disconnect.

        Call it when ``run`` has ended, and with it the transactions that publish.
        """
        self._outbox.relays.remove(self)
        self._owned = lambda: partition_ids
        self._locked.clear()
        try:
            with contextlib.suppress(TidegateError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while await self._turn():
                        pass
        finally:
            await self._connector.close()

    def _wait_s(self) -> float:
        now = self._loop.time()
        ends = (*(each.until for each in self._failures.values()), *self._locked.values())
        return max(0.0, min((_POLL_S, *(end - now for end in ends))))

    # --- one turn -----------------------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """False if there was nothing to do."""
        owned = tuple(self._owned())
        lanes = await asyncio.to_thread(read_lanes, self._database, self._consumer, owned)
        self._waiting = sum(lane.waiting for lane in lanes)
        # Another host may own a lane's partition by now, or have sent its events.
        ours = {lane.lane_id for lane in lanes} & self._failures.keys()
        self._failures = {lane_id: self._failures[lane_id] for lane_id in ours}
        now = self._loop.time()
        self._locked = {lane_id: until for lane_id, until in self._locked.items() if until > now}
        locked_before = len(self._locked)
        ready = [each for each in lanes if not self._is_waiting(each.lane_id, now)]
        chosen = [each for each in ready if each.lane_id > self._after][:_LANES_MAX] or ready[:_LANES_MAX]
        self._make_room(chosen)
        results = await asyncio.gather(*(self._opened(lane) for lane in chosen))
        turn = {each.lane.lane_id: each for each in results if isinstance(each, _Open)}
        is_more = await self._take_steps(turn) or any(each is _Begun for each in results)
        is_more = is_more or len(self._locked) > locked_before  # the next turn is that of others
        await self._refresh_layouts({each.target_hub for each in chosen})
        rows = await asyncio.to_thread(read_rows, self._database, sorted(turn), _ROWS_MAX) if turn else {}
        if not rows:
            is_more = is_more or bool(self._after)
            self._after = ""
            return is_more
        self._after = max(rows)
        try:
            await asyncio.gather(*(self._send(turn[lane_id], found) for lane_id, found in rows.items()))
        except BaseException:
            self._close(turn)
            raise
        return True

    def _is_waiting(self, lane_id: str, now: float) -> bool:
        failure = self._failures.get(lane_id)
        return lane_id in self._locked or (failure is not None and failure.until > now)

    async def _take_steps(self, turn: dict[str, _Open]) -> bool:
        """Note what is acknowledged, and what may be sent now; False if nothing was noted.

        Lanes that are locked leave the turn.
        """
        steps = {key: step for key, step in self._acknowledged.items() if key not in self._locked}
        for lane_id, each in turn.items():
            lane = each.lane
            if each.sender.is_idempotent and lane.sent_until < lane.may_send_until:
                step = steps.get(lane_id) or LaneStep(lane_id, lane.producer_epoch)
                steps[lane_id] = replace(step, sent_until=lane.may_send_until)
        if not steps:
            return False
        try:
            noted = await asyncio.to_thread(take_steps, self._database, steps.values())
        except FencedError:
            self._acknowledged.clear()
            self._close(list(self._open))
            raise
        for lane_id in steps.keys() - noted:
            self._note_locked(lane_id)
            turn.pop(lane_id, None)
        for lane_id in noted:
            self._acknowledged.pop(lane_id, None)
        for lane_id in noted & turn.keys():
            step, lane = steps[lane_id], turn[lane_id].lane
            turn[lane_id].lane = replace(
                lane,
                relayed_until=max(lane.relayed_until, step.relayed_until),
                sent_until=max(lane.sent_until, step.sent_until),
            )
        return bool(noted)

    def _note_locked(self, lane_id: str) -> None:
        self._locked[lane_id] = self._loop.time() + _LOCKED_S

    async def _opened(self, lane: Lane) -> _Open | type[_Begun] | None:
        """The lane with its sender; None: it failed, or is locked."""
        found = self._open.get(lane.lane_id)
        if found is not None:
            is_known = self._loop.time() - found.known_at < _KNOWN_S
            is_same = found.lane.producer_epoch == lane.producer_epoch and not lane.is_used_up
            if is_known and is_same and found.next_number >= lane.relayed_until:
                found.lane = lane
                return found
            self._close([lane.lane_id])
        try:
            opened = await self._attach(lane)
        except TidegateError as error:
            return None if await self._fail(lane, error) else _Begun
        if isinstance(opened, _Open):
            self._open[lane.lane_id] = opened
        return opened

    async def _attach(self, lane: Lane) -> _Open | type[_Begun] | None:
        if lane.producer_epoch and not lane.is_used_up:
            sender = RepeatableSender(
                self._connector,
                address=NodeAddress.for_sending(
                    lane.target_hub, partition_id=lane.target_partition_id
                ).format(),
                audience=self._audience(lane.target_hub),
                partition_id=lane.target_partition_id,
                identity=ProducerIdentity(lane.producer_id, lane.producer_epoch),
                is_idempotent=True,
            )
            try:
                await sender.learn_message_bytes_max()
                start = await self._find_start(lane, sender)
            except BaseException:
                sender.release()
                raise
            if start is not None:
                sender.skip_to(start - lane.base_number, began_at=lane.base_sequence_number)
                return _Open(lane, sender, start, self._loop.time())
            sender.release()
        end = await self._end_of_target(lane)
        if await asyncio.to_thread(begin_producer, self._database, lane, end):
            return _Begun
        self._note_locked(lane.lane_id)
        return None

    async def _find_start(self, lane: Lane, sender: RepeatableSender) -> int | None:
        if not sender.is_idempotent:
            if lane.target_hub not in self._warned_of:
                self._warned_of.add(lane.target_hub)
                _logger.warning(
                    "The service of %s does not recognise repeated batches: events published to it are "
                    "stored at least once, and again when an acknowledgement is lost.",
                    lane.target_hub,
                )
            return lane.relayed_until
        known_since = sender.known_since
        if known_since and not sender.found_count:
            end = await self._end_of_target(lane)
            if end < lane.base_sequence_number:  # the hub was created again: a number of another log
                known_since = None
        return find_start(lane, sender.found_count, known_since)

    async def _end_of_target(self, lane: Lane) -> int:
        audience = self._audience(lane.target_hub)
        ends = await read_partition(self._connector, audience, lane.target_hub, lane.target_partition_id)
        return ends.next_sequence_number

    async def _send(self, opened: _Open, rows: Sequence[OutboxRow]) -> None:
        lane, sender = opened.lane, opened.sender
        until = lane.may_send_until
        sent: list[OutboxRow] = []
        acknowledged: list[asyncio.Future[None]] = []
        for row in rows:
            if row.until <= opened.next_number:
                self._note(lane, row)  # an earlier relay has sent it
            elif row.until <= until:
                if row.number != (sent[-1].until if sent else opened.next_number):
                    self._close([lane.lane_id])
                    await self._fail(lane, _gap(lane, opened.next_number, row.number))
                    return
                batch = OutgoingBatch([row.sections], len(row.sections), row.event_count)
                batch.acknowledged = self._loop.create_future()
                sender.submit(batch)
                sent.append(row)
                acknowledged.append(batch.acknowledged)
        results = await asyncio.gather(*acknowledged, return_exceptions=True)
        for row, result in zip(sent, results, strict=True):
            if isinstance(result, TidegateError):
                self._close([lane.lane_id])
                if not isinstance(result, OutboxInDoubtError):  # the next look says it of the lane
                    await self._fail(lane, result)
                return
            assert result is None, result
            opened.next_number, opened.known_at = row.until, self._loop.time()
            self._note(lane, row)
        self._failures.pop(lane.lane_id, None)

    def _note(self, lane: Lane, row: OutboxRow) -> None:
        self._relayed += row.event_count
        step = LaneStep(lane.lane_id, lane.producer_epoch, row.until, row.until_byte)
        self._acknowledged[lane.lane_id] = step

    async def _fail(self, lane: Lane, error: TidegateError) -> bool:
        """Let the lane wait; False if another relay has continued it since it was read, which explains it."""
        before = self._failures.get(lane.lane_id)
        is_stolen = isinstance(error, ProducerEpochStolenError)
        if (before is None or is_stolen) and await self._is_continued(lane):
            return False
        error = explained(lane, error)
        tries = 1 if before is None else before.tries + 1
        self._failures[lane.lane_id] = _Failure(error, tries, self._loop.time() + _delay_s(tries))
        if before is None:
            self._report(error, lane.partition_id)
        return True

    async def _is_continued(self, lane: Lane) -> bool:
        try:
            found = await asyncio.to_thread(read_lanes, self._database, self._consumer, [lane.partition_id])
        except TidegateError:
            return False
        return not any(each.is_as_relayed(lane) for each in found)

    def _make_room(self, chosen: Sequence[Lane]) -> None:
        if len(self._open) > _LANES_MAX:
            self._close(self._open.keys() - {each.lane_id for each in chosen})

    def _close(self, lane_ids: Iterable[str]) -> None:
        for lane_id in list(lane_ids):
            opened = self._open.pop(lane_id, None)
            if opened is not None:
                opened.sender.close(ClosedError("The relay has closed this lane."))
                opened.sender.release()

    async def _refresh_layouts(self, target_hubs: Collection[str]) -> None:
        """Look for added and missing partitions, and keep what is found."""
        now = self._loop.time()
        for target_hub in target_hubs:
            if now - self._layouts_read.get(target_hub, -_LAYOUT_S) < _LAYOUT_S:
                continue
            self._layouts_read[target_hub] = now
            try:
                layout = await self._learn_layout(target_hub)
            except TidegateError as error:
                _logger.debug("The partitions of %s were not read: %s", target_hub, error)
                continue  # if it is away, its lanes say so
            self._outbox.layouts[target_hub] = layout
            ids, bytes_max = layout.partition_ids, layout.batch_bytes_max
            await asyncio.to_thread(save_hub, self._database, target_hub, ids, bytes_max)

    async def _learn_layout(self, target_hub: str) -> HubLayout:
        return await learn_layout(self._connector, target_hub, self._audience(target_hub))

    def _audience(self, target_hub: str) -> str:
        return entity_audience(self._namespace.host, target_hub)


class _Begun:
    """A new producer was begun for the lane; its row has to be read again."""


def _delay_s(tries: int) -> float:
    return RESTART.delay_before(tries, jitter_fraction=random.random())


def _gap(lane: Lane, wanted: int, found: int) -> BrokenError:
    return BrokenError(
        f"The rows of tidegate_outbox for lane {lane.lane_id} begin with event {found} instead of {wanted}.",
        next_step="Restore the rows between them, or skip them: see the documentation of publishing.",
    )
