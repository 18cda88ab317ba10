"""Batches of several partitions in one transaction: all or nothing, whatever else happens to them."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import Engine, event
from tests.sql.support import (
    CONSUMER,
    PIPELINE,
    dead_numbers,
    event_with,
    events_between,
    flights,
    record_delay,
    row_count,
    rows_in,
)

from tidegate.model.errors import CheckpointGapError, FencedError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import (
    ArrowHandler,
    BatchResult,
    CheckpointReader,
    Database,
    DeadLetters,
    Row,
    UnitOfWork,
)
from tidegate.sql.commit.batch import commit_batches
from tidegate.sql.commit.engine import BatchScope
from tidegate.sql.commit.partition_batch import PartitionBatch, computed_batch, handled_batch
from tidegate.sql.core import schema
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.checkpoint_rows import CheckpointStep
from tidegate.sql.core.values import EventPlace

_EVENTS = 60


def _scope(partition_id: str, start: int, until: int, *, lease_epoch: int | None = None) -> BatchScope:
    return BatchScope(
        CONSUMER, partition_id, start, until, lease_epoch=lease_epoch, pipeline_name=PIPELINE.name
    )


def _batch(
    partition_id: str, start: int, until: int, *, bad: int | None = None, lease_epoch: int | None = None
) -> PartitionBatch:
    """bad: the event whose row the database will not take."""

    def handler(event: ReceivedEvent) -> Row:
        row = record_delay(event)
        return {**row, "delay": None} if event.sequence_number == bad else row

    return handled_batch(
        replace(PIPELINE, handler=handler),
        _scope(partition_id, start, until, lease_epoch=lease_epoch),
        events_between(start, until, partition_id=partition_id),
    )


def _checkpoints(database: Database) -> dict[str, int | None]:
    found = CheckpointReader(database).read(CONSUMER)
    return {partition_id: each.next_sequence_number for partition_id, each in found.items()}


def test_all_of_them_are_committed_and_told_in_their_order(database: Database) -> None:
    """The first time, when checkpoints are made, and the next, when they are there; a repeat does nothing."""
    batches = [_batch("10", 0, 3), _batch("2", 0, 4), _batch("1", 0, 1)]
    expected = [BatchResult(3, 0, 0, 0, 3), BatchResult(4, 0, 0, 0, 4), BatchResult(1, 0, 0, 0, 1)]
    assert commit_batches(database, batches) == expected
    second = [_batch("10", 3, 5), _batch("2", 2, 6), _batch("1", 0, 1)]
    assert commit_batches(database, second) == [
        BatchResult(2, 0, 0, 3, 5),
        BatchResult(2, 0, 2, 4, 6),
        BatchResult(0, 0, 1, 1, 1),
    ]
    assert commit_batches(database, second[2:]) == [BatchResult(0, 0, 1, 1, 1)]
    assert _checkpoints(database) == {"10": 5, "2": 6, "1": 1}
    assert row_count(database) == 12
    tokens = {each.transaction_token for each in CheckpointReader(database).read(CONSUMER).values()}
    assert len(tokens) == 2, "10 and 2 were moved by one transaction, 1 by the one before"


def test_a_partition_that_is_new_among_others(database: Database) -> None:
    """Its checkpoint is made, and the locks are taken again from the first on."""
    commit_batches(database, [_batch("1", 0, 2), _batch("3", 0, 2)])
    assert commit_batches(database, [_batch("1", 2, 3), _batch("2", 0, 1), _batch("3", 2, 3)]) == [
        BatchResult(1, 0, 0, 2, 3),
        BatchResult(1, 0, 0, 0, 1),
        BatchResult(1, 0, 0, 2, 3),
    ]
    assert (_checkpoints(database), row_count(database)) == ({"1": 3, "2": 1, "3": 3}, 7)


def test_a_refused_row_is_the_dead_letter_of_its_partition(database: Database) -> None:
    """Each then has a transaction of its own; what the others did is the same."""
    batches = [_batch("0", 0, 4), _batch("1", 0, 4, bad=2), _batch("2", 0, 4)]
    assert commit_batches(database, batches) == [
        BatchResult(4, 0, 0, 0, 4),
        BatchResult(3, 1, 0, 0, 4),
        BatchResult(4, 0, 0, 0, 4),
    ]
    (letter,) = DeadLetters(database).list()
    assert (letter.partition_id, letter.sequence_number) == ("1", 2)
    assert row_count(database) == 11


def test_handlers_failures_are_put_aside_together(database: Database) -> None:
    """Dead letters of several partitions in one transaction."""
    batches = [
        handled_batch(
            PIPELINE,
            _scope(partition_id, 0, 3),
            [
                event_with({"delay": None}, 0, partition_id=partition_id),
                *events_between(1, 3, partition_id=partition_id),
            ],
        )
        for partition_id in ("0", "1")
    ]
    assert commit_batches(database, batches) == [BatchResult(2, 1, 0, 0, 3)] * 2
    assert dead_numbers(database) == [0, 0]
    assert _checkpoints(database) == {"0": 3, "1": 3}


def test_a_gap_in_one_leaves_all_where_they_were(database: Database) -> None:
    """Whoever called decides what becomes of the others."""
    commit_batches(database, [_batch("0", 0, 2), _batch("1", 0, 2)])
    with pytest.raises(CheckpointGapError, match="partition 1"):
        commit_batches(database, [_batch("0", 2, 4), _batch("1", 3, 5)])
    assert (_checkpoints(database), row_count(database)) == ({"0": 2, "1": 2}, 4)


def test_one_that_was_taken_over_leaves_all_where_they_were(database: Database) -> None:
    """The lease epoch of one is enough."""
    with UnitOfWork(database, CONSUMER, lease_epoch=5) as unit:
        unit.advance("1", unit.lock("1"), 2)
    batches = [_batch("0", 0, 2, lease_epoch=4), _batch("1", 2, 4, lease_epoch=4)]
    with pytest.raises(FencedError, match="Partition 1"):
        commit_batches(database, batches)
    assert row_count(database) == 0
    assert _checkpoints(database).get("0") is None


def test_arrow_rows_of_several_partitions_go_in_together(database: Database) -> None:
    """Whether their columns have the same types or not."""

    def handle(batch: pa.RecordBatch) -> pa.Table:
        kind = pa.int32() if batch.column("partition")[0].as_py() == "1" else pa.int64()
        numbers = batch.column("sequenceNumber")
        return pa.table(
            {
                "sequence_number": numbers,
                "partition_id": batch.column("partition"),
                "delay": numbers.cast(kind),
            }
        )

    pipeline = replace(PIPELINE, handler=ArrowHandler(handle, columns=("partition", "sequenceNumber")))
    batches = [
        handled_batch(
            pipeline,
            _scope(partition_id, 0, 3),
            events_between(0, 3, partition_id=partition_id),
        )
        for partition_id in ("0", "1", "2")
    ]
    assert [result.rows for result in commit_batches(database, batches)] == [3, 3, 3]
    expected = sorted((number, str(each), number, None) for each in range(3) for number in range(3))
    assert rows_in(database) == expected


def test_two_who_want_overlapping_partitions_neither_lock_up_nor_double(database: Database) -> None:
    """From empty tables on, each wants other partitions together with the same ones, in any order."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    partition_ids = [str(each) for each in range(6)]
    errors: list[BaseException] = []
    rows = [0] * 3

    def work(index: int) -> None:
        random_numbers = random.Random(seed + index)
        try:
            while True:
                at = _checkpoints(database)
                left = [each for each in partition_ids if (at.get(each) or 0) < _EVENTS]
                if not left:
                    return
                chosen = random_numbers.sample(left, random_numbers.randint(1, len(left)))
                batches = [
                    _batch(each, at.get(each) or 0, min(_EVENTS, (at.get(each) or 0) + 7)) for each in chosen
                ]
                rows[index] += sum(result.rows for result in commit_batches(database, batches))
        except BaseException as error:  # told where it is looked at
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(rows))]
    _run(threads)
    assert not errors
    assert sum(rows) == row_count(database) == len(partition_ids) * _EVENTS
    assert _checkpoints(database) == dict.fromkeys(partition_ids, _EVENTS)


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("change", [1, 2])
def test_a_step_from_elsewhere_is_named(database: Database, change: int) -> None:
    """Of several steps in one statement, the error says which could not be taken, and nothing is kept."""
    commit_batches(database, [_batch(each, 0, 2) for each in "012"])
    steps = [CheckpointStep(str(each), 1 if each == change else 2, 3) for each in range(3)]

    def advance() -> None:
        with UnitOfWork(database, CONSUMER) as unit:
            unit.advance_all(steps)

    with pytest.raises(FencedError, match=f"partition {change} of .* could not move from 1 to 3"):
        advance()
    assert _checkpoints(database) == {"0": 2, "1": 2, "2": 2}


def test_rows_whose_schema_has_no_hash_go_in_together(database: Database) -> None:
    """Metadata, as pandas leaves it, and a column type of the user's own."""

    class Minutes(pa.ExtensionType):
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(pa.int64(), "tests.minutes")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Minutes:
            return cls()

    def rows(partition_id: str, column: pa.Array[Any]) -> PartitionBatch:
        data = pa.table({"sequence_number": [0], "partition_id": [partition_id], "delay": column})
        return computed_batch(
            flights,
            _scope(partition_id, 0, 1),
            [ArrowRows(data.replace_schema_metadata({"pandas": partition_id}), np.zeros(1, np.int64))],
            positions=lambda number: EventPlace("0", 0),
        )

    minutes = pa.ExtensionArray.from_storage(Minutes(), pa.array([7]))
    columns = {"0": minutes, "1": pa.array([8]), "2": minutes}
    batches = [rows(partition_id, column) for partition_id, column in columns.items()]
    assert commit_batches(database, batches) == [BatchResult(1, 0, 0, 0, 1)] * 3
    assert [row[2] for row in rows_in(database)] == [7, 8, 7]


def test_batches_that_do_not_belong_together_are_refused(database: Database) -> None:
    """Nothing is written under another's name."""
    first, second = _batch("0", 0, 1), _batch("1", 0, 1)
    for others in (
        [_batch("0", 0, 1)],
        [replace(second, scope=replace(second.scope, pipeline_name="another"))],
        [replace(second, scope=replace(second.scope, event_hub_created_at_ms=7))],
        [replace(second, scope=replace(second.scope, lease_epoch=7))],
    ):
        with pytest.raises(InvalidArgumentError, match=r"together|different partitions"):
            commit_batches(database, [first, *others])
    with pytest.raises(InvalidArgumentError):
        commit_batches(database, [])
    assert row_count(database) == 0


def test_a_deadlock_with_anothers_rows_sends_each_its_own_way(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions write the same unique keys, in another order: both come through, each key once."""
    met = threading.Barrier(2)
    has_met = threading.local()
    insert = UnitOfWork.insert_values

    def insert_and_meet(unit: UnitOfWork, *arguments: Any) -> int:
        count = insert(unit, *arguments)
        if not hasattr(has_met, "first"):
            has_met.first = True
            met.wait(60)  # each has one key now, and wants the other's next
        return count

    monkeypatch.setattr(UnitOfWork, "insert_values", insert_and_meet)

    def batch(partition_id: str, key: int, **columns: str) -> PartitionBatch:
        row = {"sequence_number": key, "partition_id": "key", "delay": 0, **columns}
        pipeline = replace(PIPELINE, handler=lambda event: row)
        events = events_between(0, 1, partition_id=partition_id)
        return handled_batch(pipeline, _scope(partition_id, 0, 1), events)

    results: list[BatchResult] = []
    with Database.open(server_url) as database:
        database.ensure_table(flights)
        pairs = [
            [batch("0", 1), batch("2", 2, note="second")],
            [batch("1", 2), batch("3", 1, note="second")],
        ]
        _run(
            [threading.Thread(target=lambda p=p: results.extend(commit_batches(database, p))) for p in pairs]
        )
        assert row_count(database) == sum(result.rows for result in results) == 2
        assert sum(result.dead_letters for result in results) == 2
        assert _checkpoints(database) == dict.fromkeys("0123", 1)


def test_the_statements_do_not_grow_with_the_partitions(database: Database) -> None:
    """That is what it is for: for 16 checkpoints one statement that locks them, one that moves them."""
    commit_batches(database, [_batch(str(each), 0, 2) for each in range(16)])
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if schema.checkpoint.name in statement:
            statements.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        commit_batches(database, [_batch(str(each), 2, 4) for each in range(16)])
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert statements == ["SELECT", "UPDATE"]
    assert row_count(database) == 64
