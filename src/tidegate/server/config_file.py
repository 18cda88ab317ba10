"""A configuration file: TOML or JSON, in Tidegate's own form or that of the official emulator.

Own form: the settings by their field names, and what the namespace holds:

    amqp_port = 5672
    throughput_units = 4

    [[policies]]
    name = "ingest"
    claims = ["Send"]

    [[event_hubs]]
    name = "telemetry"
    partition_count = 4
    retention_hours = 24
    consumer_groups = ["reports"]

Every mistake is an InvalidArgumentError that names the file and the place in it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tidegate.broker import Claim
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSetting, hub_changes_in
from tidegate.model.limits import Tier
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace, DeclaredPolicy, Switch
from tidegate.server.emulator_config import declared_by_emulator_config, is_emulator_config
from tidegate.server.plain_table import PlainTable
from tidegate.server.settings import PATH_FIELDS, ServerSettings, settings_from_mapping

_NAMESPACE_NAMES = ("event_hubs", "policies", "tier", "throughput_units")


def load_settings(path: Path, *, data_dir: Path | None = None) -> ServerSettings:
    """The settings in a file, which is JSON where it begins with a brace, and TOML otherwise.

    data_dir: used where the file has none (the emulator's never has); relative paths in the file start at the
    file's own directory.

    Raises InvalidArgumentError naming the file when it cannot be read, parsed or meant.
    """
    document = _read(path)
    try:
        if is_emulator_config(document):
            name, declared = declared_by_emulator_config(document)
            values = {} if name is None else {"capture_namespace": name}
            return replace(settings_from_mapping(values, data_dir=data_dir), declared=declared)
        plain = {name: value for name, value in document.items() if name not in _NAMESPACE_NAMES}
        for name in PATH_FIELDS:
            if isinstance(value := plain.get(name), str):
                plain[name] = str(path.parent / value)
        settings = settings_from_mapping(plain, data_dir=data_dir)
        return replace(settings, declared=_declared(document))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"In the configuration {path}: {error.message}", next_step=error.next_step
        ) from error


def is_emulator_file(path: Path) -> bool:
    """Whether a file has the official emulator's form. Raises InvalidArgumentError as ``load_settings``."""
    return is_emulator_config(_read(path))


def _read(path: Path) -> Mapping[str, object]:
    try:
        # Editors on Windows put a byte order mark before UTF-8.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgumentError(f"Cannot read the configuration {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"The configuration {path} is not UTF-8 text.") from error
    kind, parse = ("JSON", json.loads) if text.lstrip().startswith("{") else ("TOML", tomllib.loads)
    try:
        document = parse(text)
    except (ValueError, RecursionError) as error:
        # The parsers' messages name a place and quote at most one character.
        raise InvalidArgumentError(f"The configuration {path} is not {kind}: {error}.") from error
    assert isinstance(document, dict)  # JSON that begins with a brace is an object, TOML always a table
    return document


def _declared(document: Mapping[str, object]) -> DeclaredNamespace:
    values = {name: document[name] for name in _NAMESPACE_NAMES if name in document}
    with PlainTable(values, "the file") as table:
        return DeclaredNamespace(
            event_hubs=tuple(
                _event_hub(item, f"event_hubs[{index}]")
                for index, item in enumerate(table.items("event_hubs"))
            ),
            policies=_policies(table, ""),
            tier=_tier(table.optional_text("tier")),
            throughput_units=table.integer_or_off("throughput_units"),
        )


def _event_hub(value: object, where: str) -> DeclaredEventHub:
    with PlainTable(value, where) as table:
        return DeclaredEventHub(
            name=table.text("name"),
            partition_count=table.integer("partition_count"),
            settings=_settings(table),
            consumer_groups=table.texts("consumer_groups"),
            policies=_policies(table, f"{where}."),
            capture=_capture(table),
        )


def _settings(table: PlainTable) -> HubChanges:
    found = {setting.name: _setting(table, setting) for setting in HUB_SETTINGS}
    return hub_changes_in(
        {name: None if value is Switch.OFF else value for name, value in found.items() if value is not None}
    )


def _setting(table: PlainTable, setting: HubSetting) -> int | str | Switch | None:
    if setting.kind is str:
        return table.optional_text(setting.name)
    return table.integer_or_off(setting.name) if setting.has_off else table.optional_integer(setting.name)


def _policies(table: PlainTable, prefix: str) -> tuple[DeclaredPolicy, ...]:
    return tuple(
        _policy(item, f"{prefix}policies[{index}]") for index, item in enumerate(table.items("policies"))
    )


def _policy(value: object, where: str) -> DeclaredPolicy:
    with PlainTable(value, where) as table:
        name, key, claims = table.text("name"), table.optional_text("key"), table.texts("claims")
        by_name = {claim.value.lower(): claim for claim in Claim}
        for claim in claims:
            if claim.lower() not in by_name:
                raise InvalidArgumentError(
                    f"{table.place('claims')} has {claim!r}.", next_step="Known: Send, Listen, Manage."
                )
        return DeclaredPolicy(name, frozenset(by_name[claim.lower()] for claim in claims), key)


def _tier(name: str | None) -> Tier | None:
    if name is None:
        return None
    by_name = {tier.value.lower(): tier for tier in Tier}
    if name.lower() not in by_name:
        raise InvalidArgumentError(
            f"The tier is {name!r}.", next_step=f"Known: {', '.join(tier.value for tier in Tier)}."
        )
    return by_name[name.lower()]


def _capture(table: PlainTable) -> CaptureSettings | Switch | None:
    value = table.optional("capture")
    if value is None:
        return None
    if value == Switch.OFF.value:
        return Switch.OFF
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f'{table.place("capture")} takes a table, or "off".')
    try:
        return CaptureSettings.from_mapping(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{table.place('capture')}: {error.message}", next_step=error.next_step
        ) from error
