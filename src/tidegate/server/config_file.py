"""A configuration file: TOML or JSON, in Tidegate's own form or that of the official emulator.

Tidegate's form has the settings by field name, and the namespace's entities:

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

Every mistake is an InvalidArgumentError that names the file and the position in it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, defstruct
from msgspec.structs import asdict
from msgspec.structs import replace as replace_in

from tidegate.broker.entra.issuers import TokenIssuer
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_settings import HUB_SETTINGS, hub_changes_in
from tidegate.model.limits import Tier
from tidegate.model.validation import validated
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace, DeclaredPolicy, Switch
from tidegate.server.emulator_config import declared_by_emulator_config, is_emulator_config
from tidegate.server.settings import PATH_NAMES, ServerSettings, settings_from_mapping


def load_settings(path: Path, *, data_dir: Path | None = None, is_any_port: bool = False) -> ServerSettings:
    """The settings in a file: JSON if it begins with a brace, otherwise TOML.

    data_dir, is_any_port: as for ``settings_from_mapping``, if the file has no directory or port (the
    emulator's never has one). Relative paths in the file are relative to its directory.

    Raises InvalidArgumentError naming the file if it cannot be read or parsed, or is invalid.
    """
    document = _read(path)
    try:
        if is_emulator_config(document):
            name, declared = declared_by_emulator_config(document)
            values = {} if name is None else {"capture_namespace": name}
            return replace(
                settings_from_mapping(values, data_dir=data_dir, is_any_port=is_any_port), declared=declared
            )
        plain = {name: value for name, value in document.items() if name not in _NAMESPACE_NAMES}
        for name in PATH_NAMES:
            if isinstance(value := plain.get(name), str):
                plain[name] = str(path.parent / value)
        settings = settings_from_mapping(plain, data_dir=data_dir, is_any_port=is_any_port)
        return replace(settings, declared=_declared(document, path.parent))
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
        # The parsers' messages name a position and quote at most one character.
        raise InvalidArgumentError(f"The configuration {path} is not {kind}: {error}.") from error
    assert isinstance(document, dict)  # JSON that begins with a brace is an object; TOML is always a table
    return document


class _EventHub(Struct, forbid_unknown_fields=True):
    """An event hub, without its settings."""

    name: str
    partition_count: int
    consumer_groups: tuple[str, ...] = ()
    policies: tuple[DeclaredPolicy, ...] = ()
    capture: dict[str, Any] | Switch | None = None


class _Namespace(Struct, forbid_unknown_fields=True):
    event_hubs: tuple[dict[str, Any], ...] = ()
    policies: tuple[DeclaredPolicy, ...] = ()
    tier: Tier | None = None
    throughput_units: int | Switch | None = None
    token_issuers: tuple[TokenIssuer, ...] = ()


_SETTINGS: Final = defstruct(
    "_Settings",
    [(each.name, each.kind | (Switch if each.has_off else None) | None, None) for each in HUB_SETTINGS],
)
_NAMESPACE_NAMES: Final = _Namespace.__struct_fields__


def _declared(document: Mapping[str, object], directory: Path) -> DeclaredNamespace:
    found = validated({name: document[name] for name in _NAMESPACE_NAMES if name in document}, _Namespace)
    return DeclaredNamespace(
        event_hubs=tuple(
            _event_hub(hub, f"event_hubs[{index}]") for index, hub in enumerate(found.event_hubs)
        ),
        policies=found.policies,
        tier=found.tier,
        throughput_units=found.throughput_units,
        token_issuers=tuple(
            each if each.keys is None else replace_in(each, keys=directory / each.keys)
            for each in found.token_issuers
        ),
    )


def _event_hub(values: dict[str, object], where: str) -> DeclaredEventHub:
    settings = {setting.name: values.pop(setting.name, None) for setting in HUB_SETTINGS}
    found = validated(values, _EventHub, where)
    given = {
        name: None if value is Switch.OFF else value
        for name, value in asdict(validated(settings, _SETTINGS, where)).items()
        if value is not None
    }
    return DeclaredEventHub(
        name=found.name,
        partition_count=found.partition_count,
        settings=hub_changes_in(given),
        consumer_groups=found.consumer_groups,
        policies=found.policies,
        capture=_capture(found.capture, f"{where}.capture"),
    )


def _capture(value: dict[str, object] | Switch | None, where: str) -> CaptureSettings | Switch | None:
    if not isinstance(value, dict):
        return value
    try:
        return CaptureSettings.from_mapping(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error.message}", next_step=error.next_step) from error
