"""Notes each minute what the charts of 24 hours show, and keeps it in a file of the data directory.

Nothing depends on the file: it is written every few minutes and at the end, replaced atomically and not
synced; one that is damaged, or of another version, is ignored with a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from tidegate.broker import Broker, EventHub, EventHubStatistics
from tidegate.console.hubs.day import Day, SeriesKey
from tidegate.console.hubs.sampler import NO_RATES, Rates, Sampler, rates_between, sum_of
from tidegate.files import make_private_directory, replace_file
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError
from tidegate.transport.threads import Threads

SAVED_EVERY: Final = 5
"""Minutes between two writes of the file: a killed service loses as many."""

CHARTED: Final = Rates._fields[:4]
"""The rates that charts show, as names of series."""

_log = logging.getLogger(__name__)


async def _no_lags() -> Mapping[SeriesKey, float]:
    return {}


class ChartRecorder:
    """Keeps ``day`` up to date while ``run`` runs."""

    def __init__(self, broker: Broker, sampler: Sampler, clock: Clock, path: Path) -> None:
        """path: the file."""
        self.day = Day()
        self.find_lags: Callable[[], Awaitable[Mapping[SeriesKey, float]]] = _no_lags
        """Asked each minute for the lag of consumer groups, by hub and ``lag_name``."""
        self._broker = broker
        self._sampler = sampler
        self._clock = clock
        self._path = path
        self._counts: dict[EventHub, EventHubStatistics] = {}
        self._noted_at = clock.monotonic()
        self._is_noted = False
        self._threads = Threads(1, name="tidegate-console-charts")

    async def run(self) -> None:
        """Note values until cancelled, also after failures."""
        await self.load()
        while True:
            now_s = self._clock.now_utc().timestamp()
            await asyncio.sleep(60 - now_s % 60)
            await self.note()
            if int(now_s / 60) % SAVED_EVERY == 0:
                await self.save()

    async def note(self) -> None:
        """Note the means of the time since the last call."""
        values: dict[SeriesKey, float] = {}
        try:
            values |= await self.find_lags()
        except TidegateError as error:
            _log.info("the charts lack a minute of lag: %s", error)
        now = self._clock.monotonic()
        seconds, self._noted_at = now - self._noted_at, now
        known, self._counts = self._counts, {}
        every, charted = [], self.day.hub_ids
        for event_hub in self._broker.list_event_hubs():
            counts = self._counts[event_hub] = self._sampler.hub(event_hub).counts
            if seconds > 0:
                before, hub_id = known.get(event_hub, EventHubStatistics()), event_hub.description.hub_id
                every.append(rates := rates_between(before, counts, seconds))
                if rates is not NO_RATES or hub_id in charted:
                    values |= _named(hub_id, rates)
        values |= _named("", sum_of(every))
        minute = int(self._clock.now_utc().timestamp() / 60)
        self._is_noted = True
        self.day.note(minute, values, hub_ids={each.description.hub_id for each in self._counts})

    async def load(self) -> None:
        """Begin with the file's values, if it can be read."""
        try:
            self.day = await self._threads.run(lambda: Day.decode(self._path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            _log.warning("the charts begin without a past: %s cannot be read: %s", self._path, error)

    async def save(self) -> None:
        """Write the file, if there is something new; a failure is only logged."""
        day = self.day
        if not self._is_noted:
            return
        self._is_noted = False

        def write() -> None:
            make_private_directory(self._path.parent)
            replace_file(self._path, day.encode())

        try:
            await self._threads.run_whole(write)
        except OSError as error:
            _log.warning("the charts' past cannot be written: %s", error)


def lag_name(unit: str, consumer_group: str) -> str:
    """The name of a group's series. unit: ``events`` or ``seconds``."""
    return f"lag_{unit}/{consumer_group.lower()}"


def _named(hub_id: str, rates: Rates) -> dict[SeriesKey, float]:
    return {SeriesKey(hub_id, name): getattr(rates, name) for name in CHARTED}
