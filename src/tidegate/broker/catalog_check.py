"""Checks whether a data directory's catalog is readable and matches its logs. Writes nothing.

It cannot be repaired: only a backup has its keys and names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.broker.catalog import CATALOG_NAME, Catalog
from tidegate.model.errors import LogCorruptError
from tidegate.storage.files import OsFiles
from tidegate.storage.log_manager import LOGS_NAME


@dataclass(frozen=True, slots=True)
class CatalogDamage:
    """A damage of the catalog, or a mismatch with the logs."""

    path: Path
    description: str


def check_catalog(data_directory: Path) -> list[CatalogDamage]:
    """All damages; empty if the catalog is sound, or if no service has started in the directory yet.

    Raises OSError.
    """
    return list(_damages(data_directory))


def _damages(data_directory: Path) -> Iterator[CatalogDamage]:
    path = data_directory / CATALOG_NAME
    logs_directory = data_directory / LOGS_NAME
    kept = {entry.name for entry in logs_directory.iterdir() if entry.is_dir()}
    if not path.exists():
        if kept:
            yield CatalogDamage(
                path,
                f"the catalog is missing but the logs of {len(kept)} event hubs exist: a "
                "service would start with no event hub and a new key",
            )
        return
    try:
        contents = Catalog.read(OsFiles(), data_directory)
    except LogCorruptError as error:
        yield CatalogDamage(path, error.message)
        return
    for hub in contents.event_hubs:
        for partition_id in map(str, range(hub.partition_count)):
            directory = logs_directory / hub.hub_id / partition_id
            if not directory.is_dir():
                yield CatalogDamage(
                    directory, f"the log of partition {partition_id} of the event hub {hub.name!r} is missing"
                )
