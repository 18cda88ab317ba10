"""Checks a data directory's catalog, for ``tidegate check``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.broker.catalog import CATALOG_KEY, parse_catalog
from tidegate.model.errors import LogCorruptError
from tidegate.storage.control_log import control_path
from tidegate.storage.log_manager import LOGS_NAME


@dataclass(frozen=True, slots=True)
class CatalogDamage:
    """A damage of the catalog, or a mismatch with the logs."""

    path: Path
    description: str


def check_catalog(data_directory: Path) -> Iterator[CatalogDamage]:
    """All damages of the catalog; none if no service has started in the directory yet. Writes nothing.

    It cannot be repaired: only a backup has its keys and names. Raises OSError.
    """
    path = control_path(data_directory, CATALOG_KEY)
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
        contents = parse_catalog(path.read_bytes(), str(path))
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
