"""The namespace: hubs, groups and policies survive restarts; names, limits and partitions follow Event
Hubs.
"""

from __future__ import annotations

import errno
import stat
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from tests.storage.simulated_files import SimulatedFiles
from tests.support.calls import steps_of
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Partition, ProducerBatch
from tidegate.model.errors import (
    AlreadyExistsError,
    ClosedError,
    DirectoryInUseError,
    EventTooLargeError,
    InvalidArgumentError,
    LogCorruptError,
    LogFullError,
    NotFoundError,
    PositionOutOfRangeError,
    QuotaExceededError,
)
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.model.position import EventPosition
from tidegate.server.opening import open_broker
from tidegate.storage.options import LogOptions


async def test_everything_is_there_after_a_restart(tmp_path: Path, clock: SetClock) -> None:
    """Hubs with their ids and times, groups, the key, and events; the catalog is for its owner's eyes
    only.
    """
    broker = await open_broker(tmp_path, clock=clock)
    hub = await broker.create_event_hub(
        "Flights", partition_count=3, retention_hours=24, retention_bytes=10_000
    )
    await hub.create_consumer_group("Tail")
    await hub.partition("2").append(b"event", [5])
    description, policies = hub.description, broker.authorizer.policies
    await broker.close()
    assert stat.S_IMODE((tmp_path / "control.log").stat().st_mode) == 0o600
    broker = await open_broker(tmp_path, clock=clock)
    assert broker.event_hub("FLIGHTS").description == description
    assert description.consumer_groups == ("$Default", "Tail")
    assert description.partition_ids == ("0", "1", "2")
    assert description.created_at_ms == 1795176000500
    assert len(description.namespace_id) == 32
    other = await broker.create_event_hub("other", partition_count=1)
    assert other.description.namespace_id == description.namespace_id
    assert broker.authorizer.policies == policies
    assert (
        bytes((await broker.event_hub("flights").partition("2").read(0, bytes_max=1))[0].payload) == b"event"
    )
    await broker.close()


async def test_a_second_broker_is_refused(broker: Broker, tmp_path: Path, clock: SetClock) -> None:
    """One directory, one service."""
    with pytest.raises(DirectoryInUseError):
        await open_broker(tmp_path, clock=clock)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "ä", "a/b", "x" * 257, "$management", "a\n"])
async def test_names_follow_the_rules(broker: Broker, name: str) -> None:
    """What Event Hubs would not take, we do not take."""
    with pytest.raises(InvalidArgumentError):
        await broker.create_event_hub(name, partition_count=1)


async def test_limits_of_a_hub(broker: Broker) -> None:
    """Partitions, hours, bytes, a name that is taken in another letter case, consumer groups."""
    for partition_count, retention_hours in ((0, 1), (1025, 1), (1, 0), (1, 2161)):
        with pytest.raises(InvalidArgumentError):
            await broker.create_event_hub(
                "h", partition_count=partition_count, retention_hours=retention_hours
            )
    with pytest.raises(InvalidArgumentError):
        await broker.create_event_hub("h", partition_count=1, retention_bytes=0)
    hub = await broker.create_event_hub("h.u-b_1", partition_count=1)
    with pytest.raises(AlreadyExistsError):
        await broker.create_event_hub("H.U-B_1", partition_count=1)
    for name in ("bad name", "x" * 51, "$default"):
        with pytest.raises((InvalidArgumentError, AlreadyExistsError)):
            await hub.create_consumer_group(name)
    await hub.create_consumer_group("Group")
    with pytest.raises(AlreadyExistsError):
        await hub.create_consumer_group("gROUP")
    with pytest.raises(InvalidArgumentError):
        await hub.delete_consumer_group("$DEFAULT")
    await hub.delete_consumer_group("GROUP")
    with pytest.raises(NotFoundError):
        await hub.delete_consumer_group("group")


async def test_consumer_groups_have_receivers_of_their_own(broker: Broker) -> None:
    """Names compare without regard to case; an epoch in one group does not touch the other; unknown is not
    found.
    """
    hub = await broker.create_event_hub("hub", partition_count=1)
    await hub.create_consumer_group("other")
    partition = hub.partition("0")
    first = partition.open_receiver("$default", name=None, owner_level=5, on_stolen=lambda _: None)
    partition.open_receiver("Other", name=None, owner_level=None, on_stolen=lambda _: None)
    partition.open_receiver("$DEFAULT", name=None, owner_level=5, on_stolen=lambda _: None)
    assert not first.is_open
    assert len(partition.receivers()) == 2
    with pytest.raises(NotFoundError, match=r"could not be found. .*: tidegate group create hub NAME"):
        partition.open_receiver("nobody", name=None, owner_level=None, on_stolen=lambda _: None)
    for _ in range(4):
        partition.open_receiver("other", name=None, owner_level=None, on_stolen=lambda _: None)
    with pytest.raises(QuotaExceededError):
        partition.open_receiver("other", name=None, owner_level=None, on_stolen=lambda _: None)
    await hub.delete_consumer_group("other")
    await hub.create_consumer_group("OTHER")
    with pytest.raises(QuotaExceededError):
        partition.open_receiver("other", name=None, owner_level=None, on_stolen=lambda _: None)


async def test_deleted_groups_leave_nothing_in_a_partition(broker: Broker) -> None:
    """Protects memory: who manages a hub can create, use and delete groups as often as they like."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    partition = hub.partition("0")
    for number in range(20):
        await hub.create_consumer_group(f"group{number}")
        partition.open_receiver(
            f"group{number}", name=None, owner_level=None, on_stolen=lambda _: None
        ).close()
        await hub.delete_consumer_group(f"group{number}")
    assert len(partition._registries) == 1


async def test_a_deleted_hub_is_gone(broker: Broker, tmp_path: Path) -> None:
    """Not listed, not found, its files removed; the name is free and begins anew."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    partition = hub.partition("0")
    await partition.append(b"x", [1])
    await broker.delete_event_hub("HUB")
    assert broker.list_event_hubs() == []
    with pytest.raises(NotFoundError, match="The messaging entity 'hub' could not be found"):
        broker.event_hub("hub")
    with pytest.raises(ClosedError):
        await partition.append(b"x", [1])
    assert list((tmp_path / "logs").iterdir()) == []
    again = await broker.create_event_hub("hub", partition_count=1)
    assert again.description.hub_id != hub.description.hub_id
    assert again.partition("0").next_sequence_number == 0


async def test_events_go_to_the_partition_of_their_key(broker: Broker) -> None:
    """Event Hubs' hash for a key, taking turns without one."""
    hub = await broker.create_event_hub("hub", partition_count=4)
    for key in ("device-1", "漢字", "a"):
        assert hub.partition_for(key).partition_id == str(partition_for_key(key, 4))
    assert [hub.partition_for(None).partition_id for _ in range(5)] == ["0", "1", "2", "3", "0"]
    with pytest.raises(InvalidArgumentError):
        hub.partition_for("k" * 129)
    with pytest.raises(NotFoundError):
        hub.partition("4")


async def _filled(broker: Broker, clock: SetClock) -> Partition:
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    for _ in range(3):
        await partition.append(b"xy", [1, 1])
        clock.advance(seconds=10)
    return partition


async def test_positions_resolve(broker: Broker, clock: SetClock) -> None:
    """All five kinds, inclusive and not, at the ends and beyond."""
    start_time = clock.now
    partition = await _filled(broker, clock)
    by_number, by_time = EventPosition.from_sequence_number, EventPosition.from_enqueued_time
    second = timedelta(seconds=1)
    table = [
        (EventPosition.earliest(), 0),
        (EventPosition.latest(), 6),
        (EventPosition.from_offset("-1"), 0),
        (EventPosition.from_offset("@latest"), 6),
        (EventPosition.from_offset("3"), 4),
        (EventPosition.from_offset("3", is_inclusive=True), 3),
        (by_number(3), 3),
        (by_number(3, is_inclusive=False), 4),
        (by_number(-1, is_inclusive=False), 0),
        (by_number(5, is_inclusive=False), 6),
        (by_number(6), 6),
        (by_time(start_time - second), 0),
        (by_time(start_time), 0),
        (by_time(start_time, is_inclusive=False), 2),
        (by_time(start_time + second), 2),
        (by_time(start_time + 10 * second), 2),
        (by_time(start_time + 21 * second), 6),
        (by_time(datetime(2100, 1, 1, tzinfo=UTC)), 6),
    ]
    assert [(await partition.resolve(position)) for position, _ in table] == [
        expected for _, expected in table
    ]
    text = "The supplied sequence number '488' is invalid. The last sequence number in the system is '5'"
    with pytest.raises(PositionOutOfRangeError) as caught:
        await partition.resolve(by_number(488))
    assert str(caught.value) == text
    with pytest.raises(PositionOutOfRangeError, match="offset '6' is invalid"):
        await partition.resolve(EventPosition.from_offset("6"))
    for offset in ("", "-2", "1.5", "٣", "9" * 30):
        with pytest.raises(InvalidArgumentError):
            await partition.resolve(EventPosition.from_offset(offset))


async def test_ends(broker: Broker, clock: SetClock) -> None:
    """Of an empty partition, a filled one, and one that retention emptied."""
    empty = await (await broker.create_event_hub("empty", partition_count=1)).partition("0").ends()
    assert (empty.begin_sequence_number, empty.last_enqueued_sequence_number) == (0, -1)
    assert (empty.last_enqueued_offset, empty.last_enqueued_time_ms, empty.is_empty) == ("-1", None, True)
    partition = await _filled(broker, clock)
    ends = await partition.ends()
    assert (ends.begin_sequence_number, ends.last_enqueued_sequence_number) == (0, 5)
    assert (ends.last_enqueued_offset, ends.is_empty) == ("5", False)
    assert ends.last_enqueued_time_ms == 1795176020500
    clock.advance(hours=169)
    assert await broker.apply_retention() == 1
    ends = await partition.ends()
    assert (ends.begin_sequence_number, ends.last_enqueued_sequence_number) == (6, 5)
    assert ends.is_empty
    assert await partition.resolve(EventPosition.earliest()) == 6


async def test_an_event_over_the_limit_is_refused(broker: Broker) -> None:
    """One clear error, nothing stored; the largest allowed event, in its stored form, fits."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    with pytest.raises(EventTooLargeError, match="exceeds the limit"):
        await partition.append(bytes(EVENT_BYTES_MAX + 9), [EVENT_BYTES_MAX + 9])
    assert partition.next_sequence_number == 0
    await partition.append(bytes(EVENT_BYTES_MAX + 8), [EVENT_BYTES_MAX + 8])


async def test_statistics_count_events_and_bytes(broker: Broker) -> None:
    """In what was stored once, repeats excluded; out what was handed on."""
    hub = await broker.create_event_hub("hub", partition_count=2)
    partition = hub.partition("1")
    for _ in range(2):
        await partition.append(memoryview(b"abcde"), [2, 3], producer=ProducerBatch(1, 0, 0))
    partition.count_delivered(7, 70)
    statistics = hub.statistics()
    assert (statistics.incoming_events, statistics.incoming_bytes) == (2, 5)
    assert (statistics.outgoing_events, statistics.outgoing_bytes) == (7, 70)


async def test_a_damaged_catalog_is_refused_and_shows_no_key(tmp_path: Path, clock: SetClock) -> None:
    """Nothing is guessed, nothing is overwritten, and the error does not quote the file."""
    broker = await open_broker(tmp_path, clock=clock)
    key = broker.authorizer.policies[0].key
    await broker.close()
    paths = [tmp_path / "control.log", tmp_path / "control.copy"]
    damaged = paths[0].read_bytes()[:-30]
    for path in paths:
        path.write_bytes(damaged)
    with pytest.raises(
        LogCorruptError, match=r"control log is damaged: .*control\.log at byte \d+"
    ) as caught:
        await open_broker(tmp_path, clock=clock)
    assert key not in str(caught.value)
    assert [path.read_bytes() for path in paths] == [damaged, damaged]


async def test_a_full_disk_leaves_the_catalog_as_it_was(clock: SetClock) -> None:
    """A hub that could not be written does not exist, before and after a restart."""
    files = SimulatedFiles()
    broker = await open_broker(Path("/data"), clock=clock, files=files, options=LogOptions())
    await broker.create_event_hub("first", partition_count=1)
    files.space_left = 10
    with pytest.raises(LogFullError):
        await broker.create_event_hub("second", partition_count=1)
    files.space_left = None
    assert [hub.name for hub in broker.list_event_hubs()] == ["first"]
    await broker.close()
    broker = await open_broker(Path("/data"), clock=clock, files=files)
    assert [hub.name for hub in broker.list_event_hubs()] == ["first"]
    await broker.close()


async def test_retention_goes_on_behind_a_partition_that_fails(
    clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One broken partition does not fill the disk with what the others no longer need to keep."""
    files = SimulatedFiles()
    options = LogOptions(segment_bytes_max=200)
    broker = await open_broker(Path("/data"), clock=clock, options=options, files=files)
    for name in ("broken", "sound"):
        hub = await broker.create_event_hub(name, partition_count=1, retention_hours=1)
        for _ in range(3):
            await hub.partition("0").append(b"x" * 150, [150])
    files.sync_error, files.sync_error_name = errno.EIO, broker.event_hub("broken").description.hub_id
    clock.advance(hours=2)
    assert await broker.apply_retention() == 3
    assert "It will be tried again" in caplog.text
    assert broker.event_hub("sound").partition("0").begin_sequence_number == 3
    assert broker.event_hub("broken").partition("0").begin_sequence_number == 0
    await broker.close()


async def test_no_event_is_older_than_its_hub(broker: Broker, clock: SetClock) -> None:
    """Databases tell a hub's dead letters from those of an earlier hub of its name by the time: a clock that
    is set back must not mix them."""
    await broker.create_event_hub("hub", partition_count=1)
    hub = broker.event_hub("hub")
    clock.advance(-3600)
    result = await hub.partition("0").append(b"x", [1])
    assert result.enqueued_time_ms == hub.description.created_at_ms


@pytest.mark.slow
async def test_a_change_costs_the_same_however_many_hubs_there_are(tmp_path: Path, clock: SetClock) -> None:
    """The creation, an update and the deletion of a hub: what the event loop does for each."""
    costs: dict[int, list[int]] = {}
    for count in (10, 300):
        broker = await open_broker(tmp_path / str(count), clock=clock)
        for number in range(count):
            await broker.create_event_hub(f"hub-{number}", partition_count=1)
        costs[count] = [
            await steps_of(partial(broker.create_event_hub, "more", partition_count=1)),
            await steps_of(partial(broker.update_event_hub, "more", retention_hours=2)),
            await steps_of(partial(broker.delete_event_hub, "more")),
        ]
        await broker.close()
    print(costs)
    for few, many in zip(costs[10], costs[300], strict=True):
        assert many < 1.2 * few + 500
