"""The catalog: which event hubs, consumer groups and policies there are; one JSON file, replaced atomically.

The rule: memory changes only after the file did, so what a caller was told exists survives a power loss.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidegate.broker.authorization import ROOT_POLICY_NAME, Claim, SharedAccessPolicy
from tidegate.model.errors import LogCorruptError, LogFullError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.storage.files import Files, read_whole, replace_whole
from tidegate.storage.write_errors import is_full_error

CATALOG_NAME: Final = "catalog.json"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class EventHubRecord:
    """What the catalog keeps of an event hub."""

    hub_id: str
    """Names the hub's log directory; a hub created again under the same name gets another."""
    name: str
    """As its creator wrote it; compared without regard to case."""
    partition_count: int
    retention_hours: int
    """Hours that events are kept."""
    retention_bytes: int | None
    """Bytes that each partition keeps; None: no limit but time."""
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    consumer_groups: tuple[str, ...] = (DEFAULT_CONSUMER_GROUP,)


@dataclass(frozen=True, slots=True)
class CatalogContents:
    """Everything the catalog holds."""

    policies: tuple[SharedAccessPolicy, ...]
    event_hubs: tuple[EventHubRecord, ...] = ()


class Catalog:
    """The catalog of one data directory."""

    def __init__(self, files: Files, path: Path, contents: CatalogContents) -> None:
        self._files = files
        self._path = path
        self.contents = contents

    @classmethod
    def open(cls, files: Files, data_directory: Path) -> Catalog:
        """Read the catalog; on first start write one with a root policy whose key is random.

        Raises LogCorruptError (the file does not parse: nothing is guessed), LogFullError.
        """
        path = data_directory / CATALOG_NAME
        try:
            data = read_whole(files, path)
        except FileNotFoundError:
            root = SharedAccessPolicy.generate(ROOT_POLICY_NAME, Claim)
            catalog = cls(files, path, CatalogContents((root,)))
            catalog.replace_contents(catalog.contents)
            return catalog
        return cls(files, path, _decode(path, data))

    def replace_contents(self, contents: CatalogContents) -> None:
        """Make ``contents`` the catalog; durable on return. Raises LogFullError; the old contents then
        stand.
        """
        try:
            replace_whole(self._files, self._path, _encode(contents), is_durable=True)
        except OSError as error:
            if is_full_error(error):
                raise LogFullError(
                    f"No room to write the catalog {self._path}.", next_step="Free disk space and repeat."
                ) from error
            raise
        self.contents = contents

    def replace_event_hub(self, record: EventHubRecord) -> None:
        """Store a changed record in place of the one with the same id."""
        hubs = tuple(record if hub.hub_id == record.hub_id else hub for hub in self.contents.event_hubs)
        self.replace_contents(replace(self.contents, event_hubs=hubs))


def _encode(contents: CatalogContents) -> bytes:
    document = {
        "format_version": _FORMAT_VERSION,
        "policies": [
            {"name": policy.name, "key": policy.key, "claims": sorted(claim.value for claim in policy.claims)}
            for policy in contents.policies
        ],
        "event_hubs": [
            {
                "id": hub.hub_id,
                "name": hub.name,
                "partition_count": hub.partition_count,
                "retention_hours": hub.retention_hours,
                "retention_bytes": hub.retention_bytes,
                "created_at_ms": hub.created_at_ms,
                "consumer_groups": list(hub.consumer_groups),
            }
            for hub in contents.event_hubs
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def _decode(path: Path, data: bytes) -> CatalogContents:
    try:
        document = json.loads(data)
        version = document["format_version"]
        if version != _FORMAT_VERSION:
            raise LogCorruptError(
                f"The catalog {path} has format version {version!r}; this release reads {_FORMAT_VERSION}.",
                next_step="Start the release that wrote it.",
            )
        policies = tuple(
            SharedAccessPolicy(
                str(policy["name"]), str(policy["key"]), frozenset(Claim(claim) for claim in policy["claims"])
            )
            for policy in document["policies"]
        )
        hubs = tuple(
            EventHubRecord(
                hub_id=str(hub["id"]),
                name=str(hub["name"]),
                partition_count=int(hub["partition_count"]),
                retention_hours=int(hub["retention_hours"]),
                retention_bytes=None if hub["retention_bytes"] is None else int(hub["retention_bytes"]),
                created_at_ms=int(hub["created_at_ms"]),
                consumer_groups=tuple(str(group) for group in hub["consumer_groups"]),
            )
            for hub in document["event_hubs"]
        )
    except (ValueError, KeyError, TypeError) as error:
        # The parser's own message may quote the file, which holds keys: only its kind is told.
        raise LogCorruptError(
            f"The catalog {path} does not parse ({type(error).__name__}).",
            next_step="Restore it from a backup; the logs beside it are not affected.",
        ) from None
    return CatalogContents(policies, hubs)
