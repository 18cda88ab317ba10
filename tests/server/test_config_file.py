"""What a configuration file may say about the namespace: both forms, both syntaxes, each mistake told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.broker import Claim
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import Tier
from tidegate.server.config_file import load_settings
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace, DeclaredPolicy, Switch
from tidegate.server.settings import AMQP_PORT_DEFAULT

_TOML = """
amqp_port = 0
tier = "Standard"
throughput_units = 4

[[policies]]
name = "ingest"
claims = ["Send"]
key = "a key of our own"

[[event_hubs]]
name = "telemetry"
partition_count = 4
retention_hours = 24
retention_bytes = "off"
event_bytes_max = 65536
consumer_groups = ["reports", "alerts"]

[event_hubs.capture]
destination = "/var/lib/capture"
time_window_s = 60

[[event_hubs.policies]]
name = "dashboard"
claims = ["listen"]

[[event_hubs]]
name = "audit"
partition_count = 1
capture = "off"
"""

_DECLARED = DeclaredNamespace(
    event_hubs=(
        DeclaredEventHub(
            "telemetry",
            4,
            settings={"retention_hours": 24, "retention_bytes": None, "event_bytes_max": 65536},
            consumer_groups=("reports", "alerts"),
            policies=(DeclaredPolicy("dashboard", frozenset({Claim.LISTEN})),),
            capture=CaptureSettings("/var/lib/capture", time_window_s=60),
        ),
        DeclaredEventHub("audit", 1, capture=Switch.OFF),
    ),
    policies=(DeclaredPolicy("ingest", frozenset({Claim.SEND}), "a key of our own"),),
    tier=Tier.STANDARD,
    throughput_units=4,
)


def _write(directory: Path, text: str, name: str = "configuration") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    """The same names in either syntax, told apart by the text and not by the file's name."""
    import tomllib

    for text in (_TOML, json.dumps(tomllib.loads(_TOML))):
        settings = load_settings(_write(tmp_path, text), data_dir=tmp_path)
        assert settings.declared == _DECLARED
        assert (settings.amqp_port, settings.http_port) == (0, None)
    assert "a key of our own" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[event_hubs]]\nname = 'a'", "event_hubs[0].partition_count is missing"),
        (
            "[[event_hubs]]\nname = 'a'\npartition_count = '4'",
            "event_hubs[0].partition_count must be an integer, got a string",
        ),
        ("[[event_hubs]]\nname = 'a'\npartition_count = true", "must be an integer, got true or false"),
        (
            "[[event_hubs]]\nname = 'a'\npartition_count = 1\npartitions = 2",
            "event_hubs[0]: unknown field 'partitions'",
        ),
        ("[event_hubs]\nname = 'a'", "event_hubs must be a list, got an object"),
        ("event_hubs = ['a']", "event_hubs[0] must be an object, got a string"),
        (
            "[[event_hubs]]\nname = 'a'\npartition_count = 1\nconsumer_groups = [1]",
            "event_hubs[0].consumer_groups[0] must be a string",
        ),
        (
            "[[event_hubs]]\nname = 'a'\npartition_count = 1\n\n"
            "[[event_hubs]]\nname = 'A'\npartition_count = 1",
            "The event hub 'A' is declared twice",
        ),
        (
            "[[event_hubs]]\nname = 'a'\npartition_count = 1\ncapture = 'on'",
            "capture: invalid value 'on'. Known: an object, off.",
        ),
        (
            "[[event_hubs]]\nname = 'a'\npartition_count = 1\ncapture = {destination = 'relative'}",
            "event_hubs[0].capture: The capture destination",
        ),
        (
            "[[policies]]\nname = 'p'\nclaims = ['Write']",
            "policies[0].claims[0]: invalid value 'Write'. Known: Send, Listen, Manage.",
        ),
        ("throughput_units = 'lots'", "throughput_units: invalid value 'lots'. Known: an integer, off."),
        ("tier = 'Gold'", "tier: invalid value 'Gold'. Known: Basic, Standard, Premium, Dedicated."),
        ("declared = 1", "Unknown field 'declared'"),
        ("root_key = 5", "root_key must be a string or null, got an integer"),
        ('{"amqp_port": 0', "not JSON"),
        ('{"UserConfig": {}}', "has 0 namespaces"),
    ],
)
def test_a_mistake_names_file_and_place(tmp_path: Path, text: str, told: str) -> None:
    """Nothing is guessed: a mistake is one error that says where it is, before anything starts."""
    path = _write(tmp_path, text)
    with pytest.raises(InvalidArgumentError) as caught:
        load_settings(path, data_dir=tmp_path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_key_in_the_wrong_place_is_not_repeated(tmp_path: Path) -> None:
    """An error may be logged: it names where a key stands, and not the key."""
    for text in ("[[policies]]\nname = 'p'\nclaims = 'top secret'", "root_key = ['top secret']"):
        with pytest.raises(InvalidArgumentError) as caught:
            load_settings(_write(tmp_path, text), data_dir=tmp_path)
        assert "top secret" not in str(caught.value)


# --- the official emulator's file --------------------------------------------------------------------------


def _emulator_config(entities: list[object], **namespace: object) -> str:
    described = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": entities, **namespace}
    return json.dumps(
        {"UserConfig": {"NamespaceConfig": [described], "LoggingConfig": {"Type": "File,Console"}}}, indent=4
    )


def test_the_emulators_file_is_taken_as_it_is(tmp_path: Path) -> None:
    """Hubs and groups as its schema has them, beyond its limits, counts as text or number, with the mark that
    Windows' editors put first; ports are the ones that emulator users have."""
    entities: list[object] = [
        {"Name": f"eh{number}", "PartitionCount": "32", "ConsumerGroups": [{"Name": "cg1"}]}
        for number in range(11)
    ]
    entities.append({"Name": "plain", "PartitionCount": 2})
    entities.append({"Name": "default", "PartitionCount": "1", "ConsumerGroups": [{"Name": "$default"}]})
    path = _write(tmp_path, "\ufeff" + _emulator_config(entities), "Config.json")
    settings = load_settings(path, data_dir=tmp_path / "data")
    hubs = settings.declared.event_hubs
    assert [hub.name for hub in hubs] == [*(f"eh{number}" for number in range(11)), "plain", "default"]
    assert hubs[0] == DeclaredEventHub("eh0", 32, consumer_groups=("cg1",))
    assert hubs[-2:] == (DeclaredEventHub("plain", 2), DeclaredEventHub("default", 1))
    assert (settings.amqp_port, settings.http_port) == (AMQP_PORT_DEFAULT, 5300)
    assert settings.data_dir == tmp_path / "data"
    assert settings.capture_namespace == "emulatorNs1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_emulator_config([]), "UserConfig.NamespaceConfig[0] has no Entities"),
        (_emulator_config([{"Name": "a"}]), "Entities[0].PartitionCount is missing"),
        (
            _emulator_config([{"Name": "a", "PartitionCount": "9" * 5000}]),
            "Entities[0].PartitionCount must be",
        ),
        (_emulator_config([{"PartitionCount": "2"}]), "Entities[0].Name is missing"),
        (_emulator_config([{"Name": "a", "PartitionCount": 1}], Type="ServiceBus"), "not 'EventHub'"),
        (
            _emulator_config([{"Name": "a", "PartitionCount": 1, "ConsumerGroups": [{}]}]),
            "ConsumerGroups[0].Name is missing",
        ),
        ('{"UserConfig": {"NamespaceConfig": [{}, {}]}}', "2 namespaces; a service is one namespace"),
        ('{"UserConfig": []}', "UserConfig must be an object, got a list"),
    ],
)
def test_a_mistake_in_the_emulators_file_names_its_place(tmp_path: Path, text: str, told: str) -> None:
    """In the file's own words; more than one namespace asks for more than one service."""
    with pytest.raises(InvalidArgumentError) as caught:
        load_settings(_write(tmp_path, text), data_dir=tmp_path)
    assert told in str(caught.value)
