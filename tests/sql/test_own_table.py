"""Dead letters in tables: the user's own, and ``tidegate_dead_letter`` as a manager's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, DateTime, Integer, LargeBinary, MetaData, String, Table, Text, select
from sqlalchemy.dialects import mysql
from tests.processor.hosts import PLAIN, QUICK, publish, until
from tests.sql.support import CONSUMER, events_between
from tests.sql.transaction_support import Partition, lease_of

from tidegate.model.errors import InvalidArgumentError, StoreUnavailableError
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.processor import (
    DeadLetterManager,
    EventProcessorHost,
    FailedEvent,
    GroupKey,
    TransactionContext,
)
from tidegate.processor.policies import FailurePolicy
from tidegate.sql import Database, DeadLetterFilter, DeadLetters, DeadLetterTable, SqlStore, UnitOfWork
from tidegate.sql.handlers.forms import form_of
from tidegate.sql.stores import processor_store
from tidegate.testing.dead_letters import DeadLetterManagerConformance, make_failed
from tidegate.testing.groups import make_group
from tidegate.testing.hub import HubService

own = Table(
    "own_dead_letter",
    MetaData(),
    Column("id", String(32), primary_key=True),
    Column("event_hub", String(60), nullable=False),
    Column("consumer_group", String(60), nullable=False),
    Column("sequence_number", Integer, nullable=False),
    Column("failed_at", DateTime(timezone=True), nullable=False),
    Column("error", String(80), nullable=False),
    Column("body", LargeBinary(2_000_000), nullable=False),
)

_FAILED_AT = datetime(2026, 1, 1, tzinfo=UTC)


class TestDeadLetterTable(DeadLetterManagerConformance):
    """A table that a user has declared, on each database."""

    @pytest.fixture(autouse=True)
    def _place(self, database: Database) -> None:
        self.database = database
        database.ensure_table(own)

    async def make_manager(self) -> DeadLetterManager:
        """On the test's database."""
        return DeadLetterTable(self.database, own)

    async def stored_ids(self, group: GroupKey) -> Sequence[str]:
        """The ids of the group's rows."""
        with self.database.read() as connection:
            return list(
                connection.execute(select(own.c.id).where(own.c.event_hub == group.event_hub)).scalars()
            )


class TestSqlStoreDeadLetters(DeadLetterManagerConformance):
    """The table that ``tidegate dlq`` reads, on each database: it has one row per event and group."""

    @pytest.fixture(autouse=True)
    def _place(self, database: Database) -> None:
        self.database = database

    async def make_manager(self) -> DeadLetterManager:
        """On the test's database."""
        return SqlStore(self.database)

    async def stored_ids(self, group: GroupKey) -> Sequence[str]:
        """Made from the rows, which keep no id."""
        letters = DeadLetters(self.database).list(DeadLetterFilter(event_hub=group.event_hub), limit=None)
        return [
            make_failed(group, each.sequence_number, partition_id=each.partition_id).id for each in letters
        ]


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
async def test_its_rows_join_the_transaction_that_moves_the_checkpoint(
    hub_service: HubService, database: Database, database_url: str
) -> None:
    """Also through another object for the same database, which would wait for the first one on SQLite; with
    the rows that a function makes, and once, although the batch is committed at its second attempt."""
    table = Table(
        "pointer", MetaData(), Column("id", String(32), primary_key=True), Column("what", String(20))
    )
    database.ensure_table(table)
    other, hub = Database.open(database_url), hub_service.create_hub(partition_count=1)
    store = SqlStore(database)

    def row_of(failed: FailedEvent) -> dict[str, object]:
        # In the transaction, nothing of which anybody else can see.
        with database.read() as connection:
            assert not connection.execute(select(table)).all()
        return {"what": f"{failed.event.sequence_number} {failed.reason}"}

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            if event.sequence_number in (1, 2):
                raise ValueError("bad")

    await publish(hub_service, hub, 4)
    host = EventProcessorHost(
        connection_string=hub_service.hub_connection_string(hub),
        store=store,
        dead_letters=DeadLetterTable(other, table, row_of),
        transactional=True,
        manager_options=QUICK,
        options=PLAIN,
    )
    async with host.running(handle):
        await until(lambda: host.statistics().events_total == 4)
    with database.read() as connection:
        assert sorted(connection.execute(select(table.c.what)).scalars()) == ["1 bad", "2 bad"]
    assert DeadLetters(database).count() == 0
    other.close()
    await store.close()


def test_a_table_needs_an_id(database: Database) -> None:
    """By which the second copy of a dead letter is known."""
    table = Table("without", MetaData(), Column("key", String(32), primary_key=True))
    with pytest.raises(InvalidArgumentError, match="no column id"):
        DeadLetterTable(database, table)


async def test_long_texts_are_cut_to_their_columns(database: Database) -> None:
    """A row that the database refuses would stop its partition for good."""
    database.ensure_table(own)
    failed = make_failed(make_group(), 7, error="x" * 500)
    await DeadLetterTable(database, own).add_failed_events([failed])
    with database.read() as connection:
        (error,) = connection.execute(select(own.c.error)).scalars()
    assert error == "x" * 79 + "…"


async def test_columns_without_a_length_are_cut_to_what_they_hold(database: Database) -> None:
    """MariaDB's TEXT and BLOB hold 65,535 bytes, whatever characters they are."""
    plain = Table(
        "plain",
        MetaData(),
        Column("id", String(32), primary_key=True),
        Column("error", Text),
        Column("body", LargeBinary),
        Column("error_type", Text().with_variant(mysql.LONGTEXT(), "mariadb")),
    )
    database.ensure_table(plain)
    event = ReceivedEvent("0", 7, "7", 1, contents=EventContents(b"x" * 70_000))
    kind = type("É" * 70_000, (Exception,), {})
    failed = FailedEvent(event, _FAILED_AT, kind("€" * 30_000), make_group())
    await DeadLetterTable(database, plain).add_failed_events([failed])
    with database.read() as connection:
        ((_, error, body, error_type),) = connection.execute(select(plain)).all()
    assert error_type == "É" * 70_000
    if database.dialect.name == "mariadb":
        assert (error, body) == ("€" * 21_844 + "…", b"x" * 65_535)
    else:
        assert (error, body) == ("€" * 30_000, b"x" * 70_000)


async def test_long_bodies_are_cut_to_their_columns(database: Database) -> None:
    """As text is, but only where the database would refuse more."""
    short = Table(
        "short", MetaData(), Column("id", String(32), primary_key=True), Column("body", LargeBinary(20))
    )
    database.ensure_table(short)
    event = ReceivedEvent("0", 7, "7", 1, contents=EventContents(b"x" * 300))
    failed = FailedEvent(event, _FAILED_AT, "no", make_group())
    await DeadLetterTable(database, short).add_failed_events([failed])
    with database.read() as connection:
        body = connection.execute(select(short.c.body)).scalar_one()
    assert body == b"x" * (300 if database.dialect.name in ("sqlite", "postgresql") else 20)


@pytest.mark.parametrize("column_type", [String(), None], ids=["no length", "no type"])
async def test_columns_that_no_table_can_be_made_of(mariadb_url: str, column_type: String | None) -> None:
    """A table made by other means is declared with as little as its statements need."""
    table = Table(
        "made", MetaData(), Column("id", String(32), primary_key=True), Column("error", column_type)
    )
    event = ReceivedEvent("0", 7, "7", 1, contents=EventContents(b"x"))
    with Database.open(mariadb_url) as database:
        with database.writing() as connection, connection.begin():
            connection.exec_driver_sql("CREATE TABLE made (id CHAR(32) PRIMARY KEY, error TEXT)")
        failed = FailedEvent(event, _FAILED_AT, "no", make_group())
        await DeadLetterTable(database, table).add_failed_events([failed])
        with database.read() as connection:
            assert connection.execute(select(table.c.error)).scalar_one() == "no"


class Hanging(DeadLetterTable):
    """A manager that does not return at first, as one whose own database is locked."""

    calls = 0
    is_cancelled = False

    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        """Hang once."""
        self.calls += 1
        if self.calls == 1:
            try:
                await asyncio.Event().wait()
            finally:
                self.is_cancelled = True
        await super().add_failed_events(failed)


async def test_a_manager_that_hangs_does_not_keep_the_transactions_locks(
    database: Database, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call has a limit; the error names it, nothing is committed, and the batch comes again."""

    def refuse(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        raise ValueError("bad")

    monkeypatch.setattr(processor_store, "_STORE_FAILED_S", 0.05)
    other = Database.open(f"{sqlite_url}.other")
    other.ensure_table(own)
    manager, lease = Hanging(other, own), lease_of(1)
    store = SqlStore(database)
    transactions = store.open_transactions(
        GroupKey("localhost", CONSUMER.event_hub, CONSUMER.consumer_group),
        lease,
        form_of(refuse, CONSUMER),
        Partition(lease),
        policy=FailurePolicy(),
        event_hub_created_at_ms=None,
        dead_letters=manager,
    )
    batch = transactions.process(events_between(0, 1), start_sequence_number=0, until_sequence_number=1)
    with pytest.raises(StoreUnavailableError, match=r"within 0.05 s: Hanging does not return"):
        await batch
    with UnitOfWork(database, CONSUMER) as unit:
        assert unit.lock("0") is None  # the locks are free, and nothing was committed
    monkeypatch.undo()
    await transactions.process(events_between(0, 1), start_sequence_number=0, until_sequence_number=1)
    assert manager.is_cancelled
    with other.read() as connection:
        assert len(connection.execute(select(own)).all()) == 1
    transactions.close()
    other.close()
    await store.close()
