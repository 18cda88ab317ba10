"""Checks and repairs a data directory's catalog, for ``tidegate check``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.broker.catalog import CatalogContents, parse_catalog
from tidegate.model.errors import LogCorruptError, LogFormatError
from tidegate.storage.control.log import FileControlLog
from tidegate.storage.control.reading import FILE_NAMES, ControlFiles, read_files
from tidegate.storage.control.records import ControlFile
from tidegate.storage.control.repair import ControlDamage, damages_of, merge, set_aside
from tidegate.storage.files import OsFiles
from tidegate.storage.log_manager import LOCK_NAME, LOGS_NAME


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """The result of a check of the catalog."""

    damages: tuple[ControlDamage, ...] = ()
    """Also logs that are missing."""
    lost: str = ""
    """What the repair could not keep, as a sentence."""
    is_repaired: bool = False

    @property
    def is_sound(self) -> bool:
        return not self.damages


def check_catalog(data_directory: Path, *, repair: bool = False) -> CatalogReport:
    """All damages of the catalog; none if no service has started in the directory yet.

    repair: make it usable again from what its two files hold together.
    Raises LogFormatError (a later version has written it), OSError, DirectoryInUseError.
    """
    files = OsFiles()
    kept = {entry.name for entry in (data_directory / LOGS_NAME).iterdir() if entry.is_dir()}
    place = data_directory / FILE_NAMES[0]
    try:
        found = read_files(files, data_directory, is_used=bool(kept))
    except LogFormatError:
        raise
    except LogCorruptError as error:
        return CatalogReport((ControlDamage(place, 0, error.message),))
    if found.is_new:
        return CatalogReport()
    damages = damages_of(found)
    report = CatalogReport(tuple(damages))
    if damages and repair:
        report = _repair(data_directory, found, damages)
        found = read_files(files, data_directory, is_used=bool(kept))
    if report.is_sound or report.is_repaired:
        try:
            missing = tuple(_missing_logs(data_directory, _contents(found.best(), place)))
        except LogFormatError:
            raise
        except LogCorruptError as error:
            missing = (ControlDamage(place, 0, error.message),)
        if missing:
            report = replace(report, damages=report.damages + missing, is_repaired=False)
    return report


def _repair(data_directory: Path, found: ControlFiles, damages: list[ControlDamage]) -> CatalogReport:
    files = OsFiles()
    lock = files.lock(data_directory / LOCK_NAME)
    try:
        try:
            best, lost = found.best(), ""
        except LogCorruptError:
            best, lost = merge(files, data_directory, found)
        _contents(best, data_directory / FILE_NAMES[0])
        aside = [replace(damage, set_aside=set_aside(files, damage.path)) for damage in damages]
        FileControlLog.write(files, data_directory, best)
        return CatalogReport(tuple(aside), lost, is_repaired=True)
    except LogFormatError:
        raise
    except LogCorruptError:
        return CatalogReport(tuple(damages))  # too little is left
    finally:
        lock.release()


def _contents(state: ControlFile, place: Path) -> CatalogContents:
    return parse_catalog(state.cells, lambda key: f"{place} ({key})")


def _missing_logs(data_directory: Path, contents: CatalogContents) -> Iterator[ControlDamage]:
    for hub in contents.event_hubs.values():
        for partition_id in map(str, range(hub.partition_count)):
            directory = data_directory / LOGS_NAME / hub.hub_id / partition_id
            if not directory.is_dir():
                yield ControlDamage(
                    directory,
                    0,
                    f"the log of partition {partition_id} of the event hub {hub.name!r} is missing",
                )
