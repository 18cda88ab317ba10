"""Starting with a configuration file: what it declares is there, what was there stays, conflicts are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.broker import ROOT_POLICY_NAME, Broker, Claim
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError, QuotaExceededError
from tidegate.model.limits import POLICIES_MAX, TIER_LIMITS, Tier
from tidegate.server.applying import apply_declared, set_root_key
from tidegate.server.declared import DeclaredEventHub, DeclaredNamespace, DeclaredPolicy, Switch
from tidegate.server.opening import open_broker
from tidegate.transport.clock import SystemClock

_SEND = frozenset({Claim.SEND})


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A namespace as it is at its first start."""
    broker = await open_broker(tmp_path / "data", clock=SystemClock())
    yield broker
    await broker.close()


Apply = Callable[[DeclaredNamespace], Awaitable[list[str]]]


@pytest.fixture
def apply(broker: Broker) -> Apply:
    """Applies a declaration and returns the changes that were reported."""

    async def run(declared: DeclaredNamespace) -> list[str]:
        reported: list[str] = []
        await apply_declared(broker, declared, reported.append)
        return reported

    return run


_TELEMETRY = DeclaredEventHub(
    "telemetry",
    2,
    settings={"retention_hours": 24, "retention_bytes": 10_000_000, "event_bytes_max": 65_536},
    consumer_groups=("reports",),
    policies=(DeclaredPolicy("dashboard", frozenset({Claim.LISTEN})),),
)
_NAMESPACE = DeclaredNamespace(
    (_TELEMETRY,),
    (DeclaredPolicy("ingest", _SEND, "a key of our own"),),
    tier=Tier.STANDARD,
    throughput_units=3,
)


async def test_everything_declared_is_made_once(broker: Broker, apply: Apply) -> None:
    """The first start makes it all and reports each change without a key; the next ones change nothing."""
    reported = await apply(_NAMESPACE)
    assert len(reported) == 6
    assert not any("a key of our own" in line for line in reported)
    hub = broker.event_hub("telemetry")
    description = hub.description
    assert (len(hub.partitions), description.retention_hours) == (2, 24)
    assert (description.retention_bytes, description.event_bytes_max) == (10_000_000, 65_536)
    assert description.consumer_groups == ("$Default", "reports")
    assert [policy.name for policy in hub.policies] == ["dashboard"]
    assert (broker.tier, broker.throughput.units) == (Tier.STANDARD, 3)
    ingest = broker.policy(None, "ingest")
    assert (ingest.key, ingest.claims) == ("a key of our own", _SEND)
    dashboard = hub.policies[0]
    assert (await apply(_NAMESPACE)) == []
    assert broker.event_hub("telemetry").policies == (dashboard,)


async def test_what_is_not_declared_stays(broker: Broker, apply: Apply) -> None:
    """A shorter file deletes nothing and resets nothing: what was changed at run time survives the start."""
    await apply(_NAMESPACE)
    await broker.create_event_hub("by-hand", partition_count=1)
    await broker.event_hub("telemetry").create_consumer_group("by-hand")
    await broker.update_event_hub("telemetry", retention_hours=48)
    await broker.set_throughput_units(7)
    assert (await apply(DeclaredNamespace((DeclaredEventHub("Telemetry", 2),)))) == []
    assert broker.event_hub("telemetry").description.retention_hours == 48
    assert broker.event_hub("telemetry").description.consumer_groups == ("$Default", "reports", "by-hand")
    assert {hub.name for hub in broker.list_event_hubs()} == {"telemetry", "by-hand"}
    assert (broker.throughput.units, len(broker.policies())) == (7, 2)


async def test_what_differs_is_changed(broker: Broker, apply: Apply) -> None:
    """A changed file changes the namespace at the next start, limits that it switches off included."""
    await apply(_NAMESPACE)
    telemetry = replace(
        _TELEMETRY, settings={"retention_hours": 12, "retention_bytes": None, "event_bytes_max": None}
    )
    changed = DeclaredNamespace(
        (telemetry,), (DeclaredPolicy("ingest", _SEND, "another key"),), throughput_units=Switch.OFF
    )
    assert len(await apply(changed)) == 3
    description = broker.event_hub("telemetry").description
    assert (description.retention_hours, description.retention_bytes) == (12, None)
    assert description.event_bytes_max == broker.limits.event_bytes_max
    assert (broker.policy(None, "ingest").key, broker.throughput.units) == ("another key", None)


async def test_capture_is_set_and_switched_off(broker: Broker, apply: Apply, tmp_path: Path) -> None:
    """What the file says of capture counts at each start; where it says nothing, capture stays."""
    settings = CaptureSettings(str(tmp_path / "capture"))
    hub = DeclaredEventHub("telemetry", 1, capture=settings)
    assert len(await apply(DeclaredNamespace((hub,)))) == 2
    for declared, expected, changes in (
        (hub, settings, 0),
        (replace(hub, capture=None), settings, 0),
        (replace(hub, capture=replace(settings, time_window_s=60)), replace(settings, time_window_s=60), 1),
        (replace(hub, capture=Switch.OFF), None, 1),
        (replace(hub, capture=Switch.OFF), None, 0),
    ):
        assert len(await apply(DeclaredNamespace((declared,)))) == changes
        assert broker.event_hub("telemetry").description.capture == expected


async def test_conflicts_are_told_all_at_once_and_nothing_is_touched(broker: Broker, apply: Apply) -> None:
    """Partitions that cannot be, and a policy's other claims: one error has them all, before any change."""
    await apply(_NAMESPACE)
    declared = DeclaredNamespace(
        (DeclaredEventHub("new", 1), replace(_TELEMETRY, partition_count=3)),
        (DeclaredPolicy("ingest", frozenset({Claim.LISTEN})),),
        throughput_units=9,
    )
    with pytest.raises(InvalidArgumentError) as caught:
        await apply(declared)
    assert "the event hub 'telemetry' has 2 partitions, and the Standard tier cannot add any." in str(
        caught.value
    )
    assert "'ingest' of the namespace has Send, not Listen" in str(caught.value)
    assert [hub.name for hub in broker.list_event_hubs()] == ["telemetry"]
    assert broker.throughput.units == 3


async def test_a_hubs_manager_ends_no_start(
    broker: Broker, apply: Apply, caplog: pytest.LogCaptureFixture
) -> None:
    """Else one of many tenants would decide whether the service starts for the others."""
    await apply(_NAMESPACE)
    hub = broker.event_hub("telemetry")
    await broker.delete_policy("telemetry", "dashboard")
    await broker.create_policy("telemetry", "dashboard", _SEND)
    for number in range(POLICIES_MAX - 1):
        await broker.create_policy("telemetry", f"p{number}", _SEND)
    await hub.delete_consumer_group("reports")
    for number in range(TIER_LIMITS[Tier.STANDARD].consumer_groups_max):
        with suppress(QuotaExceededError):
            await hub.create_consumer_group(f"g{number}")
    key = broker.policy("telemetry", "dashboard").key
    dashboard = DeclaredPolicy("dashboard", frozenset({Claim.LISTEN}), "a key of our own")
    asked = (dashboard, DeclaredPolicy("another", _SEND))
    declared = replace(_TELEMETRY, policies=asked, settings={"retention_hours": 48})
    assert await apply(DeclaredNamespace((declared, DeclaredEventHub("other", 1)))) == [
        "changed the settings of the event hub telemetry",
        "created the event hub other with 1 partitions",
    ]
    assert broker.policy("telemetry", "dashboard").key == key
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 3
    assert "consumer groups" in errors[0]
    assert "'dashboard' of telemetry has Send, not Listen" in errors[1]
    assert "12 policies" in errors[2]


async def test_partitions_are_added(broker: Broker, apply: Apply) -> None:
    """As many as the file says, by the tier that it sets in the same start; fewer are a conflict."""
    await apply(_NAMESPACE)
    more = replace(_NAMESPACE, event_hubs=(replace(_TELEMETRY, partition_count=6),), tier=Tier.PREMIUM)
    assert await apply(more) == ["set the tier to Premium", "added 4 partitions to the event hub telemetry"]
    assert len(broker.event_hub("telemetry").partitions) == 6
    assert await apply(more) == []
    with pytest.raises(InvalidArgumentError, match="6 partitions, which cannot be reduced to 2"):
        await apply(replace(_NAMESPACE, tier=Tier.PREMIUM))


async def test_manage_brings_the_other_claims(broker: Broker, apply: Apply) -> None:
    """A policy declared with Manage alone is no conflict at the second start."""
    declared = DeclaredNamespace(policies=(DeclaredPolicy("boss", frozenset({Claim.MANAGE})),))
    assert len(await apply(declared)) == 1
    assert (await apply(declared)) == []


async def test_the_root_key_is_what_was_asked_for(broker: Broker) -> None:
    """Also where the policy was deleted; the secondary key stays; a key that cannot be is not repeated."""
    before = broker.policy(None, ROOT_POLICY_NAME)
    await set_root_key(broker, "SAS_KEY_VALUE")
    root = broker.policy(None, ROOT_POLICY_NAME)
    assert root.keys == ("SAS_KEY_VALUE", before.secondary_key)
    await set_root_key(broker, "SAS_KEY_VALUE")
    assert broker.policy(None, ROOT_POLICY_NAME) == root
    await broker.create_policy(None, "other", Claim)
    await broker.delete_policy(None, ROOT_POLICY_NAME)
    await set_root_key(broker, "SAS_KEY_VALUE")
    assert broker.policy(None, ROOT_POLICY_NAME).claims == frozenset(Claim)
    with pytest.raises(InvalidArgumentError) as caught:
        await set_root_key(broker, "semi;colon")
    assert "semi" not in str(caught.value)
