"""A connection that breaks during COMMIT: what happened is found out, and never done twice.

A real proxy stands between the driver and a real server and cuts the line at chosen moments.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.sql.cutting_proxy import Cut, CuttingProxy
from tests.sql.support import (
    CONSUMER,
    PIPELINE,
    LogOfEvents,
    dead_numbers,
    event_with,
    events_between,
    flights,
    kill,
    row_count,
)
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer

from tidegate.model.errors import DatabaseUnavailableError, FencedError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.sql import (
    BatchResult,
    CheckpointReader,
    Database,
    DeadLetters,
    UnitOfWork,
    move_checkpoint,
    process_partition_batch,
)
from tidegate.sql.core import unit_of_work
from tidegate.sql.core.lost_commit import resolve_lost_commit
from tidegate.sql.stores.leases import LeaseTable


@pytest.fixture
def cut_database(proxied_url: str) -> Iterator[Database]:
    """A database behind the proxy."""
    with Database.open(proxied_url) as database:
        database.ensure_table(flights)
        yield database


def process(database: Database) -> BatchResult:
    """One batch of three rows and a dead letter."""
    events = [*events_between(0, 3), event_with({"delay": None}, 3)]
    return process_partition_batch(
        database, PIPELINE, "0", events, start_sequence_number=0, until_sequence_number=4
    )


def test_a_commit_whose_answer_is_lost_is_found_committed(
    cut_database: Database, proxy: CuttingProxy
) -> None:
    """The token in the checkpoint proves it; the caller is told of success, and nothing is sent again."""
    proxy.armed = Cut.AFTER_COMMIT
    assert process(cut_database) == BatchResult(3, 1, 0, 0, 4)
    assert proxy.cuts == 1
    assert (row_count(cut_database), dead_numbers(cut_database)) == (3, [3])


def test_a_commit_that_never_arrived_is_found_rolled_back(
    cut_database: Database, proxy: CuttingProxy
) -> None:
    """The caller hears that nothing was written, and the same batch then goes through."""
    proxy.armed = Cut.BEFORE_COMMIT
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):
        process(cut_database)
    assert (row_count(cut_database), dead_numbers(cut_database)) == (0, [])
    assert process(cut_database) == BatchResult(3, 1, 0, 0, 4)


def test_a_commit_cut_in_flight_is_one_or_the_other(cut_database: Database, proxy: CuttingProxy) -> None:
    """Whichever came true, what the caller hears agrees with what is stored."""
    proxy.armed = Cut.WITH_COMMIT
    try:
        process(cut_database)
    except DatabaseUnavailableError:
        assert row_count(cut_database) == 0
    else:
        assert row_count(cut_database) == 3
    process(cut_database)
    assert (row_count(cut_database), dead_numbers(cut_database)) == (3, [3])
    assert DeadLetters(cut_database).list()[0].attempts == 1


def test_a_redrive_whose_commit_is_lost_is_found_committed(
    cut_database: Database, proxy: CuttingProxy
) -> None:
    """The audit trail is the witness of a redrive: it counts once and closes the dead letter once."""
    events = [event_with({"delay": None}, 0)]
    process_partition_batch(
        cut_database, PIPELINE, "0", events, start_sequence_number=0, until_sequence_number=1
    )
    corrected = type(PIPELINE)(
        "flights", "flights", flights, lambda event: {"sequence_number": 0, "partition_id": "0", "delay": 0}
    )
    proxy.armed = Cut.BEFORE_COMMIT
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):
        DeadLetters(cut_database).redrive(corrected, LogOfEvents(events))
    proxy.armed = Cut.AFTER_COMMIT
    report = DeadLetters(cut_database).redrive(corrected, LogOfEvents(events))
    assert (proxy.cuts, report.redriven, report.rows) == (2, 1, 1)
    assert (row_count(cut_database), dead_numbers(cut_database)) == (1, [])


def test_an_owner_that_moved_on_meanwhile_is_not_taken_for_failure(
    cut_database: Database, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another token further on: the range is done, once; the late owner is sent to the checkpoint."""
    original = resolve_lost_commit

    def move_on_first(*arguments: Any) -> None:
        monkeypatch.setattr(unit_of_work, "resolve_lost_commit", original)
        process(cut_database)
        original(*arguments)

    monkeypatch.setattr(unit_of_work, "resolve_lost_commit", move_on_first)
    proxy.armed = Cut.BEFORE_COMMIT
    with pytest.raises(FencedError, match="this batch is done, once"):
        process(cut_database)
    assert row_count(cut_database) == 3


def test_statements_alone_leave_an_unknown_commit_unknown(
    cut_database: Database, proxy: CuttingProxy
) -> None:
    """Without a checkpoint, an audit row or a ledger entry there is no witness, and none is invented."""
    proxy.armed = Cut.AFTER_COMMIT
    with (
        pytest.raises(DatabaseUnavailableError, match="not known"),
        UnitOfWork(cut_database, CONSUMER) as unit,
    ):
        unit.insert_rows(flights, [{"sequence_number": 1, "partition_id": "0", "delay": 1}])


def test_a_backend_killed_before_commit_writes_nothing(server_url: str) -> None:
    """A lost connection in mid-transaction is reported as such, and the next batch gets a fresh one."""
    with Database.open(server_url) as database:
        database.ensure_table(flights)
        with pytest.raises(DatabaseUnavailableError, match="lost while"):
            lose_the_backend(database)
        assert row_count(database) == 0
        assert process(database).rows == 3
        assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == 4


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def killed_server(request: pytest.FixtureRequest) -> Iterator[PostgresqlServer | MariadbServer]:
    """A server of each kind that nobody else uses."""
    with type(request.getfixturevalue(request.param))() as server:
        yield server


@pytest.mark.parametrize("cut", Cut)
def test_a_server_killed_around_a_commit_is_asked_when_it_is_back(
    killed_server: PostgresqlServer | MariadbServer, cut: Cut
) -> None:
    """Before COMMIT arrives, while it is carried out, before its answer: the caller hears what is stored."""

    def kill_and_start() -> None:
        killed_server.stop()
        killed_server.start()

    proxy = CuttingProxy(killed_server.port, on_cut=kill_and_start)
    try:
        url = killed_server.create_database().replace(f":{killed_server.port}/", f":{proxy.port}/")
        with Database.open(url) as database:
            database.ensure_table(flights)
            proxy.armed = cut
            is_told = True
            try:
                process(database)
            except DatabaseUnavailableError:
                is_told = False
            assert _row_count_when_back(database) == (3 if is_told else 0)
            assert cut is Cut.WITH_COMMIT or is_told == (cut is Cut.AFTER_COMMIT)
            assert proxy.cuts == 1
            process(database)
            assert (row_count(database), dead_numbers(database)) == (3, [3])
            assert DeadLetters(database).list()[0].attempts == 1
    finally:
        proxy.close()


def _row_count_when_back(database: Database) -> int:
    """The server accepts connections a moment before it is ready."""
    while True:
        try:
            return row_count(database)
        except DatabaseUnavailableError:
            time.sleep(0.05)


def lose_the_backend(database: Database) -> None:
    """A transaction whose server process is ended in its middle, by an administrator so to say."""
    with UnitOfWork(database, CONSUMER) as unit:
        start = unit.lock("0")
        unit.insert_rows(flights, [{"sequence_number": 1, "partition_id": "0", "delay": 1}])
        kill(database, unit.connection)
        unit.advance("0", start, 5)


@pytest.mark.parametrize("cut", Cut)
def test_a_lease_whose_commit_is_lost_is_looked_at_again(
    cut_database: Database, proxy: CuttingProxy, cut: Cut
) -> None:
    """The caller hears that it is not known; what is stored is one change or none, and the next one fits."""
    leases = LeaseTable(cut_database)
    leases.read(CONSUMER)  # leases have a connection of their own, whose making commits, too
    proxy.armed = cut
    failure: DatabaseUnavailableError | None = None
    try:
        leases.acquire(CONSUMER, "0", "host-a", expected=None)
    except DatabaseUnavailableError as error:
        failure = error
    if failure is None:
        assert cut is Cut.WITH_COMMIT, "only there the answer may be faster than the cut"
    else:
        assert "not known" in str(failure)
    assert proxy.cuts == 1
    stored = leases.read(CONSUMER).leases
    assert [(each.owner, each.epoch, each.version) for each in stored.values()] in ([], [("host-a", 1, "1")])
    if cut is not Cut.WITH_COMMIT:
        assert len(stored) == (cut is Cut.AFTER_COMMIT)
    won = leases.acquire(CONSUMER, "0", "host-b", expected=stored.get("0"))
    if won is None:
        # The server had the commit, and carried it out between the two statements above.
        assert (cut, stored) == (Cut.WITH_COMMIT, {})
        stored = leases.read(CONSUMER).leases
        won = leases.acquire(CONSUMER, "0", "host-b", expected=stored["0"])
    assert won is not None
    assert won.epoch == len(stored) + 1


@pytest.mark.parametrize("target", [ProcessorCheckpoint("0", 7), ProcessorCheckpoint("0", None, "700")])
@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT])
def test_a_moved_checkpoint_whose_commit_is_lost_is_found_out(
    cut_database: Database, proxy: CuttingProxy, target: ProcessorCheckpoint, cut: Cut
) -> None:
    """A host is told what became of its checkpoint, with a sequence number or without."""
    proxy.armed = cut
    if cut is Cut.AFTER_COMMIT:
        assert move_checkpoint(cut_database, CONSUMER, target).is_moved
    else:
        with pytest.raises(DatabaseUnavailableError, match="rolled back"):
            move_checkpoint(cut_database, CONSUMER, target)
    assert proxy.cuts == 1
    assert move_checkpoint(cut_database, CONSUMER, target).is_moved == (cut is Cut.BEFORE_COMMIT)
    assert CheckpointReader(cut_database).read(CONSUMER)["0"].offset == target.offset
