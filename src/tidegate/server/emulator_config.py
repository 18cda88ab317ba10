"""The official emulator's ``Config.json``, taken as it is: its event hubs and consumer groups.

    {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": [
        {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}]}],
     "LoggingConfig": {"Type": "File"}}}

Its limits (one namespace of 1 to 10 hubs with at most 20 consumer groups each) are not ours, but for the one
namespace. ``LoggingConfig`` is read past: the service logs to standard error, and its owner decides where
that goes. Source: Config-schema.json of Azure/azure-event-hubs-emulator-installer, 2026-09; partition counts
stand there as texts, and are numbers in files that other tools write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.broker import EMULATOR_KEY
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace
from tidegate.server.plain_table import PlainTable

_ROOT = "UserConfig"
_NUMBER = re.compile("[0-9]{1,6}")


def is_emulator_config(document: Mapping[str, object]) -> bool:
    """Whether a document has the shape of the emulator's file."""
    return _ROOT in document


def declared_by_emulator_config(document: Mapping[str, object]) -> tuple[str | None, DeclaredNamespace]:
    """The namespace that the emulator's file describes: its name, where it has one, and what is in it.

    Raises InvalidArgumentError naming the place for what cannot be meant, and for more than one namespace.
    """
    # Not used with ``with``: names that are unknown here may have come with a newer emulator.
    user = PlainTable(document[_ROOT], _ROOT)
    namespaces = user.items("NamespaceConfig")
    if len(namespaces) != 1:
        raise InvalidArgumentError(
            f"{user.place('NamespaceConfig')} has {len(namespaces)} namespaces; a service is one namespace.",
            next_step="Run a service for each, with a data directory and ports of its own.",
        )
    namespace = PlainTable(namespaces[0], user.place("NamespaceConfig", 0))
    kind = namespace.optional_text("Type")
    if kind is not None and kind.lower() != "eventhub":
        raise InvalidArgumentError(f"{namespace.place('Type')} is {kind!r}, not 'EventHub'.")
    hubs = [
        _event_hub(PlainTable(entity, namespace.place("Entities", index)))
        for index, entity in enumerate(namespace.items("Entities"))
    ]
    if not hubs:
        raise InvalidArgumentError(f"{namespace.where} has no Entities.")
    return namespace.optional_text("Name"), DeclaredNamespace(tuple(hubs))


def _event_hub(entity: PlainTable) -> DeclaredEventHub:
    groups = [
        PlainTable(group, entity.place("ConsumerGroups", index)).text("Name")
        for index, group in enumerate(entity.items("ConsumerGroups"))
    ]
    return DeclaredEventHub(
        entity.text("Name"),
        _partition_count(entity),
        consumer_groups=tuple(name for name in groups if name.lower() != DEFAULT_CONSUMER_GROUP.lower()),
    )


def _partition_count(entity: PlainTable) -> int:
    value = entity.optional("PartitionCount")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()) is not None:
        return int(value)
    raise InvalidArgumentError(f"{entity.place('PartitionCount')} is no number of partitions.")


__all__ = ["EMULATOR_KEY", "declared_by_emulator_config", "is_emulator_config"]
