"""The driver that claimed last moves the checkpoints; everyone before it is shut out inside the database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import sqlalchemy
from tests.spark.support import readings

from tidegate.model.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    FencedError,
)
from tidegate.processor import GroupKey, Lease
from tidegate.spark.source.journal import journalled_offset
from tidegate.spark.source.offsets import StreamOffset
from tidegate.spark.source.ownership import Claim, checkpoint_positions, claim_checkpoints
from tidegate.sql import ConsumerKey, Database, SqlStore, UnitOfWork
from tidegate.sql.commit.batch import commit_batches
from tidegate.sql.commit.engine import BatchScope
from tidegate.sql.commit.partition_batch import computed_batch
from tidegate.sql.core.database import absolute_url, sqlite_file
from tidegate.sql.core.values import EventPlace, PartitionRows
from tidegate.sql.stores.checkpoints import existing_database

_CONSUMER = ConsumerKey("readings")
_CREATED_AT_MS = 1_700_000_000_000


@pytest.fixture
def database(database_url: str) -> Database:
    """An open database of each kind."""
    database = Database.shared(database_url)
    database.ensure_table(readings)
    return database


def _claim(
    database: Database, created_at_ms: int = _CREATED_AT_MS, *, starts: Mapping[str, int] | None = None
) -> Claim:
    starts = {"0": 0, "1": 10} if starts is None else starts
    return claim_checkpoints(
        database,
        _CONSUMER,
        event_hub_created_at_ms=created_at_ms,
        start_sequence_numbers=starts,
        begin_sequence_numbers={partition_id: int(partition_id) for partition_id in starts},
    )


def _commit(database: Database, claim: Claim, start: int, until: int) -> int:
    rows = PartitionRows(
        ("partition", "number", "value"),
        [("0", number, number) for number in range(start, until)],
        list(range(start, until)),
    )
    batch = computed_batch(
        readings,
        BatchScope(_CONSUMER, "0", start, until, owner=claim.owner, lease_epoch=claim.lease_epoch),
        [rows],
        positions=lambda number: EventPlace(str(number), 0),
    )
    return commit_batches(database, [batch])[0].rows


def test_a_claim_makes_the_checkpoints_that_are_missing(database: Database) -> None:
    """From the first claim on, SQL says where each partition goes on; a second claim moves nothing."""
    first = _claim(database)
    assert first.start_sequence_numbers == {"0": 0, "1": 10}
    _commit(database, first, 0, 5)
    second = _claim(database)
    assert second.start_sequence_numbers == {"0": 5, "1": 10}
    assert second.lease_epoch == first.lease_epoch + 1
    positions = checkpoint_positions(database, _CONSUMER, event_hub_created_at_ms=_CREATED_AT_MS)
    assert positions == {"0": 5, "1": 10}


def test_a_partition_added_between_two_claims_starts_at_its_beginning(database: Database) -> None:
    """Also where the query starts at the newest event: what was sent before its restart is not skipped. A
    checkpoint that was set by hand says nothing of the partitions that an owner had.
    """
    with UnitOfWork(database, _CONSUMER) as unit:
        unit.lock_checkpoint("0")
        unit.advance("0", None, 7, event_hub_created_at_ms=_CREATED_AT_MS)
    assert _claim(database).start_sequence_numbers == {"0": 7, "1": 10}
    grown = _claim(database, starts={"0": 90, "1": 91, "2": 92, "3": 93})
    assert grown.start_sequence_numbers == {"0": 7, "1": 10, "2": 2, "3": 3}
    assert _claim(database, starts=dict.fromkeys("0123", 99)).start_sequence_numbers == {
        **grown.start_sequence_numbers
    }


def test_a_row_that_a_dead_letter_created_is_no_partition_of_an_owner(database: Database) -> None:
    """A claim gives it an epoch; partitions that are added up to it start at their beginning all the same."""
    assert _claim(database).start_sequence_numbers == {"0": 0, "1": 10}
    with UnitOfWork(database, _CONSUMER) as unit:
        unit.lock("3")
    _claim(database)
    grown = _claim(database, starts={"0": 90, "1": 91, "2": 92, "3": 93})
    assert grown.start_sequence_numbers == {"0": 0, "1": 10, "2": 2, "3": 3}


def test_looking_for_checkpoints_makes_no_tables(database_url: str) -> None:
    """Not in somebody else's database, nor in an empty file; where there are tables it is the one to use."""
    path = sqlite_file(database_url)
    if path is not None:
        with pytest.raises(DatabaseError, match=r"The option x names the SQLite database .* does not exist"):
            existing_database(database_url, named_by="The option x")
        path.touch()
    engine = sqlalchemy.create_engine(absolute_url(database_url))
    for _ in range(2):
        with pytest.raises(DatabaseError, match=r"The option x names the database .* no tables of Tidegate"):
            existing_database(database_url, named_by="The option x")
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS theirs (n INTEGER)"))
            assert sqlalchemy.inspect(connection).get_table_names() == ["theirs"]
    engine.dispose()
    if path is not None:
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    Database.open(database_url).close()
    found = existing_database(database_url, named_by="The option x")
    assert found is Database.shared(database_url)
    assert checkpoint_positions(found, _CONSUMER, event_hub_created_at_ms=_CREATED_AT_MS) == {}


def test_a_database_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    """In the words of opening it: no SQLite file, no server."""
    path = tmp_path / "text.db"
    path.write_text("no database, but long enough to be told from one " * 20)
    with pytest.raises(DatabaseError, match="is not a SQLite database"):
        existing_database(f"sqlite:///{path}", named_by="The option x")
    with pytest.raises(DatabaseUnavailableError, match="No connection to the database") as caught:
        existing_database("postgresql://me:s3cret@127.0.0.1:1/none", named_by="The option x")
    assert "s3cret" not in str(caught.value)


def test_an_earlier_claim_commits_nothing_more(database: Database) -> None:
    """Neither new work nor work that the later owner has done already passes for done."""
    first = _claim(database)
    assert _commit(database, first, 0, 5) == 5
    assert _commit(database, first, 0, 5) == 0  # its own task, retried
    second = _claim(database)
    with pytest.raises(FencedError, match="lease epoch"):
        _commit(database, first, 5, 8)
    assert _commit(database, second, 5, 8) == 3
    with pytest.raises(FencedError, match="lease epoch"):
        _commit(database, first, 5, 8)


async def test_a_host_that_was_paused_before_its_first_commit_is_shut_out(database: Database) -> None:
    """A lease's epoch is not yet in the checkpoint then: the claim goes above it all the same."""
    store = SqlStore(database)
    group = GroupKey("localhost", "readings", "$Default")
    held: Lease | None = None
    for _ in range(3):
        held = await store.acquire(group, "0", "host", expected=held)
    assert held is not None
    claim = _claim(database)
    assert claim.lease_epoch > held.epoch
    with UnitOfWork(database, _CONSUMER, lease_epoch=held.epoch) as unit, pytest.raises(FencedError):
        unit.lock_checkpoint("0")
    await store.close()


def test_a_hub_made_anew_cannot_be_claimed(database: Database) -> None:
    """Its sequence numbers begin again, so the old checkpoints would leave its first events out."""
    _claim(database)
    with pytest.raises(EventHubReplacedError, match="deleted and created again"):
        _claim(database, _CREATED_AT_MS + 1)


def test_sparks_journal_is_read_where_it_can_be(tmp_path: Path) -> None:
    """The line of the only source; None for remote directories, other versions and several sources."""
    offset = StreamOffset({"0": 5}, 1)
    (tmp_path / "offsets").mkdir()
    line = '{"version":1,"eventHubCreatedAtMs":1,"partitions":{"0":5}}'
    (tmp_path / "offsets" / "3").write_text(f"v1\n{{}}\n{line}")
    (tmp_path / "offsets" / "4").write_text(f"v1\n{{}}\n{line}\n{line}")
    (tmp_path / "offsets" / "5").write_text(f"v9\n{{}}\n{line}")
    assert journalled_offset(str(tmp_path), 3) == offset
    assert journalled_offset(tmp_path.as_uri(), 3) == offset
    for batch_id in (4, 5, 6):
        assert journalled_offset(str(tmp_path), batch_id) is None
    assert journalled_offset("abfss://container@account/checkpoint", 3) is None
