"""The catalog: a namespace, its event hubs and policies, as one JSON value of the engine's control log.

The rule: memory changes only after the control log, so that reported changes survive a power loss.

    format version 1   hubs, consumer groups; policies of the namespace, with one key each
    format version 2   also a second key per policy; policies, revoked publishers, the largest event and the
                       capture settings of hubs; the tier and the throughput units of the namespace

A value of version 1 is read, and written as version 2 when the service starts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from tidegate.broker.authorization import ROOT_POLICY_NAME, Claim, SharedAccessPolicy
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError, LogCorruptError, TidegateError
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSettings, checked_changes, hub_changes_in
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, TIER_DEFAULT, Tier, TierLimits
from tidegate.storage.engine import ControlLog

CATALOG_KEY: Final = "catalog"
"""In the control log."""

_FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
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


class Catalog:
    """The catalog of one namespace."""

    def __init__(self, control: ControlLog, contents: CatalogContents, version: int) -> None:
        """version: of the value in the control log."""
        self._control = control
        self._version = version
        self.contents = contents
        self.changing: Final = asyncio.Lock()
        """See ``serialized``."""
        self.check_actor: Callable[[], None] = lambda: None
        """Raises UnauthorizedError if the actor who asked for a change may no longer make it."""

    @classmethod
    async def open(cls, control: ControlLog) -> Catalog:
        """Read the catalog, or create one with a root policy that has random keys.

        Raises LogCorruptError (it does not parse), LogFullError, ServerBusyError, LogFailedError.
        """
        cell = await control.read(CATALOG_KEY)
        if cell is None:
            root = SharedAccessPolicy.generate(ROOT_POLICY_NAME, Claim)
            catalog = cls(control, CatalogContents((root,)), 0)
            await catalog.replace_contents(catalog.contents)
            return catalog
        format_version, contents = _parse(cell.value, control.place(CATALOG_KEY))
        catalog = cls(control, contents, cell.version)
        if format_version != _FORMAT_VERSION:
            # Reading an older value made second keys: they must be the same after the next start.
            await catalog.replace_contents(contents)
        return catalog

    @property
    def failure(self) -> TidegateError | None:
        """Why it refuses changes until a restart; None: it accepts them."""
        return self._control.failure

    async def replace_contents(self, contents: CatalogContents) -> None:
        """Replace the catalog; durable on return. For methods that are ``serialized``.

        Raises as ``ControlLog.change``.
        """
        self._version = await self._control.change(
            CATALOG_KEY, _encode(contents), expected_version=self._version
        )
        self.contents = contents

    async def replace_event_hub(self, record: EventHubRecord) -> None:
        """Replace the record with the same id."""
        hubs = tuple(record if hub.hub_id == record.hub_id else hub for hub in self.contents.event_hubs)
        await self.replace_contents(replace(self.contents, event_hubs=hubs))


class _HasCatalog(Protocol):
    _catalog: Catalog


_Owner = TypeVar("_Owner", bound=_HasCatalog)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def serialized(
    method: Callable[Concatenate[_Owner, _P], Awaitable[_T]],
) -> Callable[Concatenate[_Owner, _P], Coroutine[Any, Any, _T]]:
    """For a method that changes the catalog: one change at a time, as each may wait for the engine.

    A change that has waited for others may have lost its right by them: it then raises UnauthorizedError.
    """

    @wraps(method)
    async def change(self: _Owner, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._catalog.changing:
            self._catalog.check_actor()
            return await method(self, *args, **kwargs)

    return change


def parse_catalog(data: bytes, place: str) -> CatalogContents:
    """What a catalog holds. place: where it is kept, for messages. Raises LogCorruptError."""
    return _parse(data, place)[1]


def _encode(contents: CatalogContents) -> bytes:
    document: dict[str, Any] = {"format_version": _FORMAT_VERSION, **asdict(contents)}
    for hub in document["event_hubs"]:
        hub["id"] = hub.pop("hub_id")
    return json.dumps(document, indent=2, ensure_ascii=False, default=_plain).encode() + b"\n"


def _plain(value: Tier | frozenset[Claim]) -> object:
    return value.value if isinstance(value, Tier) else sorted(claim.value for claim in value)


def _parse(data: bytes, place: str) -> tuple[int, CatalogContents]:
    try:
        document = json.loads(data)
        version = document["format_version"]
        if version not in _READABLE_VERSIONS:
            raise LogCorruptError(
                f"The catalog in {place} has format version {version!r}; this release reads "
                f"{_READABLE_VERSIONS[0]} to {_FORMAT_VERSION}.",
                next_step="Run the release that wrote it.",
            )
        hubs = tuple(_parse_event_hub(hub) for hub in document.pop("event_hubs"))
        contents = replace(msgspec.convert(document, CatalogContents), event_hubs=hubs)
    except (ValueError, KeyError, TypeError, AttributeError, *_REFUSALS) as error:
        # The parser's message may quote the file, which contains keys: only its type is reported.
        raise LogCorruptError(
            f"Cannot parse the catalog in {place} ({type(error).__name__}).",
            next_step="Restore it from a backup; the logs beside it are not affected.",
        ) from None
    return version, contents


def _parse_event_hub(hub: dict[str, Any]) -> EventHubRecord:
    capture = hub.pop("capture", None)
    record = msgspec.convert({**hub, **hub_changes_in(hub), "hub_id": hub["id"]}, EventHubRecord)
    return record if capture is None else replace(record, capture=CaptureSettings.from_mapping(capture))
