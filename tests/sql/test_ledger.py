"""The ledger of micro-batches: what it allows, what it refuses, and that one of two drivers commits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from tests.sql.cutting_proxy import Cut, CuttingProxy

from tidegate.model.errors import DatabaseUnavailableError, FencedError, LedgerMismatchError
from tidegate.sql import ConsumerKey, Database, UnitOfWork, forget_query, next_batch_id
from tidegate.sql.core.schema import batch_ledger
from tidegate.sql.ledger.ledger import BatchLedger, Decision, LedgerState, MicroBatch, decide_batch

CONSUMER = ConsumerKey("ledger", "test")


def micro_batch(number: int, *, query: str = "q", run: str = "run", content: str = "") -> MicroBatch:
    """A batch whose fingerprint follows from its number, unless something else is said."""
    return MicroBatch(query, run, number, content or f"offsets {number}")


def known(next_batch_id: int, number: int | None = None, fingerprint: str | None = None) -> LedgerState:
    """A ledger of the query ``q``, asked about batch ``number``, whose row it has."""
    return LedgerState("q", next_batch_id, number is not None, fingerprint)


def test_the_next_batch_is_written_and_the_same_one_again_is_not() -> None:
    """What happens every day: the first batch, the next, and one that Spark repeats after a crash."""
    assert decide_batch(None, micro_batch(0)) is Decision.WRITE
    assert decide_batch(known(5), micro_batch(5)) is Decision.WRITE
    assert decide_batch(known(5, 4, "offsets 4"), micro_batch(4)) is Decision.SKIP
    assert decide_batch(known(5, 2, "offsets 2"), micro_batch(2)) is Decision.SKIP


def test_batches_that_a_run_itself_left_out_are_no_gap() -> None:
    """A function of the user's that gives the sink nothing for a batch without rows."""
    assert decide_batch(known(3), replace(micro_batch(5), previous_id=2)) is Decision.WRITE
    with pytest.raises(LedgerMismatchError, match="let it call write for each micro-batch"):
        decide_batch(known(3), micro_batch(5))


def test_a_database_restored_under_a_run_is_a_gap() -> None:
    """The run has written batch 3, which a backup of the database lacks."""
    with pytest.raises(LedgerMismatchError, match="after restoring a backup"):
        decide_batch(known(3), replace(micro_batch(4), previous_id=3))


def test_without_fingerprints_only_the_last_batch_may_come_again() -> None:
    """Where Spark's journal cannot be read, an older batch cannot be told from another one."""
    unread = MicroBatch("q", "run", 4, None)
    assert decide_batch(known(5, 4, "offsets 4"), unread) is Decision.SKIP
    with pytest.raises(LedgerMismatchError, match="has other events than"):
        decide_batch(known(6, 4, None), unread)


@pytest.mark.parametrize(
    ("state", "batch", "words"),
    [
        (None, micro_batch(3), "first batch that the ledger sees of this query is number 3"),
        (known(7), micro_batch(0, query="new"), "by another checkpoint directory"),
        (known(3), micro_batch(5), "Batch 5 was started, and the ledger expects 3"),
        (
            known(9, 4, "offsets 4"),
            micro_batch(4, content="more"),
            "has other events than",
        ),
        (known(9), micro_batch(4), "has other events than"),
    ],
    ids=["unknown query", "new checkpoint", "restored database", "restored checkpoint", "pruned row"],
)
def test_what_could_lose_or_double_is_refused_until_the_user_says_so(
    state: LedgerState | None, batch: MicroBatch, words: str
) -> None:
    """Each refusal names the token that allows just this batch of this query, and no other."""
    with pytest.raises(LedgerMismatchError, match=words) as caught:
        decide_batch(state, batch)
    assert f"adopt='{batch.adoption}'" in str(caught.value)
    assert decide_batch(state, batch, batch.adoption) is Decision.ADOPT
    with pytest.raises(LedgerMismatchError):
        decide_batch(state, batch, micro_batch(batch.batch_id + 1, query=batch.query_id).adoption)


def write_batch(database: Database, ledger: BatchLedger, batch: MicroBatch, epoch: int) -> bool:
    """One transaction of a driver; whether it wrote."""
    with UnitOfWork(database, CONSUMER) as unit:
        if not ledger.enter(unit, batch, epoch):
            return False
        ledger.record(unit, batch, rows=1, dead_letters=0)
    return True


def test_a_batch_is_entered_once(database: Database) -> None:
    """A micro-batch that is run again finds itself committed; one that was rolled back does not."""
    ledger = BatchLedger(database, "averages")
    epoch = ledger.claim(micro_batch(0))
    with UnitOfWork(database, CONSUMER) as unit:
        assert ledger.enter(unit, micro_batch(0), epoch)
        ledger.record(unit, micro_batch(0), rows=1, dead_letters=0)
        unit.rollback()
    assert [write_batch(database, ledger, micro_batch(0), epoch) for _ in range(2)] == [True, False]
    assert write_batch(database, ledger, micro_batch(1), epoch)
    assert ledger.is_committed(micro_batch(1))
    assert not ledger.is_committed(micro_batch(2))


def test_the_driver_started_last_owns_the_query(database: Database) -> None:
    """A run that was overtaken commits nothing, and its own run id gives it no second claim."""
    ledger = BatchLedger(database, "averages")
    old = ledger.claim(micro_batch(0, run="old"))
    new = ledger.claim(micro_batch(0, run="new"))
    assert ledger.claim(micro_batch(0, run="new")) == new
    with pytest.raises(FencedError, match="Another driver took over the query averages"):
        write_batch(database, ledger, micro_batch(0, run="old"), old)
    assert write_batch(database, ledger, micro_batch(0, run="new"), new)


def test_a_new_checkpoint_directory_is_refused_and_can_be_adopted(database: Database) -> None:
    """Its batches count from 0: by the name alone they would be skipped, and their rows lost."""
    ledger = BatchLedger(database, "averages")
    epoch = ledger.claim(micro_batch(0))
    for number in range(3):
        assert write_batch(database, ledger, micro_batch(number), epoch)
    new = micro_batch(0, query="new", run="second")
    with pytest.raises(LedgerMismatchError, match="another checkpoint directory"):
        ledger.claim(new)
    allowed = BatchLedger(database, "averages", adoption=new.adoption)
    epoch = allowed.claim(new)
    assert not allowed.is_committed(new)
    assert write_batch(database, allowed, new, epoch)
    # The token stays in the program, and the directory is lost again.
    with pytest.raises(LedgerMismatchError):
        allowed.claim(micro_batch(0, query="newer", run="third"))


def test_a_query_can_be_asked_about_and_forgotten(database: Database) -> None:
    """Its next batch; then it begins at 0 again with another checkpoint directory, and no other one does."""
    for name in ("averages", "other"):
        assert next_batch_id(database, name) is None
        ledger = BatchLedger(database, name)
        epoch = ledger.claim(micro_batch(0))
        assert next_batch_id(database, name) == 0
        for number in range(3):
            assert write_batch(database, ledger, micro_batch(number), epoch)
        assert next_batch_id(database, name) == 3
    with database.writing() as connection, connection.begin():
        forget_query(connection, "averages")
    assert (next_batch_id(database, "averages"), next_batch_id(database, "other")) == (None, 3)
    again = BatchLedger(database, "averages")
    first = micro_batch(0, query="new")
    assert write_batch(database, again, first, again.claim(first))


def test_old_rows_of_the_ledger_go(database: Database) -> None:
    """The table does not grow with the age of a query; other queries' rows are left alone."""
    other = BatchLedger(database, "other")
    write_batch(database, other, micro_batch(0), other.claim(micro_batch(0)))
    ledger = BatchLedger(database, "averages", batches_kept=3)
    epoch = ledger.claim(micro_batch(0))
    for number in range(10):
        write_batch(database, ledger, micro_batch(number), epoch)
    with database.read() as connection:
        left = connection.execute(
            select(batch_ledger.c.query_name, batch_ledger.c.batch_id).order_by(batch_ledger.c.batch_id)
        ).all()
    assert [tuple(row) for row in left] == [("other", 0), ("averages", 7), ("averages", 8), ("averages", 9)]


def test_a_lost_commit_is_found_out(proxied_url: str, proxy: CuttingProxy) -> None:
    """The line breaks before and after COMMIT: the ledger tells which of them it was, and nothing doubles."""
    with Database.open(proxied_url) as database:
        ledger = BatchLedger(database, "averages")
        epoch = ledger.claim(micro_batch(0))
        database.engine().dispose()  # a pooled connection has written before, and would be cut too early
        proxy.armed = Cut.BEFORE_COMMIT
        with pytest.raises(DatabaseUnavailableError, match="rolled back"):
            write_batch(database, ledger, micro_batch(0), epoch)
        proxy.armed = Cut.AFTER_COMMIT
        assert write_batch(database, ledger, micro_batch(0), epoch)
        assert not write_batch(database, ledger, micro_batch(0), epoch)
        proxy.armed = Cut.AFTER_COMMIT
        assert ledger.claim(micro_batch(1, run="next")) == epoch + 1
        assert proxy.cuts == 3
        with database.read() as connection:
            assert connection.execute(select(func.count()).select_from(batch_ledger)).scalar_one() == 1


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.sampled_from(["run", "crash before", "crash between", "restore"]), max_size=30))
def test_no_history_of_spark_loses_or_doubles_a_batch(history: list[str]) -> None:
    """Spark as a model: it plans a batch (its content is what has come since), writes it, notes it as done.

    It crashes before the database's commit, between that and its own note, or its directory is restored from
    a backup. Whatever happens: what was written is a gapless run of the log without repetition, or the ledger
    has refused.
    """
    written: list[str] = []
    state: LedgerState | None = None
    rows: dict[int, str] = {}
    planned: dict[int, str] = {}
    noted, log, backup = 0, 0, (0, dict(planned))
    for step in history:
        if step == "restore":
            noted, planned = backup[0], dict(backup[1])
            continue
        if len(written) == 3:
            backup = noted, dict(planned)
        log += 1
        start = int(planned[noted - 1].split("-")[1]) if noted else 0
        content = planned.setdefault(noted, f"{start}-{log}")
        asked = None if state is None else LedgerState("q", len(rows), noted in rows, rows.get(noted))
        try:
            decision = decide_batch(asked, micro_batch(noted, content=content))
        except LedgerMismatchError:
            assert "restore" in history, "only a restored directory may be refused"
            break
        if step == "crash before":
            continue
        if decision is Decision.WRITE:
            written.append(content)
            rows[noted] = content
            state = LedgerState("q", len(rows))
        if step == "run":
            noted += 1
    ends = [part.split("-") for part in written]
    assert all(before[1] == after[0] for before, after in pairwise(ends))
