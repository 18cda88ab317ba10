"""The official emulator's ``Config.json``, read unchanged: its event hubs and consumer groups.

    {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": [
        {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}]}],
     "LoggingConfig": {"Type": "File"}}}

Of its limits (one namespace of 1 to 10 hubs with at most 20 consumer groups each), only the single namespace
applies here. ``LoggingConfig`` is ignored: the service logs to standard error. Source: Config-schema.json of
Azure/azure-event-hubs-emulator-installer, 2026-09: its partition counts are strings, other tools' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.model.validation import validated
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace

_ROOT = "UserConfig"


class _ConsumerGroup(Struct, rename="pascal"):
    name: str


class _Entity(Struct, rename="pascal"):
    name: str
    partition_count: int | Annotated[str, Meta(pattern=r"^\s*[0-9]{1,6}\s*$")]
    consumer_groups: tuple[_ConsumerGroup, ...] | None = None

    def declared(self) -> DeclaredEventHub:
        names = [group.name for group in self.consumer_groups or ()]
        return DeclaredEventHub(
            self.name,
            int(self.partition_count),
            consumer_groups=tuple(name for name in names if name.lower() != DEFAULT_CONSUMER_GROUP.lower()),
        )


class _Namespace(Struct, rename="pascal"):
    type: str | None = None
    name: str | None = None
    entities: tuple[_Entity, ...] | None = None


class _UserConfig(Struct, rename="pascal"):
    """Fields that are unknown here may have come with a newer emulator, so they are ignored."""

    namespace_config: tuple[_Namespace, ...] = ()


def is_emulator_config(document: Mapping[str, object]) -> bool:
    """Whether a document has the form of the emulator's file."""
    return _ROOT in document


def declared_by_emulator_config(document: Mapping[str, object]) -> tuple[str | None, DeclaredNamespace]:
    """The namespace that the emulator's file describes: its name, if it has one, and its event hubs.

    Raises InvalidArgumentError naming the place of an invalid value, and for more than one namespace.
    """
    namespaces = validated(document[_ROOT], _UserConfig, _ROOT).namespace_config
    where = f"{_ROOT}.NamespaceConfig"
    if len(namespaces) != 1:
        raise InvalidArgumentError(
            f"{where} has {len(namespaces)} namespaces; a service is one namespace.",
            next_step="Run a service for each, with its own data directory and ports.",
        )
    namespace = namespaces[0]
    if namespace.type is not None and namespace.type.lower() != "eventhub":
        raise InvalidArgumentError(f"{where}[0].Type is {namespace.type!r}, not 'EventHub'.")
    if not namespace.entities:
        raise InvalidArgumentError(f"{where}[0] has no Entities.")
    return namespace.name, DeclaredNamespace(tuple(entity.declared() for entity in namespace.entities))
