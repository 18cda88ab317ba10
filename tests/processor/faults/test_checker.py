"""The checker of the fault tests finds what it is there for: one wrong thing at a time, put in by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, insert, update
from tests.processor.faults.checker import (
    CommittedCall,
    Totals,
    check_calls,
    check_journal,
    check_journal_lines,
    check_transactional,
    read_journal_totals,
    read_totals,
)
from tests.processor.faults.work import (
    PARTITION_COUNT,
    Fate,
    committed_calls,
    consumer_of,
    fate_of,
    partition_ids,
    sink,
)

from tidegate.sql import Database, NewDeadLetter, UnitOfWork
from tidegate.sql.core.schema import dead_letter

HUB = "hub"
EACH = 130
"""Events of a partition: enough for both kinds of failing ones."""
EVENTS = EACH * PARTITION_COUNT


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database file in which everything is as it has to be."""
    path = tmp_path_factory.mktemp("checker") / "right.db"
    with Database.open(f"sqlite:///{path}") as database:
        database.ensure_table(sink)
        database.ensure_table(committed_calls)
        for partition_id in partition_ids():
            process(database, partition_id)
    # The last connection that closes moves what is in the WAL into the file.
    return path.read_bytes()


def process(database: Database, partition_id: str) -> None:
    """One right transaction for a partition."""
    numbers = {each: each * PARTITION_COUNT + int(partition_id) for each in range(EACH)}
    with UnitOfWork(database, consumer_of(HUB), owner="a", lease_epoch=1) as unit:
        start = unit.lock(partition_id)
        rows = [
            {"partition_id": partition_id, "sequence_number": each, "event_number": number}
            for each, number in numbers.items()
            if fate_of(number) is Fate.ROW
        ]
        unit.connection.execute(sink.insert(), rows)
        error_types = {Fate.RAISED: "PoisonError", Fate.PUT_ASIDE: "PutAside"}
        letters = [
            NewDeadLetter(each, str(each), 0, error_types[fate_of(number)], "on purpose")
            for each, number in numbers.items()
            if fate_of(number) is not Fate.ROW
        ]
        unit.add_dead_letters(partition_id, letters)
        call = {"partition_id": partition_id, "owner": "a", "epoch": 1, "start": 0, "until": EACH}
        unit.connection.execute(committed_calls.insert(), call)
        unit.advance(partition_id, start, EACH)


@pytest.fixture
def database(pattern: bytes, tmp_path: Path) -> Iterator[Database]:
    """A copy of it."""
    path = tmp_path / "copy.db"
    path.write_bytes(pattern)
    with Database.open(f"sqlite:///{path}") as database:
        yield database


def _row(partition_id: str, sequence_number: int, event_number: int) -> dict[str, object]:
    return {
        "partition_id": partition_id,
        "sequence_number": sequence_number,
        "event_number": event_number,
    }


IN_3 = sink.c.partition_id == "3"
WRONGS: dict[str, tuple[Callable[[Connection], object], str]] = {
    "a row twice": (
        lambda connection: connection.execute(insert(sink), _row("3", 5, 5 * PARTITION_COUNT + 3)),
        "partition 3: 1 rows are there twice",
    ),
    "a row missing": (
        lambda connection: connection.execute(delete(sink).where(IN_3, sink.c.sequence_number == 7)),
        "are not 130 events",
    ),
    "the last row missing": (
        lambda connection: connection.execute(delete(sink).where(IN_3, sink.c.sequence_number == EACH - 1)),
        "are not from 0 to 129",
    ),
    "another event's row": (
        lambda connection: connection.execute(
            update(sink).where(IN_3, sink.c.sequence_number == 7).values(event_number=8)
        ),
        "partition 3: 1 rows are of other events",
    ),
    "a dead letter missing": (
        lambda connection: connection.execute(
            delete(dead_letter).where(dead_letter.c.partition_id == "5", dead_letter.c.sequence_number == 6)
        ),
        "partition 5",
    ),
    "both a row and a dead letter": (
        lambda connection: connection.execute(insert(sink), _row("5", 6, 6 * PARTITION_COUNT + 5)),
        "partition 5: 1 rows are dead letters, too",
    ),
    "a dead letter for the wrong reason": (
        lambda connection: connection.execute(
            update(dead_letter)
            .where(dead_letter.c.partition_id == "5", dead_letter.c.sequence_number == 6)
            .values(error_type="PoisonError")
        ),
        "event 101 is a dead letter for PoisonError",
    ),
    "a call under an older epoch": (
        lambda connection: connection.execute(
            insert(committed_calls),
            {"partition_id": "2", "owner": "b", "epoch": 0, "start": EACH, "until": EACH + 1},
        ),
        "an older owner committed after a newer one",
    ),
}


def test_what_is_right_is_found_right(database: Database) -> None:
    """No finding where there is nothing, and the totals are what is there."""
    assert check_transactional(database, HUB, EVENTS) == []
    totals = read_totals(database, HUB)
    failing = sum(fate_of(number) is not Fate.ROW for number in range(EVENTS))
    assert totals == Totals(EVENTS - failing, failing, seen_again=0, takeovers=0, owners=frozenset({"a"}))


@pytest.mark.parametrize("name", WRONGS)
def test_what_is_wrong_is_found(database: Database, name: str) -> None:
    """Each of these is what one broken promise would leave behind."""
    spoil, words = WRONGS[name]
    with database.writing() as connection, connection.begin():
        spoil(connection)
    findings = check_transactional(database, HUB, EVENTS)
    assert any(words in finding for finding in findings), findings


def test_a_checkpoint_that_stands_elsewhere_is_found(database: Database) -> None:
    """Too many events expected is the same as a checkpoint that is behind."""
    findings = check_transactional(database, HUB, EVENTS + PARTITION_COUNT)
    assert "partition 0: the checkpoint stands at 130, not at 131" in findings


def test_two_owners_of_one_epoch_and_overlaps_are_found() -> None:
    """The account of who processed what: one owner per epoch, ranges side by side."""
    first = CommittedCall("1", "a", 1, 0, 10)
    assert check_calls([first, CommittedCall("1", "b", 2, 10, 20), CommittedCall("2", "c", 1, 0, 5)]) == []
    assert "had epoch 1" in check_calls([first, CommittedCall("1", "b", 1, 10, 20)])[0]
    assert "overlap" in check_calls([first, CommittedCall("1", "b", 2, 9, 20)])[0]


def test_a_journal_in_order_is_found_right(tmp_path: Path) -> None:
    """A second owner may see again what was not checkpointed, and an instance may be given a call again."""
    lines = ["open a 1 x", "seen a 1 x 0 3 3", "checkpointed a 1 x 3", "seen a 1 x 3 5 2", "seen a 1 x 3 6 3"]
    lines += ["open b 2 y", "seen b 2 y 3 6 3", "checkpointed b 2 y 6", "close b 2 y shutdown"]
    assert check_journal_lines("0", lines, 6) == []
    for partition_id in partition_ids():
        (tmp_path / partition_id).write_text("".join(f"{line}\n" for line in lines))
    assert check_journal(tmp_path, 6 * PARTITION_COUNT) == []
    assert read_journal_totals(tmp_path) == Totals(
        rows=6 * PARTITION_COUNT, dead_letters=0, seen_again=5 * PARTITION_COUNT, takeovers=PARTITION_COUNT
    )
    (tmp_path / "9").unlink()
    assert check_journal(tmp_path, 6 * PARTITION_COUNT) == ["partition 9: 0 of 6 events were seen"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["seen a 1 x 0 3 3", "open b 2 y", "seen b 2 y 4 6 2"], "3 was not seen before"),
        (["seen a 1 x 0 6 3"], "3 events from 0 to 6"),
        (["seen a 1 x 0 3 3", "checkpointed a 1 x 3", "seen a 1 x 0 6 6"], "3 had to be next"),
        (["seen a 1 x 0 3 3", "seen a 1 x 3 6 3"], "0 had to be next"),
        (["seen a 1 x 0 5 5"], "5 of 6 events were seen"),
    ],
)
def test_a_journal_out_of_order_is_found(lines: list[str], words: str) -> None:
    """A gap, a hole, a repetition of what was checkpointed, a step beyond what failed, an end too early."""
    findings = check_journal_lines("0", lines, 6)
    assert any(words in finding for finding in findings), findings
