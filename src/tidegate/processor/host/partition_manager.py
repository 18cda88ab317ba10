"""Holds a host's leases: renews them, balances partitions with other hosts, starts and stops pumps.

``balancer.decide_balance`` decides what to acquire, ask for, hand over or steal; this module performs it.

Theory of operation. Two tasks share the leases held, and change them only between awaits:

- The cycle (``run``) renews leases, reads the group's and acquires some, with one store call at a time
  (``_lock``). Reading and acquiring must end before the next renewal is due, so a slow store delays new
  partitions first.
- The guard (``_guard``) needs no store: it gives up leases that were not renewed in time by this machine's
  monotonic clock, counted from before the last successful call was sent. The store's time of renewal is
  later, so a pump is stopped before other hosts may take its partition.

Pumps are stopped in separate tasks (``PumpControl``): a handler that is slow to end delays
nothing else, and its partition is not acquired again before it has ended. A partition that another host asked
for is released when its pump has stopped, so no event is handled by both. If that takes longer than a lease,
the other host steals it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random as random_module
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tidegate.model.clock import Clock
from tidegate.model.errors import StoreUnavailableError
from tidegate.processor.handlers import CloseReason
from tidegate.processor.host.balancer import decide_balance, seconds_until_change
from tidegate.processor.host.pump_control import PumpControl
from tidegate.processor.lease import GroupKey, Lease, LeaseManager, LeaseSnapshot, LeaseWatch
from tidegate.processor.options import PartitionManagerOptions
from tidegate.processor.pump.pump import PartitionPump
from tidegate.transport.tasks import TaskOwner

logger = logging.getLogger(__name__)

T = TypeVar("T")

FENCE_FRACTION: Final = 0.9
"""A lease is given up after this fraction of its duration (our choice): the rest is for clocks that run at
different speeds and for the running handler call."""
JITTER_FRACTION: Final = 0.02
"""Fraction of the lease duration by which hosts that wait for the same lease, or that collided, are spread
(our choice: up to 0.6 s of 30)."""

RENEWAL_NEAR_FRACTION: Final = 0.25
"""Fraction of the renewal interval: with less time left than this, leases are renewed first (our choice)."""

_WITHDRAWALS_MAX: Final = 5
"""Looks of a host that leaves for leases that it has asked for (our choice)."""


class PartitionManager:
    """Acquires and keeps a host's share of the partitions."""

    def __init__(
        self,
        *,
        group: GroupKey,
        store: LeaseManager,
        owner: str,
        partition_ids: Sequence[str],
        options: PartitionManagerOptions,
        clock: Clock,
        random: random_module.Random,
        make_pump: Callable[[Lease], PartitionPump],
        on_exception: Callable[[Exception, str | None], None],
    ) -> None:
        """owner: the host's name; two hosts with the same name keep taking each other's partitions.

        on_exception: called with (error, partition id or None).
        """
        self._group = group
        self._store = store
        self._owner = owner
        self._partition_ids = tuple(partition_ids)
        self._options = options
        self._clock = clock
        self._random = random
        self._on_exception = on_exception
        self._control = PumpControl(
            make_pump, on_exception=self._report, on_start_failed=self._give_back_unstarted
        )
        self._tasks = TaskOwner(f"partition manager of {owner}")
        self._watch = LeaseWatch()
        self._leases: dict[str, Lease] = {}
        self._fences: dict[str, float] = {}
        """By partition held: the monotonic time at which to give it up."""
        self._lock = asyncio.Lock()
        """Held only for a store call and the change that follows from it."""
        self._next_renewal = -math.inf
        self._is_renewal_unknown = False
        """Whether a failed renewal may have taken place, so that our versions are old."""
        self._handing_over: set[str] = set()
        """Partitions whose pump is being stopped for another host."""
        self._is_waiting = False
        """Whether a partition was requested and is not held yet."""
        self._beaten_count = 0
        """Consecutive balancing rounds in which another host was faster."""
        self._is_guarded = False
        self._is_closing = asyncio.Event()
        self._has_run_ended = asyncio.Event()
        self._has_run_ended.set()

    def __repr__(self) -> str:
        state = " closing" if self._is_closing.is_set() else ""
        return f"<PartitionManager {self._owner} {self._group} leases={len(self._leases)}{state}>"

    @property
    def leases(self) -> Mapping[str, Lease]:
        """A live view of the leases held, by partition id, as last renewed."""
        return MappingProxyType(self._leases)

    @property
    def pumps(self) -> Mapping[str, PartitionPump]:
        """A live view of the pumps, by partition id, even if they are being stopped."""
        return self._control.pumps

    def add_partitions(self, partition_ids: Sequence[str]) -> None:
        """Include new partitions from the next cycle on. partition_ids: all of the hub, in its order."""
        gone = [each for each in self._partition_ids if each not in partition_ids]
        self._partition_ids = (*partition_ids, *gone)

    async def run(self) -> None:
        """Hold leases until ``close`` is called or this is cancelled. Only ``close`` releases them.

        Cancellation: a running acquisition may succeed unseen; prefer ``close``, which waits for it and then
        ends this.
        """
        if self._is_closing.is_set():
            return
        self._start_guard()
        self._has_run_ended.clear()
        try:
            await self._pause(self._random.random() * self._options.startup_spread_s)
            while not self._is_closing.is_set():
                await self._pause(await self._run_cycle())
        finally:
            self._has_run_ended.set()

    async def reacquire(self, partition_id: str) -> Lease | None:
        """Acquire a lease that the host already holds again, with the next epoch, and return it.

        The pump continues: it has ended its receiver, and opens another with the new lease.

        Returns None if the partition is no longer held; its pump is then being stopped.
        Raises StoreUnavailableError, StoreError: the lease is unchanged, or is later found to be lost.
        """
        async with self._lock:
            held = self._leases.get(partition_id)
            if held is None or self._is_closing.is_set():
                return None
            sent = self._clock.monotonic()
            lease = await self._call(
                self._store.acquire(self._group, partition_id, self._owner, expected=held),
                timeout_s=self._options.renew_interval_s,
            )
            if self._leases.get(partition_id) is not held:
                return None
            if lease is None:
                self._lose(partition_id)
            else:
                self._hold(lease, sent)
            return lease

    async def close(self) -> None:
        """Stop all pumps concurrently with SHUTDOWN, then release all leases in one call. Idempotent.

        Leases are renewed until the last handler has ended. Waits for ``run`` to return, so that nothing uses
        the store afterwards.
        Cancellation: pumps continue to stop and leases are renewed; call it again to wait and release.
        """
        self._start_guard()
        if not self._is_closing.is_set():
            self._is_closing.set()
            self._tasks.start(self._renew_while_closing(), name="renewal")
        for partition_id in list(self._leases):
            self._control.stop(partition_id, CloseReason.SHUTDOWN)
        await self._control.wait_stopped()
        await self._has_run_ended.wait()
        # Not amid a renewal: performed after all, it would make the versions old that are released below.
        async with self._lock:
            await self._tasks.close()
        await self._control.close()
        try:
            if self._is_renewal_unknown or self._is_waiting:
                await self._withdraw_requests()
            if self._leases:
                await self._release(list(self._leases.values()))
        except Exception as exc:  # as in _run_cycle; leases not released expire
            self._report(exc, None)
        self._leases.clear()
        self._fences.clear()

    async def _run_cycle(self) -> float:
        """Renew leases if due, and balance; returns the wait until the next cycle."""
        try:
            if self._is_renewal_near:
                await self._renew()
            return await self._balance()
        except Exception as exc:  # a store may be a user's code: its failure must not end the host
            self._report(exc, None)
            return self._retry_wait_s()

    async def _renew(self) -> None:
        """Renew all leases in one call, and give up those that another host owns."""
        is_doubtful = self._is_renewal_unknown
        if is_doubtful:
            await self._look(timeout_s=self._options.renew_interval_s)
        await self._renew_held(is_doubtful=is_doubtful)
        if self._is_renewal_unknown:
            await self._look(timeout_s=self._options.renew_interval_s)
            await self._renew_held(is_doubtful=False)

    async def _renew_held(self, *, is_doubtful: bool) -> None:
        """is_doubtful: an earlier renewal that timed out may have been performed just before this one, so a
        lease that is missing in the answer may still be held.
        """
        async with self._lock:
            held = dict(self._leases)
            sent = self._clock.monotonic()
            renewed: Mapping[str, Lease] = {}
            if held:
                self._is_renewal_unknown = True
                renewed = await self._call(
                    self._store.renew(self._group, list(held.values())),
                    timeout_s=self._options.renew_interval_s,
                )
            self._is_renewal_unknown = is_doubtful and not held.keys() <= renewed.keys()
            if not self._is_renewal_unknown:
                self._next_renewal = sent + self._options.renew_interval_s
            for partition_id, old in held.items():
                if self._leases.get(partition_id) is not old:
                    continue  # the guard has given it up
                lease = renewed.get(partition_id)
                if lease is not None:
                    self._hold(lease, sent)
                    self._control.lease_renewed(lease)
                elif not self._is_renewal_unknown:
                    self._lose(partition_id)

    async def _balance(self) -> float:
        """Read the group's leases, acquire this host's share, and return the wait until the next cycle."""
        asked_at = self._clock.monotonic()
        found = await self._look(timeout_s=self._time_left_s())
        snapshot = self._watch.check(found, asked_at=asked_at, answered_at=self._clock.monotonic())
        actions = decide_balance(
            snapshot,
            self._partition_ids,
            self._owner,
            lease_duration_s=self._options.lease_duration_s,
            choice=self._random.random(),
            pumped=self._control.pumps.keys() | self._leases.keys(),
        )
        is_beaten = False
        self._is_waiting |= actions.is_waiting
        self._begin_hand_over(actions.hand_over)
        wanted = [*(each for each, _ in actions.acquire), *(lease.partition_id for lease in actions.steal)]
        for partition_id in wanted:
            if self._is_closing.is_set() or self._is_renewal_near:
                return 0.0
            is_beaten |= not await self._take(partition_id, found.leases.get(partition_id))
        for lease in actions.request:
            if self._is_closing.is_set() or self._is_renewal_near:
                return 0.0
            async with self._lock:
                await self._call(
                    self._store.request(self._group, lease, self._owner), timeout_s=self._time_left_s()
                )
        self._is_waiting = actions.is_waiting
        self._beaten_count = self._beaten_count + 1 if is_beaten else 0
        wait_s = self._wait_s(snapshot)
        return min(wait_s, self._retry_wait_s()) if actions.is_waiting else wait_s

    async def _look(self, *, timeout_s: float) -> LeaseSnapshot:
        """All leases of the group; gives up our leases that another host owns."""
        async with self._lock:
            snapshot = await self._call(self._store.list_leases(self._group), timeout_s=timeout_s)
            for partition_id, held in list(self._leases.items()):
                seen = snapshot.leases.get(partition_id)
                if seen is None or (seen.owner, seen.epoch) != (held.owner, held.epoch):
                    self._lose(partition_id)
                else:
                    # Another version with the same epoch is our own renewal whose answer was lost.
                    self._leases[partition_id] = seen
            return snapshot

    async def _take(self, partition_id: str, expected: Lease | None) -> bool:
        """Acquire a partition and start its pump. False if another host was faster."""
        async with self._lock:
            if self._is_closing.is_set():
                return False
            sent = self._clock.monotonic()
            lease = await self._call(
                self._store.acquire(self._group, partition_id, self._owner, expected=expected),
                timeout_s=self._time_left_s(),
            )
            if lease is None:
                return False
            self._hold(lease, sent)
            logger.info("%s has partition %s, epoch %d", self._owner, partition_id, lease.epoch)
            if not self._is_closing.is_set():
                self._control.start(lease)
            return True

    def _hold(self, lease: Lease, sent: float) -> None:
        """Keep a lease that the store returned for a call sent at ``sent``."""
        self._leases[lease.partition_id] = lease
        self._fences[lease.partition_id] = sent + self._options.lease_duration_s * FENCE_FRACTION

    def _lose(self, partition_id: str) -> None:
        lease = self._leases.pop(partition_id)
        del self._fences[partition_id]
        logger.info("%s has lost partition %s, epoch %d", self._owner, partition_id, lease.epoch)
        self._control.stop(partition_id, CloseReason.OWNERSHIP_LOST)

    def _begin_hand_over(self, leases: Sequence[Lease]) -> None:
        """Stop the pumps of partitions that other hosts asked for, and release each when it has stopped."""
        for lease in leases:
            partition_id = lease.partition_id
            if not self._is_closing.is_set() and partition_id not in self._handing_over:
                self._handing_over.add(partition_id)
                logger.info("%s hands partition %s over to %s", self._owner, partition_id, lease.requested_by)
                self._control.stop(partition_id, CloseReason.SHUTDOWN)
                self._tasks.start(self._hand_over(lease), name=f"hand over {partition_id}")

    async def _hand_over(self, lease: Lease) -> None:
        partition_id = lease.partition_id
        try:
            await self._control.stopped(partition_id)
            # Without a pump, it is left from an earlier run, or an earlier release has failed.
            async with self._lock:
                held = self._leases.get(partition_id, lease)
                await self._call(
                    self._store.release(self._group, [held]), timeout_s=self._options.renew_interval_s
                )
                if self._leases.get(partition_id) is held:
                    del self._leases[partition_id], self._fences[partition_id]
        except Exception as exc:  # as in _run_cycle; the next look finds the request again
            self._report(exc, partition_id)
        finally:
            self._handing_over.discard(partition_id)

    async def _withdraw_requests(self) -> None:
        """No partition is released to this host when it is gone; one that was, is taken, to be released."""
        timeout_s = self._options.renew_interval_s
        for _ in range(_WITHDRAWALS_MAX):
            snapshot = await self._look(timeout_s=timeout_s)
            has_asked = False
            for partition_id, lease in snapshot.leases.items():
                if lease.requested_by != self._owner:
                    continue
                if lease.owner:
                    request = self._store.request(self._group, lease, "")
                    await self._call(request, timeout_s=timeout_s)
                    has_asked = True
                    continue
                acquire = self._store.acquire(self._group, partition_id, self._owner, expected=lease)
                taken = await self._call(acquire, timeout_s=timeout_s)
                if taken is not None:
                    self._leases[partition_id] = taken
            if not has_asked:  # else an owner may have released the lease since the look
                return

    def _start_guard(self) -> None:
        if not self._is_guarded:
            self._is_guarded = True
            self._tasks.start(self._guard(), name="guard")

    async def _guard(self) -> None:
        """Give up every lease that was not renewed in time."""
        while True:
            now = self._clock.monotonic()
            for partition_id in [one for one, fence in self._fences.items() if now >= fence]:
                held_s = self._options.lease_duration_s * FENCE_FRACTION
                self._report(
                    StoreUnavailableError(
                        f"The lease of partition {partition_id} could not be renewed for {held_s:g} s; the "
                        "partition is given up before others take it.",
                        next_step="It is acquired again when the store answers, unless another host has it.",
                    ),
                    partition_id,
                )
                self._lose(partition_id)
            # A lease acquired during the wait may have to be given up earlier than the present ones.
            longest_s = self._options.lease_duration_s * (1 - FENCE_FRACTION) / 2
            next_fence = min(self._fences.values(), default=math.inf)
            await asyncio.sleep(max(0.0, min(next_fence - now, longest_s)))

    async def _renew_while_closing(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._next_renewal - self._clock.monotonic()))
            try:
                await self._renew()
            except Exception as exc:  # as in _run_cycle
                self._report(exc, None)
                await asyncio.sleep(self._retry_wait_s())

    def _give_back_unstarted(self, partition_id: str) -> None:
        """Give up the partition of a pump that did not start, so that this or another host tries again."""
        lease = self._leases.pop(partition_id, None)
        self._fences.pop(partition_id, None)
        if lease is not None:
            self._tasks.start(self._give_back(lease), name=f"give back {partition_id}")

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self._release([lease])
        except Exception as exc:  # as in _run_cycle
            self._report(exc, lease.partition_id)

    async def _release(self, leases: Sequence[Lease]) -> None:
        async with self._lock:
            release = self._store.release(self._group, leases)
            await self._call(release, timeout_s=self._options.renew_interval_s)

    async def _call(self, call: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """The store's answer. Raises StoreUnavailableError after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError as exc:
            raise StoreUnavailableError(
                f"The store of the leases of {self._group} did not answer within {timeout_s:.3g} s."
            ) from exc

    @property
    def _is_renewal_near(self) -> bool:
        """Whether to renew now, because too little time is left for anything else."""
        return self._time_left_s() <= self._options.renew_interval_s * RENEWAL_NEAR_FRACTION

    def _time_left_s(self) -> float:
        """Until the next renewal is due."""
        return max(0.0, self._next_renewal - self._clock.monotonic())

    def _wait_s(self, snapshot: LeaseSnapshot) -> float:
        """Until the next cycle: the next look or renewal, or earlier if a lease may become free earlier."""
        jitter_s = self._options.lease_duration_s * JITTER_FRACTION * self._random.uniform(0.5, 1.0)
        waits = [self._time_left_s(), self._options.look_interval_s * self._random.uniform(0.8, 1.0)]
        if self._beaten_count:
            waits.append(jitter_s * 2 ** min(self._beaten_count - 1, 8))
        changes_in_s = seconds_until_change(
            snapshot, self._partition_ids, self._owner, lease_duration_s=self._options.lease_duration_s
        )
        if changes_in_s is not None:
            waits.append(changes_in_s + jitter_s)
        return min(waits)

    def _retry_wait_s(self) -> float:
        """The wait after a failure (our choice): short enough that, by default, an outage of half a lease
        duration loses no partition."""
        return self._options.renew_interval_s * self._random.uniform(0.05, 0.15)

    async def _pause(self, seconds: float) -> None:
        """Wait, or until ``close`` is called."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_closing.wait()
        except TimeoutError:
            pass

    def _report(self, error: Exception, partition_id: str | None) -> None:
        try:
            self._on_exception(error, partition_id)
        except Exception:  # a user's callback must not end the host
            logger.exception("on_exception raised while it handled: %r", error)
