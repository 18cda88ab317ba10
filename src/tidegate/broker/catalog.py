"""The catalog: what a namespace and its event hubs are, with policies; one JSON file, replaced atomically.

The rule: memory changes only after the file did, so what was reported to a caller survives a power loss.

    format version 1   hubs, consumer groups; policies of the namespace, with one key each
    format version 2   also a second key per policy; policies, revoked publishers, the largest event and the
                       capture settings of hubs; the tier and the throughput units of the namespace

A file of version 1 is read, and written as version 2 when the service starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidegate.broker.authorization import ROOT_POLICY_NAME, Claim, SharedAccessPolicy
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError, LogCorruptError, LogFullError
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSettings, checked_changes, hub_changes_in
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, TIER_DEFAULT, Tier, TierLimits
from tidegate.storage.files import Files, read_whole, replace_whole
from tidegate.storage.write_errors import is_full_error, is_shortage_error, shortage_error

CATALOG_NAME: Final = "catalog.json"
_FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubRecord(HubSettings):
    """What the catalog keeps of an event hub: its settings, as they were chosen, and the rest."""

    hub_id: str
    """Names the hub's log directory; a hub created again under the same name gets another."""
    name: str
    """As its creator wrote it; compared without regard to case."""
    partition_count: int
    retention_hours: int
    """Never None: what the tier's default was when it was chosen."""
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    consumer_groups: tuple[str, ...] = (DEFAULT_CONSUMER_GROUP,)
    policies: tuple[SharedAccessPolicy, ...] = ()
    """Policies for this hub alone."""
    revoked_publishers: tuple[str, ...] = ()
    """Publishers that may not send, as they were named; compared without regard to case."""
    capture: CaptureSettings | None = None
    """None: its events are not captured."""

    def choices(self) -> dict[str, object]:
        """What can be chosen of the hub itself, as plain values."""
        return {"partition_count": self.partition_count, **self.settings()}

    def changed(self, changes: HubChanges, limits: TierLimits) -> EventHubRecord:
        """The record with other settings. Raises InvalidArgumentError for what the tier does not allow."""
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
    """Policies for the whole namespace."""
    event_hubs: tuple[EventHubRecord, ...] = ()
    tier: Tier = TIER_DEFAULT
    throughput_units: int | None = None
    """None: throughput is not limited."""


class Catalog:
    """The catalog of one data directory."""

    def __init__(self, files: Files, path: Path, contents: CatalogContents) -> None:
        self._files = files
        self._path = path
        self.contents = contents

    @classmethod
    def open(cls, files: Files, data_directory: Path) -> Catalog:
        """Read the catalog; on first start write one with a root policy whose keys are random.

        Raises LogCorruptError (the file does not parse: nothing is guessed), LogFullError.
        """
        path = data_directory / CATALOG_NAME
        try:
            version, contents = _read(files, path)
        except FileNotFoundError:
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
        """Make ``contents`` the catalog; durable on return. Raises LogFullError, ServerBusyError; the
        old contents then stand.
        """
        try:
            replace_whole(self._files, self._path, _encode(contents), is_durable=True)
        except OSError as error:
            if is_full_error(error):
                raise LogFullError(
                    f"No disk space to write the catalog {self._path}.",
                    next_step="Free disk space and try again.",
                ) from error
            if is_shortage_error(error):
                raise shortage_error(error, "write the catalog") from error
            raise
        self.contents = contents

    def replace_event_hub(self, record: EventHubRecord) -> None:
        """Store a changed record in place of the one with the same id."""
        hubs = tuple(record if hub.hub_id == record.hub_id else hub for hub in self.contents.event_hubs)
        self.replace_contents(replace(self.contents, event_hubs=hubs))


def _encode(contents: CatalogContents) -> bytes:
    document = {
        "format_version": _FORMAT_VERSION,
        "tier": contents.tier.value,
        "throughput_units": contents.throughput_units,
        "policies": _policies_document(contents.policies),
        "event_hubs": [
            {
                "id": hub.hub_id,
                "name": hub.name,
                **hub.choices(),
                "created_at_ms": hub.created_at_ms,
                "consumer_groups": list(hub.consumer_groups),
                "policies": _policies_document(hub.policies),
                "revoked_publishers": list(hub.revoked_publishers),
                "capture": None if hub.capture is None else hub.capture.to_mapping(),
            }
            for hub in contents.event_hubs
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def _policies_document(policies: Iterable[SharedAccessPolicy]) -> list[dict[str, object]]:
    return [
        {
            "name": policy.name,
            "key": policy.key,
            "secondary_key": policy.secondary_key,
            "claims": sorted(claim.value for claim in policy.claims),
        }
        for policy in policies
    ]


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
        contents = CatalogContents(
            policies=_parse_policies(document["policies"]),
            event_hubs=tuple(_parse_event_hub(hub) for hub in document["event_hubs"]),
            tier=Tier(document.get("tier", TIER_DEFAULT.value)),
            throughput_units=_optional_integer(document, "throughput_units"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidArgumentError) as error:
        # The parser's own message may quote the file, which holds keys: only its type is reported.
        raise LogCorruptError(
            f"Cannot parse the catalog {path} ({type(error).__name__}).",
            next_step="Restore it from a backup; the logs beside it are not affected.",
        ) from None
    return version, contents


def _parse_event_hub(hub: Mapping[str, Any]) -> EventHubRecord:
    capture = hub.get("capture")
    settings: dict[str, Any] = {**hub_changes_in(hub)}
    if settings.get("retention_hours") is None:
        raise ValueError("an event hub without retention")
    return EventHubRecord(
        **settings,
        hub_id=str(hub["id"]),
        name=str(hub["name"]),
        partition_count=int(hub["partition_count"]),
        created_at_ms=int(hub["created_at_ms"]),
        consumer_groups=tuple(str(group) for group in hub["consumer_groups"]),
        policies=_parse_policies(hub.get("policies", ())),
        revoked_publishers=tuple(str(name) for name in hub.get("revoked_publishers", ())),
        capture=None if capture is None else CaptureSettings.from_mapping(capture),
    )


def _parse_policies(policies: Iterable[Mapping[str, Any]]) -> tuple[SharedAccessPolicy, ...]:
    return tuple(
        SharedAccessPolicy.generate(
            str(policy["name"]),
            (Claim(claim) for claim in policy["claims"]),
            key=str(policy["key"]),
            # Version 1 had none: a new random one, so that there is never a key that could be guessed.
            secondary_key=str(policy["secondary_key"]) if "secondary_key" in policy else None,
        )
        for policy in policies
    )


def _optional_integer(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return None if value is None else int(value)
