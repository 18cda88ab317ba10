"""``EventHubAdministrator``: lists and changes the entities of a running Tidegate.

It uses AMQP requests that Azure does not have; for Azure, use its portal or tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar, Unpack

from tidegate.amqp.message import NO_VALUE
from tidegate.client.closing import AsyncClosing
from tidegate.client.connector import Connector
from tidegate.client.entities import (
    BackupProperties,
    ConsumerProperties,
    PolicyProperties,
    StatisticsProperties,
    ThroughputProperties,
)
from tidegate.client.management import ask, read_event_hub, read_partitions
from tidegate.client.namespace import ConnectionOptions, Namespace
from tidegate.model.capture import CaptureSettings
from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.model.hub_settings import HubChanges, checked_changes
from tidegate.model.limits import Tier
from tidegate.wire.addresses import entity_audience
from tidegate.wire.administration import AdministrationRequest, plain_value

T = TypeVar("T")


class EventHubAdministrator(AsyncClosing):
    """Manages the hubs of a namespace; needs a policy with Manage. Use ``async with``, or ``close`` it."""

    def __init__(
        self, namespace: Namespace, event_hub: str | None = None, *, clock: Clock | None = None
    ) -> None:
        """Connects when first used.

        event_hub: the policy's hub, if it is not a policy of the namespace; requests about the hub then use a
        token for it.
        """
        self._connector = Connector(namespace, clock=clock)
        self._host = namespace.host
        self._own_hub = event_hub

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        **options: Unpack[ConnectionOptions],
    ) -> Self:
        """An administrator of the namespace, or of the hub that is the string's EntityPath."""
        if not isinstance(connection_string, ConnectionString):
            connection_string = ConnectionString.parse(connection_string)
        namespace = Namespace.from_connection_string(connection_string, **options)
        return cls(namespace, connection_string.entity_path)

    async def create_event_hub(
        self, name: str, *, partition_count: int | None = None, **settings: Unpack[HubChanges]
    ) -> EventHubProperties:
        """Create a hub. Settings that are None or omitted get the service's default.

        Raises AlreadyExistsError, InvalidArgumentError (name or number), UnauthorizedError. The request is
        repeated after a broken connection; AlreadyExistsError may then be caused by this call.
        """
        values: dict[str, object] = {"name": name, **checked_changes(settings)}
        if partition_count is not None:
            values["partition_count"] = partition_count
        return _as(EventHubProperties, await self._administer("createEventHub", values))

    async def update_event_hub(
        self, name: str, *, partition_count: int | None = None, **changes: Unpack[HubChanges]
    ) -> EventHubProperties:
        """Change settings of a hub, all or none; None resets a setting to the service's default.

        partition_count: more than now adds partitions, which cannot be removed again; keys then belong to
        other partitions than before. None: as now.
        Raises NotFoundError, InvalidArgumentError (name or number), UnauthorizedError.
        """
        values: dict[str, object] = {**checked_changes(changes)}
        if partition_count is not None:
            values["partition_count"] = partition_count
        return _as(EventHubProperties, await self._administer("updateEventHub", values, hub=name))

    async def list_event_hubs(self) -> list[EventHubProperties]:
        """All hubs of the namespace. Raises UnauthorizedError."""
        return _as(list[EventHubProperties], await self._administer("listEventHubs"))

    async def get_event_hub(self, name: str) -> EventHubProperties:
        """One hub. Raises NotFoundError, UnauthorizedError."""
        return await read_event_hub(self._connector, self._audience(name), name)

    async def get_statistics(self, event_hub: str) -> StatisticsProperties:
        """A hub's counts and size. Raises NotFoundError, UnauthorizedError."""
        found = await self._administer("readEventHubStatistics", hub=event_hub)
        return _as(StatisticsProperties, found)

    async def list_partitions(self, event_hub: EventHubProperties) -> list[PartitionEnds]:
        """Where the partitions of a hub begin and end now. Raises NotFoundError, UnauthorizedError."""
        return await read_partitions(self._connector, self._audience(event_hub.name), event_hub)

    async def delete_event_hub(self, name: str) -> None:
        """Delete a hub with all its events, permanently. Raises NotFoundError, UnauthorizedError."""
        await self._administer("deleteEventHub", hub=name)

    async def create_consumer_group(self, event_hub: str, name: str) -> None:
        """Create a consumer group.

        Raises AlreadyExistsError, NotFoundError (the hub), QuotaExceededError, InvalidArgumentError (name),
        UnauthorizedError. Repeated after a broken connection, as ``create_event_hub``.
        """
        await self._administer("createConsumerGroup", {"name": name}, hub=event_hub)

    async def list_consumer_groups(self, event_hub: str) -> list[str]:
        """The names of a hub's consumer groups, ``$Default`` first.

        Raises NotFoundError, UnauthorizedError.
        """
        return _names(await self._administer("listConsumerGroups", hub=event_hub))

    async def delete_consumer_group(self, event_hub: str, name: str) -> None:
        """Delete a consumer group, except ``$Default``; its receivers stay until they close.

        Raises NotFoundError, InvalidArgumentError, UnauthorizedError.
        """
        await self._administer("deleteConsumerGroup", hub=event_hub, group=name)

    async def list_consumers(self, event_hub: str) -> list[ConsumerProperties]:
        """Partitions of the groups of official processors that keep their checkpoints in the service, and of
        hosts, which report theirs.

        Needs Listen on the hub. Raises NotFoundError, UnauthorizedError.
        """
        return _as(list[ConsumerProperties], await self._administer("listConsumers", hub=event_hub))

    async def list_policies(self, event_hub: str | None = None) -> list[PolicyProperties]:
        """The policies of a hub, or (None) of the namespace, without their keys.

        Raises NotFoundError (the hub), UnauthorizedError.
        """
        found = await self._administer(_scoped("listPolicies", event_hub), hub=event_hub)
        policies = [_policy(each, event_hub) for each in _as(list[Any], found)]
        return [replace(policy, primary_key=None, secondary_key=None) for policy in policies]

    async def get_policy(self, name: str, *, event_hub: str | None = None) -> PolicyProperties:
        """One policy with its keys. Raises NotFoundError, UnauthorizedError."""
        operation = _scoped("readPolicy", event_hub)
        return _policy(await self._administer(operation, hub=event_hub, policy=name), event_hub)

    async def create_policy(
        self, name: str, claims: Iterable[str], *, event_hub: str | None = None
    ) -> PolicyProperties:
        """Create a policy of a hub, or (None) of the namespace, with random keys, valid immediately.

        claims: Send, Listen, or Manage, which includes the other two. Raises AlreadyExistsError,
        InvalidArgumentError, QuotaExceededError, NotFoundError (the hub), UnauthorizedError. Repeated after
        a broken connection, as ``create_event_hub``.
        """
        by_name = {claim.lower(): claim for claim in ("Send", "Listen", "Manage")}
        values = {"name": name, "claims": [by_name.get(claim.lower(), claim) for claim in claims]}
        operation = _scoped("createPolicy", event_hub)
        found = await self._administer(operation, values, hub=event_hub)
        return _policy(found, event_hub)

    async def delete_policy(self, name: str, *, event_hub: str | None = None) -> None:
        """Delete a policy and disconnect the clients that use it.

        Raises NotFoundError, InvalidArgumentError (the namespace's last one with Manage), UnauthorizedError.
        """
        await self._administer(_scoped("deletePolicy", event_hub), hub=event_hub, policy=name)

    async def regenerate_key(
        self, name: str, *, event_hub: str | None = None, is_secondary: bool = False
    ) -> PolicyProperties:
        """Replace a policy's primary (or secondary) key with a random one; the old key is invalid
        immediately.

        Repeated after a broken connection: the key may be replaced twice; the returned one is valid.
        Raises NotFoundError, UnauthorizedError.
        """
        values = {"is_secondary": is_secondary}
        operation = _scoped("regenerateKey", event_hub)
        found = await self._administer(operation, values, hub=event_hub, policy=name)
        return _policy(found, event_hub)

    async def list_revoked_publishers(self, event_hub: str) -> list[str]:
        """A hub's revoked publishers in order of revocation. Raises NotFoundError, UnauthorizedError."""
        return _names(await self._administer("listRevokedPublishers", hub=event_hub))

    async def revoke_publisher(self, event_hub: str, name: str) -> None:
        """Stop a publisher from sending, whatever its token, and close its links.

        Raises AlreadyExistsError (already revoked, perhaps by this call before the connection broke),
        NotFoundError (the hub), InvalidArgumentError, QuotaExceededError, UnauthorizedError.
        """
        await self._administer("revokePublisher", {"name": name}, hub=event_hub)

    async def restore_publisher(self, event_hub: str, name: str) -> None:
        """Allow a revoked publisher to send again. Raises NotFoundError, UnauthorizedError."""
        await self._administer("restorePublisher", hub=event_hub, publisher=name)

    async def get_throughput(self) -> ThroughputProperties:
        """The namespace's throughput units and throttling counts. Raises UnauthorizedError."""
        return _throughput(await self._administer("readNamespace"))

    async def set_throughput_units(self, units: int | None) -> ThroughputProperties:
        """Set the throughput units; None: no limit. Raises InvalidArgumentError, UnauthorizedError."""
        values = {"throughput_units": units}
        return _throughput(await self._administer("updateNamespace", values))

    async def get_tier(self) -> Tier:
        """The tier of the namespace. Raises UnauthorizedError."""
        return _tier(await self._administer("readNamespace"))

    async def set_tier(self, tier: Tier) -> Tier:
        """Apply the limits of another tier; existing entities do not change. Raises UnauthorizedError."""
        return _tier(await self._administer("updateNamespace", {"tier": tier.value}))

    async def get_capture(self, event_hub: str) -> CaptureSettings | None:
        """A hub's capture settings; None if it is not captured. Raises NotFoundError, UnauthorizedError."""
        found = _as(dict[str, Any], await self._administer("readEventHub", hub=event_hub))
        return _as(CaptureSettings | None, found.get("capture"))  # type: ignore[arg-type]

    async def set_capture(self, event_hub: str, settings: CaptureSettings | None) -> None:
        """Set how a hub's events are captured; None stops capturing.

        The destination is checked only when the first file is written. Raises NotFoundError,
        UnauthorizedError.
        """
        if settings is not None:
            await self._administer("setCapture", settings.to_mapping(), hub=event_hub)
        elif await self.get_capture(event_hub) is not None:
            await self._administer("deleteCapture", hub=event_hub)

    async def create_backup(self) -> BackupProperties:
        """Begin a backup of this moment on the service's machine; ``get_backup`` says how far it is.

        Everything that was acknowledged before the call is in it. Raises ServerBusyError (one is being made,
        perhaps by this call before the connection broke), LogFullError, LogFailedError, UnauthorizedError.
        """
        return _as(BackupProperties, await self._administer("createBackup"))

    async def list_backups(self) -> list[BackupProperties]:
        """The backups on the service's machine. Raises UnauthorizedError, LogFailedError."""
        return _as(list[BackupProperties], await self._administer("listBackups"))

    async def get_backup(self, name: str) -> BackupProperties:
        """One backup. Raises NotFoundError, UnauthorizedError, LogFailedError."""
        return _as(BackupProperties, await self._administer("readBackup", backup=name))

    async def delete_backup(self, name: str) -> None:
        """Delete a backup; one that is being made ends. Raises NotFoundError, UnauthorizedError,
        LogFailedError.
        """
        await self._administer("deleteBackup", backup=name)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._connector.close()

    async def _administer(
        self, operation_id: str, values: Mapping[str, object] | None = None, **parameters: str | None
    ) -> object:
        """The body of the response, as plain values."""
        found = {name: value for name, value in parameters.items() if value is not None}
        request = AdministrationRequest(operation_id, found, values or {})
        return await ask(self._connector, self._audience(found.get("hub", "")), request, _plain_answer)

    def _audience(self, event_hub: str) -> str:
        is_own = self._own_hub is not None and event_hub.lower() == self._own_hub.lower()
        return entity_audience(self._host, event_hub if is_own else "")


def _scoped(operation_id: str, event_hub: str | None) -> str:
    """The id of an operation on policies, for those of ``event_hub`` or (None) of the namespace."""
    return operation_id if event_hub is None else re.sub("(?=Polic|Key)", "EventHub", operation_id)


def _plain_answer(value: object) -> object:
    return None if value is NO_VALUE else plain_value(value)


def _as(kind: type[T], value: object) -> T:
    """The answer as a value of a type. Raises RemoteProtocolError if it is of another."""
    # Here, since msgspec takes 25 ms to import, and most programs do not administer.
    from tidegate.model.validation import validated

    try:
        return validated(value, kind, "The answer")
    except InvalidArgumentError as error:
        raise RemoteProtocolError(f"Unexpected response of $management: {error}") from error


def _names(answer: object) -> list[str]:
    return [each["name"] for each in _as(list[dict[str, str]], answer)]


def _policy(answer: object, event_hub: str | None) -> PolicyProperties:
    return _as(PolicyProperties, {**_as(dict[str, Any], answer), "event_hub": event_hub})


def _throughput(answer: object) -> ThroughputProperties:
    entries = _as(dict[str, Any], answer)
    return _as(ThroughputProperties, {**entries, "units": entries.get("throughput_units")})


def _tier(answer: object) -> Tier:
    return _as(Tier, _as(dict[str, Any], answer).get("tier"))
