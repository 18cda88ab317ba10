"""Changing a running service by commands: settings of hubs, policies, publishers, throughput units."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.support import Result, run_on_terminal, run_tidegate

from tidegate.client import EventHubAdministrator
from tidegate.model.connection_string import ConnectionString
from tidegate.testing.hub import HubService


@pytest.fixture
def hub(environment: dict[str, str]) -> str:
    """A hub with two partitions."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    made = run_tidegate("hub", "create", name, "--partitions", "2", environment=environment)
    assert made.code == 0, made.err
    return name


@pytest.fixture
def unlimited(environment: dict[str, str]) -> Iterator[None]:
    """The test run's service has no throughput units afterwards."""
    yield
    assert run_tidegate("throughput", "set", "off", environment=environment).code == 0


def _record(result: Result) -> dict[str, object]:
    assert result.code == 0, result.err
    found = result.json()
    assert isinstance(found, dict)
    return found


def test_a_hubs_settings_change_one_by_one(hub: str, environment: dict[str, str]) -> None:
    """What is given changes, the rest stays, `off` takes a limit away; a bad number changes nothing."""

    def update(*options: str) -> Result:
        return run_tidegate("hub", "update", hub, *options, "--json", environment=environment)

    before = _record(update("--retention-hours", "24"))
    assert (before["retention_hours"], before["retention_bytes"]) == (24, None)
    changed = _record(update("--retention-bytes", "5000000000", "--event-bytes-max", "65536"))
    expected = before | {"retention_bytes": 5_000_000_000, "event_bytes_max": 65_536}
    assert changed == expected
    # Larger than the new limit: refused at once, by a service that runs on.
    refused = run_tidegate("send", hub, environment=environment, input_bytes=b"x" * 70_000)
    assert refused.code == 1
    assert "exceeds the limit of 65" in refused.err
    for options, code in (
        (("--retention-hours", "100000"), 2),
        (("--retention-bytes", "many"), 2),
        (("--event-bytes-max", "1"), 2),
        ((), 2),
    ):
        assert update(*options).code == code
    assert _record(update("--retention-bytes", "off", "--event-bytes-max", "OFF")) == before
    assert (
        run_tidegate("hub", "update", "nothing", "--retention-hours", "1", environment=environment).code == 1
    )


@pytest.mark.slow
def test_partitions_are_added(hub: str, environment: dict[str, str]) -> None:
    """The number can grow, with other settings; it cannot shrink, and a tier may refuse. On a terminal, the
    question says what changes.
    """

    def update(*options: str) -> Result:
        return run_tidegate("hub", "update", hub, *options, "--json", environment=environment)

    changed = _record(update("--partitions", "4", "--retention-hours", "24"))
    assert (changed["partitions"], changed["retention_hours"]) == (4, 24)
    assert "cannot be reduced to 3" in update("--partitions", "3").err
    assert run_tidegate("tier", "set", "standard", environment=environment).code == 0
    refused = update("--partitions", "8")
    assert run_tidegate("tier", "set", "dedicated", environment=environment).code == 0
    assert refused.code == 2
    assert "the Standard tier cannot add any. Set the tier to Premium or Dedicated" in refused.err
    for typed, code in (("n\n", 1), ("y\n", 0)):
        asked = run_on_terminal(
            "hub", "update", hub, "--partitions", "6", environment=environment, typed=typed
        )
        assert "keys map to other partitions than before. [y/N]" in asked.out
        assert asked.code == code
    assert _record(update("--partitions", "6"))["partitions"] == 6


@pytest.mark.slow
def test_a_policys_life(hub: str, environment: dict[str, str]) -> None:
    """Keys are shown on request only; a hub's policy opens that hub for what it claims; a regenerated key and
    a deleted policy are worth nothing at once, and the other key stays good."""
    words = ["policy", "create", "feed", "--claim", "send", "--hub", hub]
    made = run_tidegate(*words, "--with-connection-string", "--json", environment=environment)
    record = _record(made)
    assert (record["name"], record["event_hub"], record["claims"]) == ("feed", hub, "Send")
    primary, secondary = (str(record[f"{name}_connection_string"]) for name in ("primary", "secondary"))
    parsed = ConnectionString.parse(primary)
    assert (parsed.shared_access_key_name, parsed.entity_path) == ("feed", hub)
    keys = [str(ConnectionString.parse(text).shared_access_key) for text in (primary, secondary)]

    def send(connection_string: str) -> int:
        options = ["--connection-string", connection_string]
        return run_tidegate("send", hub, *options, environment=environment, input_bytes=b"x").code

    assert [send(primary), send(secondary)] == [0, 0]
    listening = run_tidegate(
        "receive", hub, "--no-follow", "--connection-string", primary, environment=environment
    )
    assert listening.code == 3
    for command in (["show", "feed"], ["list"]):
        shown = run_tidegate("policy", *command, "--hub", hub, "--json", environment=environment)
        assert shown.code == 0
        assert not any(key in shown.out for key in keys)
    again = run_tidegate(*words, environment=environment)
    assert again.code == 1
    changed = run_tidegate("policy", "regenerate", "feed", "--hub", hub, environment=environment)
    assert changed.code == 0
    assert "SharedAccessKey" not in changed.out
    assert [send(primary), send(secondary)] == [3, 0]
    for typed, code in (("n\n", 1), ("y\n", 0)):
        words = ["policy", "delete", "feed", "--hub", hub]
        asked = run_on_terminal(*words, environment=environment, typed=typed)
        assert f"Delete the policy feed of {hub}?" in asked.out
        assert asked.code == code
    assert send(secondary) == 3
    assert run_tidegate("policy", "show", "feed", "--hub", hub, environment=environment).code == 1
    wrong = run_tidegate("policy", "create", "p", "--claim", "Write", environment=environment)
    assert wrong.code == 2
    assert "Write" in wrong.err


@pytest.mark.slow
def test_only_who_may_manage_administers(hub: str, environment: dict[str, str]) -> None:
    """A policy without Manage sees no policies and changes nothing; the namespace's last Manage stays."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    words = ["policy", "create", name, "--claim", "Send", "--claim", "Listen", "--with-connection-string"]
    record = _record(run_tidegate(*words, "--json", environment=environment))
    weak = ["--connection-string", str(record["primary_connection_string"])]
    for command in (
        ["policy", "list"],
        ["policy", "show", name],
        ["policy", "regenerate", "RootManageSharedAccessKey"],
        ["publisher", "revoke", hub, "p"],
        ["throughput", "set", "1"],
        ["hub", "update", hub, "--retention-hours", "1"],
    ):
        refused = run_tidegate(*command, *weak, environment=environment)
        assert refused.code == 3, command
        assert "Manage" in refused.err
    # It may read the hub: shown without a remark, because it may not know the units.
    assert run_tidegate("hub", "show", hub, *weak, environment=environment).code == 0
    assert run_tidegate("policy", "delete", name, environment=environment).code == 0
    root = run_tidegate("policy", "delete", "RootManageSharedAccessKey", environment=environment)
    assert root.code == 2
    assert "last policy with Manage" in root.err


def test_a_publisher_is_revoked_and_restored(hub: str, environment: dict[str, str]) -> None:
    """The list holds who is revoked; doing either twice is told."""

    def run(*words: str) -> Result:
        return run_tidegate("publisher", *words, environment=environment)

    assert run("revoke", hub, "device-1").code == 0
    assert run("revoke", hub, "device-2").code == 0
    assert run("revoke", hub, "Device-1").code == 1
    assert run("restore", hub, "device-2").code == 0
    assert run("restore", hub, "device-2").code == 1
    assert run("list", hub, "--json").json() == [{"event_hub": hub, "revoked_publisher": "device-1"}]


@pytest.mark.slow
@pytest.mark.usefixtures("unlimited")
def test_units_are_set_shown_and_compared_with_partitions(hub: str, environment: dict[str, str]) -> None:
    """Units count at once and survive; a hub with another number of partitions gets a remark, on standard
    error, so that what programs read stays the same."""

    def show() -> Result:
        return run_tidegate("hub", "show", hub, "--json", environment=environment)

    quiet = show()
    assert quiet.err == ""
    changed = _record(run_tidegate("throughput", "set", "4", "--json", environment=environment))
    assert changed["units"] == 4
    assert _record(run_tidegate("throughput", "show", "--json", environment=environment)) == changed
    warned = show()
    assert "2 partitions" in warned.err
    assert "4 throughput units" in warned.err
    assert warned.out == quiet.out
    assert run_tidegate("throughput", "set", "2", environment=environment).code == 0
    assert show().err == ""
    for wrong in ("0", "1000000", "-1", "some"):
        assert run_tidegate("throughput", "set", wrong, environment=environment).code == 2
    off = _record(run_tidegate("throughput", "set", "off", "--json", environment=environment))
    assert off["units"] is None


@pytest.mark.slow
def test_a_manager_of_one_hub(hub: str, environment: dict[str, str]) -> None:
    """A hub's policy with Manage administers that hub, and neither another one nor the namespace."""
    words = ["policy", "create", "owner", "--claim", "Manage", "--hub", hub, "--with-connection-string"]
    record = _record(run_tidegate(*words, "--json", environment=environment))
    own = ["--connection-string", str(record["primary_connection_string"])]
    other = f"cli-{uuid.uuid4().hex[:8]}"
    assert run_tidegate("hub", "create", other, environment=environment).code == 0
    for command, code in (
        (["hub", "update", hub, "--retention-hours", "5"], 0),
        (["group", "create", hub, "mine"], 0),
        (["policy", "list", "--hub", hub.upper()], 0),
        (["publisher", "revoke", hub, "device"], 0),
        (["hub", "update", other, "--retention-hours", "5"], 3),
        (["policy", "list"], 3),
        (["hub", "list"], 3),
        (["throughput", "show"], 3),
        (["capture", "set", hub, "/srv/files"], 3),
        (["capture", "show", hub], 0),
    ):
        found = run_tidegate(*command, *own, environment=environment)
        assert found.code == code, (command, found.err)


def test_the_tier_is_shown_and_set(environment: dict[str, str]) -> None:
    """With its limits, which count for the next hub; letter case does not matter; a wrong name is refused."""

    def run(*words: str) -> Result:
        return run_tidegate("tier", *words, "--json", environment=environment)

    before = _record(run("show"))
    assert (before["tier"], before["partitions_max"]) == ("Dedicated", 1024)
    try:
        assert _record(run("set", "standard")) == _record(run("show"))
        refused = run_tidegate("hub", "create", "wide", "--partitions", "33", environment=environment)
        assert refused.code == 2
        assert "32" in refused.err
    finally:
        assert _record(run("set", "Dedicated")) == before
    assert run("set", "Gold").code == 2


def test_capture_is_set_shown_and_switched_off(hub: str, environment: dict[str, str], tmp_path: Path) -> None:
    """All settings at once, as they are then shown; what cannot be meant is refused before it is sent."""

    def run(*words: str) -> Result:
        return run_tidegate("capture", *words, "--json", environment=environment)

    assert _record(run("show", hub))["destination"] is None
    directory = str(tmp_path / "capture")
    made = _record(run("set", hub, directory, "--time-window-s", "60", "--skip-empty", "--paused"))
    assert (made["destination"], made["time_window_s"], made["is_empty_skipped"]) == (directory, 60, True)
    assert made["is_enabled"] is False
    assert _record(run("show", hub)) == made
    replaced = _record(run("set", hub, directory))
    assert (replaced["time_window_s"], replaced["is_enabled"]) == (300, True)
    for words in (["set", hub, "relative"], ["set", hub, directory, "--name-format", "{EventHub}"]):
        assert run(*words).code == 2
    assert run_tidegate("capture", "off", hub, environment=environment).code == 0
    assert _record(run("show", hub))["destination"] is None
    assert run("set", "nothing", directory).code == 1


def test_changes_survive_a_restart() -> None:
    """What the administrator was told is done is there after the service has come back."""
    with HubService() as service:

        async def change() -> None:
            string = service.connection_string
            async with EventHubAdministrator.from_connection_string(string) as administrator:
                await administrator.create_event_hub("kept", partition_count=1, event_bytes_max=2048)
                await administrator.update_event_hub("kept", retention_hours=3, retention_bytes=10_000)
                await administrator.create_policy("reader", ["Listen"], event_hub="kept")
                await administrator.revoke_publisher("kept", "device")
                await administrator.set_throughput_units(5)

        async def look() -> tuple[object, ...]:
            string = service.connection_string
            async with EventHubAdministrator.from_connection_string(string) as administrator:
                hub = await administrator.get_event_hub("kept")
                policies = await administrator.list_policies("kept")
                return (
                    (hub.retention_hours, hub.retention_bytes, hub.event_bytes_max),
                    [(policy.name, policy.claims, policy.primary_key) for policy in policies],
                    await administrator.list_revoked_publishers("kept"),
                    (await administrator.get_throughput()).units,
                )

        asyncio.run(change())
        service.restart()
        found = asyncio.run(look())
    assert found == ((3, 10_000, 2048), [("reader", ("Listen",), None)], ["device"], 5)
