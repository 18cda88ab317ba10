"""Forgetting a consumer deletes all that is its own, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Integer, insert, select
from tests.sql.support import CONSUMER, PIPELINE, event_with, events_between, rows_in

from tidegate.sql import (
    CheckpointReader,
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    Pipeline,
    forget_consumer,
    process_partition_batch,
)
from tidegate.sql.core.schema import outbox, outbox_lane

ANY = DeadLetterFilter(status=None)
OTHERS = (ConsumerKey("flights", "other"), ConsumerKey("other"))


def _process(database: Database, pipeline: Pipeline, start: int = 0) -> None:
    events = [*events_between(start, start + 2), event_with({"delay": None}, start + 2)]
    process_partition_batch(
        database, pipeline, "0", events, start_sequence_number=start, until_sequence_number=start + 3
    )


def test_a_consumer_is_forgotten_and_others_are_not(database: Database) -> None:
    """Checkpoints, dead letters and their audit trail go; another group, another hub and rows stay."""
    _process(database, PIPELINE)
    for number, other in enumerate(OTHERS, start=1):
        pipeline = replace(PIPELINE, event_hub=other.event_hub, consumer_group=other.consumer_group)
        _process(database, pipeline, 10 * number)
    letters = DeadLetters(database)
    assert letters.discard(DeadLetterFilter(), reason="not needed") == 3
    rows = rows_in(database)
    with database.writing() as connection, connection.begin():
        forget_consumer(connection, CONSUMER)
    assert CheckpointReader(database).read(CONSUMER) == {}
    kept = sorted(OTHERS, key=str)
    for found in (CheckpointReader(database).read_all(), letters.list(ANY), letters.audit()):
        assert sorted((ConsumerKey(item.event_hub, item.consumer_group) for item in found), key=str) == kept
    assert rows_in(database) == rows


def test_what_a_forgotten_consumer_has_published_goes(database: Database) -> None:
    """No host would send it; what another consumer has published stays."""
    lanes = [(CONSUMER, "mine"), (OTHERS[0], "other")]
    with database.writing() as connection, connection.begin():
        for consumer, lane_id in lanes:
            names = {"event_hub": consumer.event_hub, "consumer_group": consumer.consumer_group}
            texts = {"partition_id": "0", "target_hub": "alarms", "target_partition_id": "0"}
            numbers = {each.name: 0 for each in outbox_lane.c if isinstance(each.type, Integer)}
            connection.execute(insert(outbox_lane).values(lane_id=lane_id, **names, **texts, **numbers))
            row = {"number": 0, "event_count": 1, "until_byte": 1, "sections": b"1"}
            connection.execute(insert(outbox).values(lane_id=lane_id, **row))
        forget_consumer(connection, CONSUMER)
    with database.read() as connection:
        for table in (outbox_lane, outbox):
            assert connection.execute(select(table.c.lane_id)).scalars().all() == ["other"]


def test_a_forgotten_consumer_starts_again(database: Database) -> None:
    """It is as one that was never there; what a rolled-back transaction forgot is not forgotten."""
    _process(database, PIPELINE)
    with database.writing() as connection, connection.begin() as transaction:
        forget_consumer(connection, CONSUMER)
        transaction.rollback()
    assert DeadLetters(database).count() == 1
    with database.writing() as connection, connection.begin():
        forget_consumer(connection, CONSUMER)
    _process(database, PIPELINE, 100)
    assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == 103
