"""The catalog: a namespace, its event hubs and policies, in one JSON file that is replaced atomically.

The rule: memory changes only after the file, so that reported changes survive a power loss.

    format version 1   hubs, consumer groups; policies of the namespace, with one key each
    format version 2   also a second key per policy; policies, revoked publishers, the largest event and the
                       capture settings of hubs; the tier and the throughput units of the namespace

A file of version 1 is read, and written as version 2 when the service starts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate.broker.authorization import ROOT_POLICY_NAME, Claim, SharedAccessPolicy
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError, LogCorruptError, LogFailedError
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSettings, checked_changes, hub_changes_in
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, TIER_DEFAULT, Tier, TierLimits
from tidegate.storage.files import Files, OsFiles, RenameInDoubtError, read_whole, replace_whole
from tidegate.storage.log_manager import LOGS_NAME
from tidegate.storage.write_errors import step_error

CATALOG_NAME: Final = "catalog.json"
_FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
_logger: Final = logging.getLogger(__name__)
_REFUSALS = (InvalidArgumentError, msgspec.ValidationError)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubRecord(HubSettings):
    """An event hub in the catalog, with its settings as they were chosen."""

    hub_id: str
    """Name of the hub's log directory; a recreated hub gets another."""
    name: str
    """As spelled at its creation; compared ignoring case."""
    partition_count: int
    retention_hours: int
    """Never None: the default was the tier's at that time."""
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    consumer_groups: tuple[str, ...] = (DEFAULT_CONSUMER_GROUP,)
    policies: tuple[SharedAccessPolicy, ...] = ()
    """Policies of this hub."""
    revoked_publishers: tuple[str, ...] = ()
    """Publishers that may not send; compared ignoring case."""
    capture: CaptureSettings | None = None
    """None: its events are not captured."""

    def choices(self) -> dict[str, object]:
        """The hub's own settings and its number of partitions, as plain values."""
        return {"partition_count": self.partition_count, **self.settings()}

    def changed(self, changes: HubChanges, limits: TierLimits) -> EventHubRecord:
        """The record with other settings. Raises InvalidArgumentError if the tier does not allow them."""
        chosen = checked_changes(changes)
        values: dict[str, Any] = {
            setting.name: setting.resolve(chosen.get(setting.name), limits)
            for setting in HUB_SETTINGS
            if setting.name in chosen
        }
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class CatalogContents:
    """Everything the catalog holds."""

    policies: tuple[SharedAccessPolicy, ...]
    """Policies of the namespace."""
    event_hubs: tuple[EventHubRecord, ...] = ()
    tier: Tier = TIER_DEFAULT
    throughput_units: int | None = None
    """None: throughput is not limited."""


class CatalogInDoubtError(LogFailedError):
    """A change is in the file, but may not survive a power loss. Until the restart, nothing may be promised
    that relies on the old contents alone, or on the new ones alone."""


class Catalog:
    """The catalog of one data directory."""

    def __init__(self, files: Files, path: Path, contents: CatalogContents) -> None:
        self._files = files
        self._path = path
        self.contents = contents
        self.failure: LogFailedError | None = None
        """Why it refuses changes until a restart; None: it accepts them."""

    @classmethod
    def open(cls, files: Files, data_directory: Path) -> Catalog:
        """Read the catalog, or create one with a root policy that has random keys.

        Raises LogCorruptError (the file does not parse), LogFullError, ServerBusyError, LogFailedError.
        """
        path = data_directory / CATALOG_NAME
        try:
            version, contents = _read(files, path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise step_error(error, "read the catalog", path) from error
            root = SharedAccessPolicy.generate(ROOT_POLICY_NAME, Claim)
            catalog = cls(files, path, CatalogContents((root,)))
            catalog.replace_contents(catalog.contents)
            return catalog
        catalog = cls(files, path, contents)
        if version != _FORMAT_VERSION:
            # Reading an older file made second keys: they must be the same after the next start.
            catalog.replace_contents(contents)
        return catalog

    @staticmethod
    def read(files: Files, data_directory: Path) -> CatalogContents:
        """What the catalog holds, without writing anything.

        Raises LogCorruptError, FileNotFoundError.
        """
        return _read(files, data_directory / CATALOG_NAME)[1]

    def replace_contents(self, contents: CatalogContents) -> None:
        """Replace the catalog; durable on return.

        Raises CatalogInDoubtError, and LogFullError, ServerBusyError, LogFailedError: the old contents then
        stay.
        """
        if self.failure is not None:
            raise LogFailedError(self.failure.message, next_step=self.failure.next_step)
        try:
            replace_whole(self._files, self._path, _encode(contents), is_durable=True)
        except RenameInDoubtError as error:
            # As after a failed sync of a log: a later sync that succeeds would prove nothing about this one.
            self.failure = CatalogInDoubtError(
                f"The catalog {self._path} accepts no more changes: it is not known whether the last one "
                f"survives a power loss, because the sync of {self._path.parent} failed ({error.strerror}).",
                next_step="Check the disk, restart the service, and look whether the change was made.",
            )
            _logger.error("%s", self.failure)
            raise self.failure from error
        except OSError as error:
            raise step_error(error, "write the catalog", self._path) from error
        self.contents = contents

    def replace_event_hub(self, record: EventHubRecord) -> None:
        """Replace the record with the same id."""
        hubs = tuple(record if hub.hub_id == record.hub_id else hub for hub in self.contents.event_hubs)
        self.replace_contents(replace(self.contents, event_hubs=hubs))


def _encode(contents: CatalogContents) -> bytes:
    document: dict[str, Any] = {"format_version": _FORMAT_VERSION, **asdict(contents)}
    for hub in document["event_hubs"]:
        hub["id"] = hub.pop("hub_id")
    return json.dumps(document, indent=2, ensure_ascii=False, default=_plain).encode() + b"\n"


def _plain(value: Tier | frozenset[Claim]) -> object:
    return value.value if isinstance(value, Tier) else sorted(claim.value for claim in value)


def _read(files: Files, path: Path) -> tuple[int, CatalogContents]:
    data = read_whole(files, path)
    try:
        document = json.loads(data)
        version = document["format_version"]
        if version not in _READABLE_VERSIONS:
            raise LogCorruptError(
                f"The catalog {path} has format version {version!r}; this release reads "
                f"{_READABLE_VERSIONS[0]} to {_FORMAT_VERSION}.",
                next_step="Run the release that wrote it.",
            )
        hubs = tuple(_parse_event_hub(hub) for hub in document.pop("event_hubs"))
        contents = replace(msgspec.convert(document, CatalogContents), event_hubs=hubs)
    except (ValueError, KeyError, TypeError, AttributeError, *_REFUSALS) as error:
        # The parser's message may quote the file, which contains keys: only its type is reported.
        raise LogCorruptError(
            f"Cannot parse the catalog {path} ({type(error).__name__}).",
            next_step="Restore it from a backup; the logs beside it are not affected.",
        ) from None
    return version, contents


def _parse_event_hub(hub: dict[str, Any]) -> EventHubRecord:
    capture = hub.pop("capture", None)
    record = msgspec.convert({**hub, **hub_changes_in(hub), "hub_id": hub["id"]}, EventHubRecord)
    return record if capture is None else replace(record, capture=CaptureSettings.from_mapping(capture))


@dataclass(frozen=True, slots=True)
class CatalogDamage:
    """A damage of the catalog, or a mismatch with the logs."""

    path: Path
    description: str


def check_catalog(data_directory: Path) -> Iterator[CatalogDamage]:
    """All damages of the catalog; none if no service has started in the directory yet. Writes nothing.

    It cannot be repaired: only a backup has its keys and names. Raises OSError.
    """
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
