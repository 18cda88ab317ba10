"""Settings of event hubs and of the namespace: changed at run time, kept, and within the tier's limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.catalogs import edit_value
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Claim, Partition
from tidegate.cli.service.check_catalog import check_catalog
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    LogCorruptError,
    NotFoundError,
    QuotaExceededError,
)
from tidegate.model.limits import EVENT_BYTES_MAX, TIER_LIMITS, Tier
from tidegate.model.position import EventPosition
from tidegate.server.opening import open_broker
from tidegate.storage.control.log import FileControlLog
from tidegate.storage.files import OsFiles
from tidegate.storage.options import LogOptions


async def _append(partition: Partition, events: int, size: int = 100) -> None:
    for _ in range(events):
        await partition.append(b"x" * size, [size])


async def test_an_update_changes_what_it_names(broker: Broker) -> None:
    """The rest stays; None means the default again, or no limit by size."""
    hub = await broker.create_event_hub(
        "hub", partition_count=2, retention_hours=5, retention_bytes=9, event_bytes_max=2048
    )
    await broker.update_event_hub("HUB", retention_hours=7)
    description = hub.description
    assert (description.retention_hours, description.retention_bytes) == (7, 9)
    assert description.event_bytes_max == 2048
    await broker.update_event_hub("hub", retention_bytes=None, event_bytes_max=4096)
    description = hub.description
    assert (description.retention_hours, description.retention_bytes) == (7, None)
    assert description.event_bytes_max == 4096
    await broker.update_event_hub("hub", retention_hours=None, event_bytes_max=None)
    description = hub.description
    assert (description.retention_hours, description.event_bytes_max) == (168, EVENT_BYTES_MAX)
    with pytest.raises(NotFoundError):
        await broker.update_event_hub("other", retention_hours=1)


@pytest.mark.parametrize(
    ("tier", "wanted", "refusal"),
    [
        (Tier.BASIC, 3, "2 partitions, and the Basic tier cannot add any"),
        (Tier.STANDARD, 3, "2 partitions, and the Standard tier cannot add any"),
        (Tier.PREMIUM, 101, "2 partitions, and the Premium tier allows 100, not 101"),
        (Tier.DEDICATED, 1, "2 partitions, which cannot be reduced to 1"),
        (Tier.DEDICATED, 0, "2 partitions, which cannot be reduced to 0"),
    ],
)
async def test_a_partition_count_that_cannot_be(
    broker: Broker, tier: Tier, wanted: int, refusal: str
) -> None:
    """Refused with the reason, and with everything beside it; the present number is no change in any tier."""
    hub = await broker.create_event_hub("hub", partition_count=2)
    await broker.set_tier(tier)
    await broker.update_event_hub("hub", partition_count=2, retention_hours=3)
    with pytest.raises(InvalidArgumentError, match=refusal):
        await broker.update_event_hub("hub", partition_count=wanted, retention_hours=9)
    assert (hub.description.retention_hours, len(hub.partitions)) == (3, 2)


async def test_partitions_are_added(broker: Broker, clock: SetClock, tmp_path: Path) -> None:
    """With other settings, for keys and keyless events at once; whoever listens for changes sees them. They
    survive a restart, and the earlier partitions have lost nothing.
    """
    hub = await broker.create_event_hub("hub", partition_count=2)
    kept = hub.partitions
    await _append(kept[1], 3)
    seen: list[int] = []
    broker.add_change_listener(lambda: seen.append(len(hub.partitions)))
    await broker.update_event_hub("HUB", partition_count=5, retention_hours=9)
    assert (seen, hub.partitions[:2], hub.description.retention_hours) == ([5], kept, 9)
    assert hub.description.partition_ids == ("0", "1", "2", "3", "4")
    assert {hub.partition_for(None).partition_id for _ in range(5)} == {*"01234"}
    keys = [f"key-{number}" for number in range(100)]
    assert {hub.partition_for(key).partition_id for key in keys} == {*"01234"}
    await _append(hub.partition("4"), 2)
    assert hub.statistics().incoming_events == 5
    record = next(broker.audit.newest_first().__iter__())
    assert record.new == {"partition_count": 5, "retention_hours": 9}
    await broker.close()
    opened = await open_broker(tmp_path, clock=clock)
    ends = [partition.next_sequence_number for partition in opened.event_hub("hub").partitions]
    await opened.close()
    assert ends == [0, 3, 0, 0, 2]
    assert check_catalog(tmp_path).is_sound


async def test_a_failed_partition_does_not_prevent_adding_some(
    broker: Broker, clock: SetClock, tmp_path: Path
) -> None:
    """It refuses everything as before, and the new ones serve."""
    hub = await broker.create_event_hub("hub", partition_count=2)
    await _append(hub.partitions[0], 3)
    await broker.close()
    (segment,) = (tmp_path / "logs" / hub.description.hub_id / "0").glob("*.log")
    segment.unlink()
    opened = await open_broker(tmp_path, clock=clock)
    hub = opened.event_hub("hub")
    assert hub.partitions[0].open_error is not None
    await opened.update_event_hub("hub", partition_count=3)
    await _append(hub.partitions[2], 1)
    assert [each.open_error is None for each in hub.partitions] == [False, True, True]
    await opened.close()


async def test_a_deleted_hub_gets_no_partitions(broker: Broker, tmp_path: Path) -> None:
    """A change that waited for the deletion leaves no logs behind."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    outcomes = await asyncio.gather(
        broker.delete_event_hub("hub"), hub.update(partition_count=2), return_exceptions=True
    )
    assert isinstance(outcomes[1], NotFoundError)
    assert not list((tmp_path / "logs").iterdir())


async def test_an_update_is_all_or_nothing(broker: Broker) -> None:
    """One bad value, and the good ones beside it do not count either."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    before = hub.description
    for retention_hours, retention_bytes, event_bytes_max in (
        (1, 1, 1023),
        (1, 1, EVENT_BYTES_MAX + 1),
        (1, 0, 2048),
        (0, 1, 2048),
        (2161, 1, 2048),
    ):
        with pytest.raises(InvalidArgumentError):
            await broker.update_event_hub(
                "hub",
                retention_hours=retention_hours,
                retention_bytes=retention_bytes,
                event_bytes_max=event_bytes_max,
            )
    assert hub.description == before


async def test_the_largest_event_is_the_hubs_at_once(broker: Broker) -> None:
    """Lowered and raised while the hub is used: each append is judged by the limit of its moment."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    await _append(partition, 1, 4000)
    await broker.update_event_hub("hub", event_bytes_max=1024)
    with pytest.raises(EventTooLargeError, match="1024 bytes"):
        await _append(partition, 1, 4000)
    await _append(partition, 1, 1000)
    await broker.update_event_hub("hub", event_bytes_max=8192)
    await _append(partition, 1, 4000)
    assert partition.next_sequence_number == 3


@pytest.mark.parametrize(
    ("tier", "partitions", "groups", "hours", "event_bytes"),
    [
        (Tier.BASIC, 32, 0, 24, 262_144),
        (Tier.STANDARD, 32, 20, 168, 1_048_576),
        (Tier.PREMIUM, 100, 100, 2160, 1_048_576),
        (Tier.DEDICATED, 1024, 1000, 2160, 1_048_576),
    ],
)
async def test_the_tier_decides_the_limits(
    broker: Broker, tier: Tier, partitions: int, groups: int, hours: int, event_bytes: int
) -> None:
    """Azure's table, value by value: the last allowed passes and the next does not."""
    await broker.set_tier(tier)
    assert (broker.tier, broker.limits) == (tier, TIER_LIMITS[tier])
    for partition_count, retention_hours, event_bytes_max in (
        (partitions + 1, None, None),
        (1, hours + 1, None),
        (1, None, event_bytes + 1),
    ):
        with pytest.raises(InvalidArgumentError):
            await broker.create_event_hub(
                "hub",
                partition_count=partition_count,
                retention_hours=retention_hours,
                event_bytes_max=event_bytes_max,
            )
    hub = await broker.create_event_hub("hub", partition_count=1)
    assert hub.event_bytes_max == event_bytes
    assert hub.description.retention_hours == min(168, hours)
    await broker.update_event_hub("hub", retention_hours=hours)
    if groups <= 20:
        for number in range(groups):
            await hub.create_consumer_group(f"g{number}")
        with pytest.raises(QuotaExceededError, match=tier.value):
            await hub.create_consumer_group("more")


async def test_a_lower_tier_leaves_what_exists(broker: Broker) -> None:
    """Hubs stay as they are and go on working, but for the largest event, which is the tier's at once."""
    hub = await broker.create_event_hub("hub", partition_count=64, event_bytes_max=500_000)
    await hub.create_consumer_group("group")
    await broker.set_tier(Tier.BASIC)
    description = hub.description
    assert (len(description.partition_ids), description.retention_hours) == (64, 168)
    assert description.consumer_groups == ("$Default", "group")
    assert description.event_bytes_max == 262_144
    await _append(hub.partition("63"), 1)
    with pytest.raises(EventTooLargeError):
        await _append(hub.partition("63"), 1, 300_000)
    await broker.set_tier(Tier.STANDARD)
    assert hub.event_bytes_max == 500_000


async def test_settings_survive_a_restart(tmp_path: Path, clock: SetClock) -> None:
    """Of hubs, of the namespace, revocations and capture; the file stays for its owner only."""
    broker = await open_broker(tmp_path, clock=clock)
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.update_event_hub("hub", retention_hours=9, retention_bytes=10_000, event_bytes_max=2048)
    await broker.set_capture("hub", CaptureSettings("/captured", time_window_s=60, is_empty_skipped=True))
    await hub.revoke_publisher("Device 1")
    await broker.set_tier(Tier.STANDARD)
    description = hub.description
    await broker.close()
    assert (tmp_path / "control.log").stat().st_mode & 0o777 == 0o600
    broker = await open_broker(tmp_path, clock=clock)
    hub = broker.event_hub("hub")
    assert hub.description == description
    assert description.capture is not None
    assert description.capture.time_window_s == 60
    assert hub.revoked_publishers == ("Device 1",)
    assert broker.tier is Tier.STANDARD
    await broker.set_capture("hub", None)
    await broker.close()
    broker = await open_broker(tmp_path, clock=clock)
    assert broker.event_hub("hub").description.capture is None
    await broker.close()


async def test_listeners_hear_of_hubs(broker: Broker) -> None:
    """Made, changed, captured, deleted: told after it, and only where something changed."""
    heard: list[list[str]] = []
    remove = broker.add_change_listener(lambda: heard.append([hub.name for hub in broker.list_event_hubs()]))
    await broker.create_event_hub("hub", partition_count=1)
    await broker.update_event_hub("hub", retention_hours=1)
    await broker.update_event_hub("hub", retention_hours=1)
    await broker.set_capture("hub", CaptureSettings("/captured"))
    await broker.set_capture("hub", CaptureSettings("/captured"))
    await broker.delete_event_hub("hub")
    assert heard == [["hub"], ["hub"], ["hub"], []]
    remove()
    await broker.create_event_hub("hub", partition_count=1)
    assert len(heard) == 4


# -- retention


async def _segmented(tmp_path: Path, clock: SetClock) -> tuple[Broker, Partition]:
    """A hub with ten segments of one event each."""
    broker = await open_broker(tmp_path, clock=clock, options=LogOptions(segment_bytes_max=400))
    partition = (await broker.create_event_hub("hub", partition_count=1, retention_hours=24)).partition("0")
    await _append(partition, 10, 300)
    return broker, partition


async def test_retention_by_size_can_be_set_later(tmp_path: Path, clock: SetClock) -> None:
    """Nothing goes until it is set; then whole segments, the oldest first, down to the size, and no more."""
    broker, partition = await _segmented(tmp_path, clock)
    assert await broker.apply_retention() == 0
    await broker.update_event_hub("hub", retention_bytes=1500)
    removed = await broker.apply_retention()
    assert removed == partition.begin_sequence_number > 0
    kept = await partition.read(0, bytes_max=10_000)
    assert kept[0].base_sequence_number == removed
    assert 10 - removed >= 1500 // 400
    assert await broker.apply_retention() == 0
    await broker.update_event_hub("hub", retention_bytes=None)
    await _append(partition, 5, 300)
    assert await broker.apply_retention() == 0
    await broker.close()


async def test_retention_by_time_can_be_changed(tmp_path: Path, clock: SetClock) -> None:
    """Shortened, it takes effect at the next look; what came later stays."""
    broker, partition = await _segmented(tmp_path, clock)
    clock.advance(hours=3)
    await _append(partition, 1, 300)
    assert await broker.apply_retention() == 0
    await broker.update_event_hub("hub", retention_hours=2)
    assert await broker.apply_retention() == 10
    assert partition.begin_sequence_number == 10
    await broker.close()


async def test_a_reader_behind_retention_is_shown_where_the_log_begins(
    tmp_path: Path, clock: SetClock
) -> None:
    """As in Event Hubs it goes on with the first event held; numbers, not silence, show what is missing."""
    broker, partition = await _segmented(tmp_path, clock)
    position = EventPosition.from_sequence_number(2)
    assert await partition.resolve(position) == 2
    await broker.update_event_hub("hub", retention_bytes=1500)
    await broker.apply_retention()
    begin = (await partition.ends()).begin_sequence_number
    assert begin > 2
    assert await partition.resolve(position) == begin
    assert await partition.resolve(EventPosition.from_offset("2")) == begin
    assert (await partition.read(2, bytes_max=1))[0].base_sequence_number == begin
    await broker.close()


# -- the catalog's format


async def test_a_directory_of_the_format_before_is_refused(tmp_path: Path, clock: SetClock) -> None:
    """With one sentence, and it stays as it was."""
    (tmp_path / "logs" / "0123456789abcdef" / "0").mkdir(parents=True)
    (tmp_path / "catalog.json").write_text('{"format_version": 2, "event_hubs": []}')
    with pytest.raises(LogCorruptError, match=r"format of an earlier version \(catalog\.json\)"):
        await open_broker(tmp_path, clock=clock)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalog.json", "lock", "logs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "path", "value"),
    [
        ("namespace", ("format_version",), 3),
        ("namespace", ("tier",), "Golden"),
        ("namespace", ("throughput_units",), "many"),
        ("namespace", ("policies", 0, "claims"), ["Everything"]),
        ("hub/", ("format_version",), 3),
        ("hub/", ("partition_count",), None),
        ("hub/", ("policies",), [{"name": "p"}]),
        ("hub/", ("capture",), {"destination": "/x", "unheard_of": 1}),
        ("hub/", ("policies",), 7),
    ],
)
async def test_a_catalog_with_a_value_that_cannot_be_is_refused(
    tmp_path: Path, clock: SetClock, key: str, path: tuple[str | int, ...], value: object
) -> None:
    """Nothing is guessed and nothing overwritten; the error shows no key."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.create_event_hub("hub", partition_count=1)
    secret = broker.policies()[0].key
    await broker.close()

    def edit(document: dict[str, Any]) -> None:
        place: Any = document
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    await edit_value(tmp_path, key, edit)
    file = tmp_path / "control.log"
    written = file.read_bytes()
    with pytest.raises(LogCorruptError, match=r"control\.log") as caught:
        await open_broker(tmp_path, clock=clock)
    assert secret not in str(caught.value)
    assert file.read_bytes() == written


@pytest.mark.parametrize(
    ("key", "path", "told"),
    [
        ("namespace", ("region",), r"has settings \(region\)"),
        ("hub/", ("compaction",), r"has settings \(compaction\)"),
        ("hub/", ("policies", 0, "expires_at_ms"), r"has settings \(expires_at_ms\)"),
        ("hub/", ("format_version",), r"has a format \(2\)"),
    ],
)
@pytest.mark.slow
async def test_a_setting_of_a_later_version_is_refused_by_name(
    tmp_path: Path, clock: SetClock, key: str, path: tuple[str | int, ...], told: str
) -> None:
    """The next change of the hub would drop it, and the later version would miss it."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.create_event_hub("hub", partition_count=1)
    await broker.create_policy("hub", "reader", [Claim.LISTEN])
    await broker.close()

    def edit(document: dict[str, Any]) -> None:
        place: Any = document
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = 2

    await edit_value(tmp_path, key, edit)
    with pytest.raises(LogCorruptError, match=f"{told} that this version does not know.*a later one"):
        await open_broker(tmp_path, clock=clock)


async def test_a_kind_of_value_of_a_later_version_is_refused_by_name(tmp_path: Path, clock: SetClock) -> None:
    """It may say what must not be done with the hubs beside it."""
    await (await open_broker(tmp_path, clock=clock)).close()
    log = FileControlLog.open(OsFiles(), tmp_path, is_used=True, is_threaded=False)
    await log.change("schema/1", b"{}", expected_version=0)
    await log.close()
    with pytest.raises(LogCorruptError, match=r"control\.log \(schema/1\) is of a kind that this version"):
        await open_broker(tmp_path, clock=clock)
