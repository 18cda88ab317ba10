"""The catalog: a namespace, its event hubs and policies, as JSON values of the engine's control log.

    namespace    the id of the namespace, its policies, its tier and its throughput units
    hub/ID       an event hub with its settings, consumer groups, policies and revoked publishers

Each value says who changed it last, and when. The rule: memory changes only after the control log, so that
reported changes survive a power loss. A kind of value, or a setting, that is not known was written by a later
version, which would miss it after a change made here: it is refused.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from tidegate.broker.audit import current_actor
from tidegate.broker.authorization import ROOT_POLICY_NAME, SharedAccessPolicy
from tidegate.broker.change_queue import ChangeQueue
from tidegate.broker.claims import Claim
from tidegate.model.capture import CaptureSettings
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    LATER_VERSION,
    InvalidArgumentError,
    LogCorruptError,
    LogFormatError,
    TidegateError,
)
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSettings, checked_changes, hub_changes_in
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, TIER_DEFAULT, Tier, TierLimits
from tidegate.model.times import milliseconds_of
from tidegate.model.validation import from_values
from tidegate.storage.engine import Cell, ControlLog

NAMESPACE_KEY: Final = "namespace"
HUB_KEYS: Final = "hub/"
"""Before the id of a hub."""

_FORMAT_VERSION: Final = 1
_KINDS: Final = frozenset({"namespace", "hub", "container", "blob", "capture"})
"""Of keys, up to ``/``: the catalog's, those of ``blobs``, and that of the package ``capture``."""
_REFUSALS: Final = (InvalidArgumentError, msgspec.ValidationError)
_REMEDY: Final = (
    "Restore control.log and control.copy from one backup; the logs beside them are not affected."
)


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
class NamespaceRecord:
    """The namespace in the catalog."""

    namespace_id: str
    """32 hexadecimal digits, random: the namespace's identity, by whatever name and port it is reached."""
    policies: tuple[SharedAccessPolicy, ...]
    tier: Tier = TIER_DEFAULT
    throughput_units: int | None = None
    """None: throughput is not limited."""


@dataclass(slots=True)
class CatalogContents:
    """Everything the catalog holds."""

    namespace: NamespaceRecord
    event_hubs: dict[str, EventHubRecord]
    """By their ids, in the order of their creation."""


class Catalog:
    """The catalog of one namespace."""

    def __init__(
        self, control: ControlLog, contents: CatalogContents, versions: dict[str, int], clock: Clock
    ) -> None:
        """versions: of the values in the control log, by key."""
        self._control = control
        self._contents = contents
        self._versions = versions
        self._clock = clock
        self.changes: Final = ChangeQueue()
        """See ``serialized``."""
        self.check_actor: Callable[[], None] = lambda: None
        """Raises UnauthorizedError if the actor who asked for a change may no longer make it."""
        self.cut_off: asyncio.CancelledError | None = None
        """The cancellation of a change that was made nevertheless; ``serialized`` raises it at the end."""

    @classmethod
    async def open(cls, control: ControlLog, clock: Clock) -> Catalog:
        """Read the catalog, or create one with a random id and a root policy that has random keys.

        Raises LogCorruptError (a value does not parse, or is missing), LogFullError, ServerBusyError,
        LogFailedError.
        """
        cells = await control.read_all("")
        if not cells:
            root = SharedAccessPolicy.generate(ROOT_POLICY_NAME, Claim)
            namespace = NamespaceRecord(secrets.token_hex(16), (root,))
            catalog = cls(control, CatalogContents(namespace, {}), {}, clock)
            await catalog.replace_namespace(catalog.namespace)
            return catalog
        versions = {key: cell.version for key, cell in cells.items()}
        return cls(control, parse_catalog(cells, control.place), versions, clock)

    @property
    def namespace(self) -> NamespaceRecord:
        """The namespace's record."""
        return self._contents.namespace

    @property
    def event_hubs(self) -> Mapping[str, EventHubRecord]:
        """The records of event hubs by their ids, in the order of their creation."""
        return self._contents.event_hubs

    @property
    def failure(self) -> TidegateError | None:
        """Why it refuses changes until a restart; None: it accepts them."""
        return self._control.failure

    async def replace_namespace(self, record: NamespaceRecord) -> None:
        """Replace the namespace's record; durable on return. This and the other changes are for methods that
        are ``serialized``.

        Raises as ``ControlLog.change``.
        """
        await self._change(NAMESPACE_KEY, record)
        self._contents.namespace = record

    async def put_event_hub(self, record: EventHubRecord) -> None:
        """Add an event hub, or replace the record with the same id. Otherwise as ``replace_namespace``."""
        await self._change(HUB_KEYS + record.hub_id, record)
        self._contents.event_hubs[record.hub_id] = record

    async def remove_event_hub(self, hub_id: str) -> None:
        """Remove an event hub. Otherwise as ``replace_namespace``."""
        await self._change(HUB_KEYS + hub_id, None)
        del self._contents.event_hubs[hub_id]

    async def _change(self, key: str, record: NamespaceRecord | EventHubRecord | None) -> None:
        value = None
        if record is not None:
            # Not asdict: for 10,000 revoked publishers it takes 20 ms.
            values = {each.name: getattr(record, each.name) for each in fields(record)}
            changed = {
                "changed_at_ms": milliseconds_of(self._clock.now_utc()),
                "changed_by": current_actor().name,
            }
            document = {"format_version": _FORMAT_VERSION, **changed, **values}
            value = json.dumps(document, ensure_ascii=False, default=_plain).encode()
        expected = self._versions.get(key, 0)
        try:
            version = await self._control.change(key, value, expected_version=expected)
        except asyncio.CancelledError as error:
            cell = await self._control.read(key)
            version = 0 if cell is None else cell.version
            if version == expected:
                raise
            # It was made: it must be in force and recorded, or all later changes would be refused.
            self.cut_off = error
        if value is None:
            del self._versions[key]
        else:
            self._versions[key] = version


class _HasCatalog(Protocol):
    _catalog: Catalog


_Owner = TypeVar("_Owner", bound=_HasCatalog)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R", NamespaceRecord, EventHubRecord)


def serialized(
    method: Callable[Concatenate[_Owner, _P], Awaitable[_T]],
) -> Callable[Concatenate[_Owner, _P], Coroutine[Any, Any, _T]]:
    """For a method that changes the catalog: one change at a time, as each may wait for the engine.

    Raises ServerBusyError as ``ChangeQueue.turn``. A change that has waited for others may have lost its
    right by them: it then raises UnauthorizedError. Cancellation: a change in the control log is in
    force, and recorded.
    """

    @wraps(method)
    async def change(self: _Owner, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._catalog.changes.turn(current_actor()):
            self._catalog.check_actor()
            try:
                return await method(self, *args, **kwargs)
            finally:
                cut_off, self._catalog.cut_off = self._catalog.cut_off, None
                if cut_off is not None:  # also in place of what failed afterwards: its caller is gone
                    raise cut_off

    return change


def parse_catalog(cells: Mapping[str, Cell], place: Callable[[str], str]) -> CatalogContents:
    """What the values of a control log say. place: where a key is kept.

    Raises LogCorruptError, and LogFormatError for what a later version has written.
    """
    for key in cells:
        if key.partition("/")[0] not in _KINDS:
            raise _of_later_version(f"{place(key)} is of a kind")
    if NAMESPACE_KEY not in cells:
        raise LogCorruptError(
            f"The catalog in {place(NAMESPACE_KEY)} is missing, but there are values beside it.",
            next_step=_REMEDY,
        )
    namespace = _parse(cells[NAMESPACE_KEY].value, NamespaceRecord, place(NAMESPACE_KEY))
    hubs = {
        key.removeprefix(HUB_KEYS): _parse(cell.value, EventHubRecord, place(key))
        for key, cell in cells.items()
        if key.startswith(HUB_KEYS)
    }
    return CatalogContents(namespace, hubs)


def _plain(value: Tier | frozenset[Claim] | SharedAccessPolicy | CaptureSettings) -> object:
    if isinstance(value, (SharedAccessPolicy, CaptureSettings)):
        return asdict(value)
    return value.value if isinstance(value, Tier) else sorted(claim.value for claim in value)


def _of_later_version(what: str) -> LogFormatError:
    return LogFormatError(f"{what} that this version does not know.", next_step=LATER_VERSION)


def _unknown_settings(document: Mapping[str, Any], record: type[NamespaceRecord | EventHubRecord]) -> str:
    """The names of settings that a record does not have; empty: none."""
    unknown = document.keys() - {each.name for each in fields(record)} - {"changed_at_ms", "changed_by"}
    for policy in document["policies"]:
        unknown |= policy.keys() - {each.name for each in fields(SharedAccessPolicy)}
    return ", ".join(sorted(unknown))


def _parse(data: bytes, record: type[_R], place: str) -> _R:
    try:
        document = json.loads(data)
        version = document.pop("format_version")
        if version != _FORMAT_VERSION:
            raise _of_later_version(f"The catalog in {place} has a format ({version!r})")
        if unknown := _unknown_settings(document, record):
            raise _of_later_version(f"The catalog in {place} has settings ({unknown})")
        if record is EventHubRecord:
            document |= hub_changes_in(document)
            if document["capture"] is not None:
                document["capture"] = CaptureSettings.from_mapping(document["capture"])
        return from_values(document, record)
    except (ValueError, KeyError, TypeError, AttributeError, *_REFUSALS) as error:
        # The parser's message may quote the file, which contains keys: only its type is reported.
        raise LogCorruptError(
            f"Cannot parse the catalog in {place} ({type(error).__name__}).", next_step=_REMEDY
        ) from None
