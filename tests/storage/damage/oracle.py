"""What a service, a check and a repair make of a damaged directory, and what of it is wrong."""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.storage.damage.kinds import Injury
from tests.storage.damage.worlds import OPTIONS, PLACES, World, event

from tidegate.broker.catalog import parse_catalog
from tidegate.cli.service.check_catalog import CatalogReport, check_catalog
from tidegate.model.errors import LogCorruptError, TidegateError
from tidegate.storage.check import CheckReport, check_log_directory
from tidegate.storage.examination.findings import Damage
from tidegate.storage.log_manager import LogManager
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.segments.segment import SEGMENT_HEADER_BYTES

Failures = list[tuple[str, str]]
"""(kind, details): lost silently, altered, reused, traceback, repair lost, repair start, disagreement, too
much, settings."""

_NEW = b"after the damage"


@dataclass(slots=True)
class Served:
    """What a service made of one partition."""

    events: dict[int, bytes] = field(default_factory=dict)
    refusal: str | None = None
    """Why it could not be opened, or not be read to its end."""
    new_number: int | None = None
    """Of an event that was appended."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the batch of an event is."""

    path: Path
    start: int
    end: int


async def serve(directory: Path) -> tuple[dict[str, Served], dict[str, int]]:
    """Start a service on a directory, read everything, and append an event to each partition.

    Returns what became of each, and the number of the last change of each hub."""
    manager = await LogManager.open(directory, options=OPTIONS)
    found = {}
    try:
        hubs = parse_catalog(await manager.control.read_all(""), str).event_hubs
        for place in PLACES:
            found[place] = await _serve_partition(manager, place)
    finally:
        await manager.close()
    return found, {hub: record.created_at_ms for hub, record in hubs.items()}


async def _serve_partition(manager: LogManager, place: str) -> Served:
    served = Served()
    try:
        log = manager.open_log(*place.split("/"))
    except LogCorruptError as error:
        served.refusal = str(error)
        return served
    await _read(log, served)
    result = await log.append_nowait(_NEW, [len(_NEW)], enqueued_time_ms=10**9)
    served.new_number = result.start_sequence_number
    await _read(log, Served(), result.start_sequence_number)
    return served


async def _read(log: FilePartitionLog, served: Served, start: int | None = None) -> None:
    start = log.view.begin_sequence_number if start is None else start
    try:
        while batches := await log.read(start, bytes_max=3000):
            for batch in batches:
                position = 0
                for number, length in enumerate(batch.lengths, batch.base_sequence_number):
                    served.events[number] = bytes(batch.payload[position : position + length])
                    position += length
            start = batches[-1].until_sequence_number
    except LogCorruptError as error:
        served.refusal = str(error)


class Oracle:
    """Judges cases against a world and what a service makes of it without damage."""

    def __init__(
        self, world: World, intact: dict[str, Served], extents: dict[str, dict[int, Extent]]
    ) -> None:
        self._world = world
        self._intact = intact
        self._extents = extents

    async def judge(self, damaged: Path, injury: Injury, scratch: Path) -> Failures:
        """What is wrong with how a damaged directory is treated. scratch: a new directory."""
        failures: Failures = []
        try:
            started = scratch / "started"
            shutil.copytree(damaged, started)
            before, catalog = check_log_directory(damaged), check_catalog(damaged)
            await self._judge_start(started, before, catalog, failures)
            repair = check_log_directory(damaged, repair=True)
            catalog = check_catalog(damaged, repair=True)
            if not check_catalog(damaged).is_sound or (catalog.damages and not catalog.is_repaired):
                failures.append(("disagreement", f"after the repair of the catalog: {catalog}"))
            again = check_log_directory(damaged)
            if not again.is_sound or (repair.damages and not repair.is_repaired):
                failures.append(("disagreement", f"after the repair: {(again.damages or repair.damages)[0]}"))
            if [each.lost for each in repair.damages] != [each.lost for each in before.damages]:
                failures.append(("disagreement", "the repair found other damage than the check"))
            found, hubs = await serve(damaged)
            self._judge_repair(found, repair, injury, failures)
            if not catalog.lost:
                self._judge_settings(hubs, failures)
        except TidegateError as error:
            failures.append(("repair start", f"{type(error).__name__}: {error}"))
        except Exception as error:  # whatever it is, it is one more failure
            logging.exception("a traceback")
            failures.append(("traceback", f"{type(error).__name__}: {error}"))
        return failures

    async def _judge_start(
        self, directory: Path, report: CheckReport, catalog: CatalogReport, failures: Failures
    ) -> None:
        try:
            found, hubs = await serve(directory)
        except LogCorruptError as error:
            if catalog.is_sound:
                failures.append(("disagreement", f"the catalog is refused and sound: {error}"))
            return
        self._judge_settings(hubs, failures)
        for place, served in found.items():
            self._judge_events(place, served, failures)
            if served.refusal is not None:
                if not _damages_of(place, report):
                    failures.append(("disagreement", f"{place} is refused and sound: {served.refusal}"))
            else:
                lost = set(self._intact[place].events) - set(served.events)
                self._judge_lost(place, lost, report, failures, "lost silently")

    def _judge_settings(self, hubs: dict[str, int], failures: Failures) -> None:
        """The last change of each hub, or the one that the kill interrupted."""
        highest = max(self._world.settings.values())
        for hub, number in self._world.settings.items():
            if hubs.get(hub) != number and hubs.get(hub) != highest + self._world.is_killed:
                failures.append(("settings", f"{hub}: {hubs.get(hub)} instead of {number}"))

    def _judge_repair(
        self, found: dict[str, Served], report: CheckReport, injury: Injury, failures: Failures
    ) -> None:
        for place, served in found.items():
            if served.refusal is not None:
                failures.append(("repair start", f"{place}: {served.refusal}"))
            self._judge_events(place, served, failures)
            lost = set(self._intact[place].events) - set(served.events)
            said = {number for number in lost if _is_said(number, place, report)}
            self._judge_lost(place, lost - said, report, failures, "repair lost")
            needless = {number for number in said if not self._is_hit(place, number, injury)}
            if needless:
                failures.append(("too much", f"{place}: {sorted(needless)[:5]} were intact"))

    def _judge_lost(
        self, place: str, lost: set[int], report: CheckReport, failures: Failures, kind: str
    ) -> None:
        """Events that are not there although nothing says so."""
        certain = sorted(
            number
            for number in lost
            if number in self._world.acknowledged[place] and self._world.is_certain(place, number)
        )
        if certain:
            failures.append((kind, f"{place}: {certain[:5]}"))
        elif lost and not _is_doubt_said(place, report):
            failures.append((kind, f"{place}: {sorted(lost)[:5]}, of the last second, and nothing is said"))

    def _judge_events(self, place: str, served: Served, failures: Failures) -> None:
        known = self._world.acknowledged[place]
        for number, payload in served.events.items():
            if not self._is_genuine(place, number, payload):
                failures.append(("altered", f"{place} {number}: {payload[:40]!r}"))
        new = served.new_number
        if new is None:
            return
        certain = [number for number in known if self._world.is_certain(place, number)]
        held = [*served.events, *certain, -1]
        if new <= max(held):
            failures.append(("reused", f"{place}: {new} was given again, up to {max(held)} were used"))

    def _is_genuine(self, place: str, number: int, payload: bytes) -> bool:
        if number in self._world.acknowledged[place]:
            return payload == event(place, self._world.acknowledged[place][number][0])
        if self._intact[place].events.get(number) == payload:
            return True
        match = re.match(rb"([a-z]/\d) (\d+);", payload)  # sent, and killed before its acknowledgement
        return match is not None and match[1].decode() == place and event(place, int(match[2])) == payload

    def _is_hit(self, place: str, number: int, injury: Injury) -> bool:
        """Whether the event's bytes were touched by the damage."""
        extent = self._extents[place].get(number)
        if extent is None or extent.path not in injury.paths:
            return False
        if injury.kind == "swap" and len({path.parent for path in injury.paths}) == 1:
            return False  # both files are there
        end = extent.end if injury.end is None else injury.end
        if injury.kind == "delete" and injury.start < SEGMENT_HEADER_BYTES:
            end += SEGMENT_HEADER_BYTES  # what moved to where the header is written again
        return injury.start < extent.end and extent.start < end


def _damages_of(place: str, report: CheckReport) -> list[Damage]:
    return [each for each in report.damages if f"/{place}/" in f"{each.path}/"]


def _is_said(number: int, place: str, report: CheckReport) -> bool:
    ranges = [each.lost for each in _damages_of(place, report) if each.lost is not None]
    return any(start <= number and (until is None or number < until) for start, until in ranges)


def _is_doubt_said(place: str, report: CheckReport) -> bool:
    paths = [torn.path for torn in report.torn_tails] + [path for path, _ in report.unproved]
    return any(f"/{place}/" in f"{path}/" for path in paths)
