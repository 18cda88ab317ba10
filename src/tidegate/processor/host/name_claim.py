"""The claim of a host to its name, so that no two live hosts of a group have the same one.

Two hosts of one name would share leases without noticing: each takes the other's for its own.

Theory of operation. The claim is a lease like those of partitions, in a group of its own beside the host's
(``GroupKey.names``): the owner is this instance of the host, the partition its name. So every store can hold
it, and the store's compare-and-set, clock and expiry decide. A name that is held may be that of a killed host
which is being started again: the claim waits until the other lease is renewed, by a live host, or expires. It
does not wait if the other instance was a process of this machine that has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tidegate.model.clock import Clock
from tidegate.model.errors import AlreadyExistsError, StoreUnavailableError
from tidegate.processor.lease import GroupKey, Lease, LeaseManager, LeaseWatch
from tidegate.processor.options import PartitionManagerOptions

_KEY_BYTES: Final = 16
"""A store may limit the length of a partition's id, so it is a digest of the name."""

logger = logging.getLogger(__name__)


class NameClaim:
    """The claim of one instance of a host."""

    def __init__(
        self,
        name: str,
        instance_id: str,
        *,
        group: GroupKey,
        store: LeaseManager,
        options: PartitionManagerOptions,
        clock: Clock,
        on_exception: Callable[[Exception, str | None], None],
    ) -> None:
        """instance_id: random, for each registration. on_exception: called with (error, None)."""
        self._name = name
        self._key = blake2b(name.encode(), digest_size=_KEY_BYTES).hexdigest()
        self._owner = f"{_this_process()}{os.getpid()}/{instance_id}"
        self._group = group
        self._store = store
        self._options = options
        self._clock = clock
        self._on_exception = on_exception
        self._watch = LeaseWatch()
        self._lease: Lease | None = None

    async def take(self) -> None:
        """Claim the name; waits at most a lease duration for another claim to end, and for the store.

        Raises AlreadyExistsError if a live host has it.
        """
        first: Lease | None = None
        while True:
            try:
                seen = await self._attempt()
            except Exception as error:  # a store may be a user's code: its failure must not end the host
                self._on_exception(error, None)
            else:
                if seen is None:
                    return
                if first is None:
                    first = seen
                    logger.info(
                        "Another instance has claimed the host name %s in %s. Waiting until that is seen to "
                        "be alive, or its claim expires.",
                        self._name,
                        self._group,
                    )
                elif (seen.owner, seen.version) != (first.owner, first.version):
                    raise self._taken(seen)
            await asyncio.sleep(min(self._options.look_interval_s, self._options.renew_interval_s / 2))

    async def keep(self) -> None:
        """Renew the claim until cancelled. Raises AlreadyExistsError once another instance has the name."""
        while True:
            await asyncio.sleep(self._options.renew_interval_s)
            try:
                seen = await self._attempt()
            except Exception as error:  # as above
                self._on_exception(error, None)
            else:
                if seen is not None:
                    raise self._taken(seen)

    async def release(self) -> None:
        """Let others have the name at once. A failure is reported; the claim then expires."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                async with asyncio.timeout(self._options.renew_interval_s):
                    await self._store.release(self._group.names, [lease])
            except Exception as error:  # as above
                self._on_exception(error, None)

    async def _attempt(self) -> Lease | None:
        """Renew or acquire the claim; returns the claim of another instance, if that has the name."""
        try:
            async with asyncio.timeout(self._options.renew_interval_s):
                if self._lease is not None:
                    renewed = await self._store.renew(self._group.names, [self._lease])
                    self._lease = renewed.get(self._key)
                return None if self._lease is not None else await self._acquire()
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"The store of the names of the hosts of {self._group} did not answer within "
                f"{self._options.renew_interval_s:.3g} s."
            ) from error

    async def _acquire(self) -> Lease | None:
        while True:
            asked_at = self._clock.monotonic()
            found = await self._store.list_leases(self._group.names)
            snapshot = self._watch.check(found, asked_at=asked_at, answered_at=self._clock.monotonic())
            seen = snapshot.leases.get(self._key)
            if seen is not None and seen.owner == self._owner:  # the answer to a call was lost
                self._lease = found.leases[self._key]
                return None
            if (
                seen is not None
                and not seen.is_expired(snapshot.now, self._options.lease_duration_s)
                and not _has_ended(seen.owner)
            ):
                return seen
            self._lease = await self._store.acquire(
                self._group.names, self._key, self._owner, expected=found.leases.get(self._key)
            )
            if self._lease is not None:
                return None

    def _taken(self, seen: Lease) -> AlreadyExistsError:
        since = "" if seen.acquired_at is None else f" since {seen.acquired_at:%Y-%m-%d %H:%M:%S} UTC"
        return AlreadyExistsError(
            f"Another live host of {self._group} has the name {self._name!r}{since}; it last renewed it at "
            f"{seen.renewed_at:%Y-%m-%d %H:%M:%S} UTC, by the store's clock.",
            next_step="Stop that host, or give each host of the group a name of its own. Without a host_name "
            "it gets one.",
        )


@cache
def _this_process() -> str:
    """Where process ids mean the same as here: this boot and namespace of process ids. Empty: unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}.{os.stat('/proc/self/ns/pid').st_ino}."
    except OSError:
        return ""


def _has_ended(owner: str) -> bool:
    """Whether a claim's owner was a process of this machine, and has ended; False if that is not known."""
    place = _this_process()
    process_id = owner.removeprefix(place).partition("/")[0]
    is_number = process_id.isdecimal() and len(process_id) < 10  # else not one of ours: it has 32 bits
    if not place or not owner.startswith(place) or not is_number:
        return False
    try:
        os.kill(int(process_id), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
