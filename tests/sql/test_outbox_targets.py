"""Targets that are not what they were: deleted, created again, or newer than the database."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.sql.support import CONSUMER
from tests.sql.test_outbox import GUIDE, Bench, expected, lane, light_bench, run, work_off

from tidegate.model.errors import BrokenError, NotFoundError, OutboxInDoubtError, PartitionNotFoundError
from tidegate.sql.core.schema import outbox_lane
from tidegate.sql.outbox import relay
from tidegate.sql.outbox.lanes import find_start, read_lanes

__all__ = ["light_bench"]


def recreate(bench: Bench, partition_count: int) -> None:
    """Delete the target, and create another of its name."""
    bench.service.call(lambda server: server.broker.delete_event_hub(bench.target))
    bench.service.call(
        lambda server: server.broker.create_event_hub(bench.target, partition_count=partition_count)
    )


@pytest.mark.slow
def test_a_target_with_fewer_partitions_is_noticed(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a missing one is kept, and the error names it; new events go to those that there are."""
    monkeypatch.setattr(relay, "_LAYOUT_S", 0.0)
    monkeypatch.setattr(relay, "_delay_s", lambda tries: 0.0)

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 50)
        recreate(light_bench, 1)
        for _ in range(4):
            await begun._turn()
        assert {type(error) for error in light_bench.reported} == {PartitionNotFoundError}
        assert "the hub has no such partition now" in str(light_bench.reported[0])
        assert light_bench.outbox.layouts[light_bench.target].partition_ids == ("0",)
        await light_bench.publish(50, 100)
        for _ in range(4):
            await begun._turn()
        (waiting,) = read_lanes(light_bench.database, CONSUMER, ["0"])
        assert waiting.target_partition_id == "1"
        light_bench.service.call(
            lambda server: server.broker.update_event_hub(light_bench.target, partition_count=2)
        )
        await begun.finish(["0"], 60.0)

    run(work())
    assert {key: sorted(numbers) for key, numbers in light_bench.found().items()} == expected(100)
    assert light_bench.counts() == (0, 0)


@pytest.mark.slow
def test_a_target_that_was_created_again_gets_what_waits(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log has never forgotten a producer, so what it lacks was not sent to it."""
    monkeypatch.setattr(relay, "_delay_s", lambda tries: 0.0)

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 50)
        await work_off(begun)
        await light_bench.publish(50, 100)
        # As a relay that has sent something, and did not learn more.
        light_bench.move_lanes(sent_until=outbox_lane.c.next_number)
        recreate(light_bench, 2)
        await begun.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == {
        key: [number for number in numbers if number >= 50] for key, numbers in expected(100).items()
    }
    assert light_bench.counts() == (0, 0)
    assert {type(error) for error in light_bench.reported} <= {BrokenError, NotFoundError}


def test_a_number_of_an_earlier_log_proves_nothing(light_bench: Bench) -> None:
    """The target was created again and has forgotten producers since: it may have the lane's first batch."""

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 50)
        assert await begun._turn()  # it begins the producers
        await light_bench.send_others(5)
        light_bench.move_lanes(sent_until=outbox_lane.c.next_number, base_sequence_number=1_000_000)
        await light_bench.forget_producers()
        await begun.finish(["0"], 60.0)

    run(work())
    assert {type(error) for error in light_bench.reported} == {OutboxInDoubtError}
    assert light_bench.found() == {}


def test_another_log_leaves_nothing_in_doubt() -> None:
    """A service that never forgot a producer, and does not know one that it has acknowledged."""
    sent = lane(sent_until=90, relayed_until=60)
    assert find_start(sent, 0, 0) is None
    with pytest.raises(OutboxInDoubtError):
        find_start(sent, 0, 1)


@pytest.mark.slow
def test_an_epoch_that_the_hub_has_passed_is_in_doubt(
    light_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored database is older than its hub. The error says so, and the guide's statement resolves it."""
    monkeypatch.setattr(relay, "_delay_s", lambda tries: 0.0)
    send = GUIDE.read_text(encoding="utf-8").split("```sql\n")[1].split("```")[0]

    async def work() -> None:
        begun = light_bench.relay()
        await light_bench.publish(0, 50)
        light_bench.move_lanes(producer_epoch=4)
        await work_off(begun)
        await begun.finish(["0"], 60.0)
        light_bench.move_lanes(producer_epoch=2)
        begun = light_bench.relay()
        await light_bench.publish(50, 100)
        await begun._turn()
        assert {type(error) for error in light_bench.reported} == {OutboxInDoubtError}
        assert "this database is older" in str(light_bench.reported[0])
        with light_bench.database.writing() as connection, connection.begin():
            for each in connection.execute(sa.select(outbox_lane.c.lane_id)).scalars().all():
                connection.exec_driver_sql(send.replace("LANE", each))
        await begun.finish(["0"], 60.0)

    run(work())
    assert light_bench.found() == expected(100)
    assert light_bench.counts() == (0, 0)
