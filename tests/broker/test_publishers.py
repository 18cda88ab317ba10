"""Publishers: revoked and restored by name, and tokens that are good for one of them only."""

from __future__ import annotations

import pytest
from tests.storage.engines import MemoryEngine
from tests.support.calls import calls_of
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Claim, SharedAccessPolicy
from tidegate.broker.catalog import Catalog, EventHubRecord
from tidegate.model.audience import NAMESPACE, entity_path
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PublisherRevokedError,
    QuotaExceededError,
    UnauthorizedError,
)
from tidegate.model.limits import REVOKED_PUBLISHERS_BYTES_MAX
from tidegate.model.sas import make_sas_token
from tidegate.wire.addresses import NodeAddress
from tidegate.wire.conditions import condition_for, error_from_condition, http_status_for


async def test_a_revoked_publisher_may_not_send_until_it_is_restored(broker: Broker) -> None:
    """On its hub, whatever the letter case, because tokens do not tell the case either; others may."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    other = await broker.create_event_hub("other", partition_count=1)
    await hub.revoke_publisher("Device-1")
    assert hub.revoked_publishers == ("Device-1",)
    for name in ("Device-1", "dEVICE-1"):
        with pytest.raises(PublisherRevokedError, match="revoked"):
            hub.check_publisher(name)
    hub.check_publisher("device-2")
    other.check_publisher("Device-1")
    with pytest.raises(AlreadyExistsError):
        await hub.revoke_publisher("DEVICE-1")
    await hub.restore_publisher("device-1")
    hub.check_publisher("Device-1")
    with pytest.raises(NotFoundError):
        await hub.restore_publisher("Device-1")


@pytest.mark.slow
async def test_names_of_revoked_publishers_do_not_fill_the_catalog(broker: Broker) -> None:
    """Each change of a hub writes its record: long names count for more."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    letters = "\U00010400" * 123  # four bytes each in UTF-8
    longest = REVOKED_PUBLISHERS_BYTES_MAX // (4 * len(letters) + 5)
    for number in range(longest):
        await hub.revoke_publisher(f"{letters}{number:05}")
    with pytest.raises(QuotaExceededError, match="maximum for names of that length"):
        await hub.revoke_publisher(f"{letters}{longest:05}")
    await hub.restore_publisher(f"{letters}00000")
    await hub.revoke_publisher(f"{letters}{longest:05}")


async def test_a_change_of_a_hub_with_many_revoked_publishers_is_short() -> None:
    """Protects the event loop: to copy 10,000 names one by one took 20 ms at each change of the hub."""
    catalog = await Catalog.open(MemoryEngine().control, SetClock())
    policy = SharedAccessPolicy.generate("p", Claim)
    record = EventHubRecord(
        hub_id="1",
        name="hub",
        partition_count=1,
        retention_hours=1,
        created_at_ms=0,
        policies=(policy,),
        revoked_publishers=tuple(map(str, range(5_000))),
        capture=CaptureSettings("/captured"),
    )
    change = catalog.put_event_hub(record)

    def run() -> None:
        with pytest.raises(StopIteration):
            change.send(None)

    assert calls_of(run) < 1_000
    again = await Catalog.open(catalog._control, SetClock())
    assert again.event_hubs == {"1": record}


def test_a_revocation_looks_to_clients_as_event_hubs_tells_it() -> None:
    """com.microsoft:publisher-revoked and 401, both ways; whoever handles UnauthorizedError handles it."""
    error = PublisherRevokedError("gone")
    assert (condition_for(error), http_status_for(error)) == ("com.microsoft:publisher-revoked", 401)
    assert isinstance(error_from_condition("com.microsoft:publisher-revoked", "gone"), PublisherRevokedError)
    assert isinstance(error, UnauthorizedError)


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a%2Fb", "a?b", "a#b", " a", "a\n", "x" * 129])
@pytest.mark.slow
async def test_names_that_no_publisher_can_have(broker: Broker, name: str) -> None:
    """What could be two parts of an address, or two spellings of one publisher, is refused everywhere."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    with pytest.raises(InvalidArgumentError):
        await hub.revoke_publisher(name)
    with pytest.raises(InvalidArgumentError):
        hub.check_publisher(name)


@pytest.mark.parametrize("name", ["device-1", "Device 1", "urn:dev:1", "漢字", "a+b", "x" * 128])
@pytest.mark.parametrize("is_encoded", [False, True])
@pytest.mark.slow
async def test_a_publishers_token_is_good_for_it_alone(
    broker: Broker, clock: SetClock, name: str, is_encoded: bool
) -> None:
    """Whether its maker percent-encoded the name or not: its own address, and no other node of the hub."""
    await broker.create_event_hub("hub", partition_count=1)
    policy = await broker.create_policy("hub", "send", [Claim.SEND])
    address = NodeAddress.parse(f"hub/Publishers/{name}").format()
    audience = f"sb://h/{address}" if is_encoded else f"sb://h/hub/publishers/{name}"
    token = make_sas_token(audience=audience, key_name="send", key=policy.key, expiry=4_000_000_000)
    grant = broker.authorize(token, audience)
    own = (NodeAddress.parse(address).entity, entity_path("HUB", "publishers", name, "messages"))
    assert [grant.permits(path, Claim.SEND, now_utc=clock.now) for path in own] == [True] * 2
    others = (
        entity_path("hub"),
        entity_path("hub", "Partitions", "0"),
        entity_path("hub", "Publishers", "device-2"),
        entity_path("hub", "publishers", f"{name}2"),
        entity_path("other", "publishers", name),
        entity_path("hub", "publishers"),
        NAMESPACE,
    )
    assert [grant.permits(path, Claim.SEND, now_utc=clock.now) for path in others] == [False] * 7
    for wanted in ("sb://h/hub", "sb://h/hub/publishers/device-2"):
        with pytest.raises(UnauthorizedError, match="InvalidAudience"):
            broker.authorize(token, wanted)


async def test_a_name_with_an_encoded_slash_is_no_way_to_another_publisher(
    broker: Broker, clock: SetClock
) -> None:
    """The token of ``a`` covers ``a/…`` beneath it, and that is never the publisher ``a/b``."""
    await broker.create_event_hub("hub", partition_count=1)
    policy = await broker.create_policy("hub", "send", [Claim.SEND])
    audience = "sb://h/hub/publishers/a"
    token = make_sas_token(audience=audience, key_name="send", key=policy.key, expiry=4_000_000_000)
    grant = broker.authorize(token, audience)
    for path in (entity_path("hub", "publishers", "a/b"), NodeAddress.parse("hub/Publishers/a%2Fb").entity):
        assert not grant.permits(path, Claim.SEND, now_utc=clock.now)
