"""Dead letters that consumers elsewhere add, and that are published again: on every kind of database."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from tidegate.model.errors import QuotaExceededError
from tidegate.sql import (
    CheckpointReader,
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterStatus,
    NewDeadLetter,
    UnitOfWork,
)
from tidegate.sql.dead_letters.republish import add_once, republish_next

CONSUMER = ConsumerKey("orders", "reports")
ALL = DeadLetterFilter(status=None)


def _letter(number: int, *, size: int = 3) -> NewDeadLetter:
    return NewDeadLetter(number, str(number), 1_000 + number, "E", "reason", payload=bytes([number]) * size)


def _add(database: Database, *numbers: int, partition_id: str = "0", open_max: int = 100) -> int:
    letters = [_letter(number) for number in numbers]
    return add_once(
        database, CONSUMER, partition_id, letters, open_max=open_max, event_hub_created_at_ms=1_000
    )


class _Log:
    """What was published."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[bytes]]] = []

    def publish(self, partition_id: str, copies: Sequence[bytes]) -> None:
        """One batch."""
        self.batches.append((partition_id, list(copies)))

    def drain(self, database: Database, filter: DeadLetterFilter = ALL, **more: int) -> None:
        """All that there are."""
        limits = {"events_max": 100, "bytes_max": 1_000} | more
        while republish_next(database, CONSUMER, filter, self.publish, actor="me", **limits) is not None:
            pass


def _attempts(database: Database) -> dict[int, tuple[DeadLetterStatus, int]]:
    found = DeadLetters(database).list(ALL)
    return {each.sequence_number: (each.status, each.attempts) for each in found}


def test_added_once(database: Database) -> None:
    """A repeat changes nothing; one that was closed is reopened; another event of that number replaces it."""
    assert (_add(database, 1, 2), _add(database, 2, 3)) == (2, 1)
    DeadLetters(database).discard(DeadLetterFilter(sequence_numbers=(1,)), reason="r")
    assert _add(database, 1, 2, 3) == 1
    assert _attempts(database) == {
        1: (DeadLetterStatus.OPEN, 2),
        2: (DeadLetterStatus.OPEN, 1),
        3: (DeadLetterStatus.OPEN, 1),
    }
    later = replace(_letter(3), enqueued_time_ms=9_000)
    assert add_once(database, CONSUMER, "0", [later], open_max=100, event_hub_created_at_ms=1_000) == 1


def test_those_of_an_earlier_hub_of_the_name_do_not_count(database: Database) -> None:
    """Nobody who uses the hub now can see or close them, so they must not use up its share."""
    assert _add(database, 1, 2, 3) == 3
    later = [replace(_letter(number), enqueued_time_ms=9_000) for number in (1, 5, 6)]
    limits = {"open_max": 3, "event_hub_created_at_ms": 5_000}
    assert add_once(database, CONSUMER, "0", later, **limits) == 3
    with pytest.raises(QuotaExceededError):
        add_once(database, CONSUMER, "1", [replace(_letter(7), enqueued_time_ms=9_000)], **limits)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_handlers_dead_letter_that_is_being_committed_stays(database: Database, is_first: bool) -> None:
    """An addition waits for the batch that writes it, under the checkpoint's lock, and finds it open; also
    for the first batch, which creates the checkpoint in the same transaction."""
    if not is_first:
        with UnitOfWork(database, CONSUMER) as unit:
            unit.lock("0")
    answers: list[int] = []
    adding = Thread(target=lambda: answers.append(_add(database, 1)))
    with UnitOfWork(database, CONSUMER, pipeline_name="live") as unit:
        unit.lock("0")
        adding.start()
        adding.join(0.3)
        unit.add_dead_letters("0", [_letter(1)])
        adding.join(0.3)
    adding.join()
    (found,) = DeadLetters(database).list()
    assert (answers, found.pipeline, found.attempts) == ([0], "live", 1)


def test_a_handlers_first_batch_waits_for_an_addition(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds no checkpoint, as that of the addition is deleted again, and creates its own behind it."""
    is_adding, may_end, write = Event(), Event(), UnitOfWork.add_dead_letters

    def write_later(unit: UnitOfWork, *args: Any) -> int:
        if unit.pipeline_name != "live":
            is_adding.set()
            may_end.wait(60)
        return write(unit, *args)

    def handle() -> None:
        with UnitOfWork(database, CONSUMER, pipeline_name="live") as unit:
            position = unit.lock("0")
            unit.add_dead_letters("0", [_letter(1)])
            unit.advance("0", position, 2)

    monkeypatch.setattr(UnitOfWork, "add_dead_letters", write_later)
    with ThreadPoolExecutor(2) as threads:
        added = threads.submit(_add, database, 1)
        assert is_adding.wait(60)
        handled = threads.submit(handle)
        is_early = not wait([handled], 0.3).not_done
        may_end.set()
        handled.result()
    (found,) = DeadLetters(database).list()
    assert (is_early, added.result(), found.pipeline, found.attempts) == (False, 1, "live", 1)
    assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == 2


def test_additions_beside_first_batches(database: Database) -> None:
    """In any order: no batch fails, no addition replaces a handler's dead letter, and all checkpoints
    are those of the batches."""
    partition_ids = [str(number) for number in range(8)]

    def handle(partition_id: str) -> None:
        with UnitOfWork(database, CONSUMER, pipeline_name="live") as unit:
            position = unit.lock(partition_id)
            unit.add_dead_letters(partition_id, [_letter(1)])
            unit.advance(partition_id, position, 2)

    def add(partition_id: str) -> None:
        for _ in range(3):
            _add(database, 1, partition_id=partition_id, open_max=1_000)

    with ThreadPoolExecutor(3) as threads:
        for partition_id in partition_ids:
            working = [threads.submit(work, partition_id) for work in (add, handle, add)]
            for each in working:
                each.result()
    found = DeadLetters(database).list()
    assert [(each.pipeline, each.attempts) for each in found] == [("live", 1)] * len(partition_ids)
    stored = CheckpointReader(database).read(CONSUMER)
    assert {key: each.next_sequence_number for key, each in stored.items()} == dict.fromkeys(partition_ids, 2)


def test_an_addition_leaves_no_checkpoint(database: Database) -> None:
    """Clients could fill the table with those of groups that they delete; one that was there stays."""
    assert _add(database, 1) == 1
    with pytest.raises(QuotaExceededError):
        _add(database, 2, open_max=1)
    assert CheckpointReader(database).read(CONSUMER) == {}
    with UnitOfWork(database, CONSUMER) as unit:
        unit.lock("0")
    assert _add(database, 1, 2) == 1
    assert CheckpointReader(database).read(CONSUMER).keys() == {"0"}


def test_a_handlers_attempts_begin_with_its_own(database: Database) -> None:
    """Otherwise clients could use up the attempts of a pipeline's redrive before the pipeline has failed."""
    log = _Log()
    for _ in range(3):
        assert _add(database, 1) == 1
        log.drain(database)
    for attempts in (1, 2):
        with UnitOfWork(database, CONSUMER, pipeline_name="live") as unit:
            unit.lock("0")
            unit.add_dead_letters("0", [_letter(1)])
        assert _attempts(database) == {1: (DeadLetterStatus.OPEN, attempts)}


def test_no_more_open_ones_than_allowed(database: Database) -> None:
    """Counted over all partitions of the consumer; nothing of the refused ones is written."""
    assert _add(database, 1, 2, open_max=3) == 2
    with pytest.raises(QuotaExceededError):
        _add(database, 3, 4, partition_id="1", open_max=3)
    assert _add(database, 3, partition_id="1", open_max=3) == 1
    with pytest.raises(QuotaExceededError):
        _add(database, *range(10), partition_id="2", open_max=3)
    assert _add(database, 1, 2, open_max=3) == 0


def test_published_in_order_within_limits(database: Database) -> None:
    """By partition (2 before 10) and number, within events and bytes; each is closed with its record."""
    for partition_id in ("10", "2"):
        _add(database, 3, 1, 2, partition_id=partition_id)
    log = _Log()
    log.drain(database, bytes_max=7)
    assert log.batches == [
        ("2", [b"\1\1\1", b"\2\2\2"]),
        ("2", [b"\3\3\3"]),
        ("10", [b"\1\1\1", b"\2\2\2"]),
        ("10", [b"\3\3\3"]),
    ]
    assert {each.action for each in DeadLetters(database).audit()} == {"redriven"}
    assert len(DeadLetters(database).audit()) == 6


def test_a_larger_one_goes_alone(database: Database) -> None:
    """One beyond the limit of bytes is published, too."""
    _add(database, 1, 2)
    log = _Log()
    log.drain(database, bytes_max=1)
    assert [len(copies) for _, copies in log.batches] == [1, 1]


def test_what_is_not_published_is_not_closed(database: Database) -> None:
    """An error of the log undoes the transaction."""
    _add(database, 1)

    def refuse(partition_id: str, copies: Sequence[bytes]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        republish_next(database, CONSUMER, ALL, refuse, events_max=9, bytes_max=9, actor="me")
    assert _attempts(database) == {1: (DeadLetterStatus.OPEN, 1)}
    assert DeadLetters(database).audit() == []


def test_two_redrives_publish_each_event_once(database: Database) -> None:
    """They take turns at the rows: nothing is published twice."""
    _add(database, *range(20))
    log, start = _Log(), Barrier(2)

    def redrive() -> None:
        start.wait()
        log.drain(database, events_max=3)

    threads = [Thread(target=redrive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(copy for _, copies in log.batches for copy in copies) == [
        bytes([number]) * 3 for number in range(20)
    ]
