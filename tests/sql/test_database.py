"""Opening databases: settings, schema, forks, replaced files, and errors that tell what to do."""

from __future__ import annotations

import builtins
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, make_url, text
from tests.sql.support import CONSUMER, flights, row_count
from tests.support.postgresql import PASSWORD

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError
from tidegate.sql import AuditEntry, Checkpoint, Database, DeadLetter, UnitOfWork
from tidegate.sql.core import schema, writer_lock
from tidegate.sql.core.database import shown_url
from tidegate.sql.core.writer_lock import WriterLock
from tidegate.sql.stores.checkpoints import existing_database


def test_tables_are_made_once_and_kept(database_url: str) -> None:
    """A second opening finds the same version and the same data."""
    with Database.open(database_url) as database, UnitOfWork(database, CONSUMER) as unit:
        unit.advance("0", unit.lock("0"), 5)
    with Database.open(database_url) as database, database.read() as connection:
        assert schema.current_version(connection) == len(schema.MIGRATIONS)
        assert connection.execute(text("SELECT next_sequence_number FROM tidegate_checkpoint")).scalar() == 5


def test_columns_are_the_fields_of_the_values() -> None:
    """Rows become values by name, so the two must not drift apart."""
    for table, value in (
        (schema.checkpoint, Checkpoint),
        (schema.dead_letter, DeadLetter),
        (schema.dead_letter_audit, AuditEntry),
    ):
        columns = {column.name for column in table.columns} - {"id"}
        assert columns == {field.name for field in fields(value)}


def test_many_may_open_a_new_database_at_once(database_url: str) -> None:
    """Creating the tables is serialised: everyone succeeds."""
    errors: list[BaseException] = []

    def open_it() -> None:
        try:
            Database.open(database_url).close()
        except BaseException as error:  # the main thread reports it
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    """An old program does not write to tables it does not know."""
    with Database.open(database_url) as database, UnitOfWork(database, CONSUMER) as unit:
        unit.connection.execute(text("UPDATE tidegate_schema_version SET version = 99 WHERE version = 1"))
    with pytest.raises(DatabaseError, match=r"version 99.*Upgrade Tidegate"):
        Database.open(database_url)


def test_sqlite_is_durable_and_concurrent(sqlite_url: str) -> None:
    """WAL, so that readers do not wait; synchronous=FULL, so that a commit survives power loss."""
    with Database.open(sqlite_url) as database, database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_postgresql_notices_that_the_other_machine_is_gone(postgresql_url: str) -> None:
    """Each side asks after a silent other one within seconds: neither waits nor holds locks for hours."""
    with Database.open(postgresql_url) as database, database.read() as connection:
        parameters = psycopg_connection(connection).info.get_parameters()
        assert (parameters["keepalives_idle"], parameters["tcp_user_timeout"]) == ("10", "30000")
        assert connection.execute(text("SHOW tcp_keepalives_idle")).scalar_one() == "10"
    own = make_url(postgresql_url).update_query_dict({"keepalives_idle": "77"})
    with Database.open(own) as database, database.read() as connection:
        assert psycopg_connection(connection).info.get_parameters()["keepalives_idle"] == "77"


def psycopg_connection(connection: Connection) -> psycopg.Connection[object]:
    found = connection.connection.driver_connection
    assert isinstance(found, psycopg.Connection)
    return found


def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    """The command line lists dead letters while a batch is being committed."""
    with UnitOfWork(database, CONSUMER) as unit:
        unit.insert_rows(flights, [{"sequence_number": 1, "partition_id": "0", "delay": 1}])
        assert row_count(database) == 0
    assert row_count(database) == 1


def test_waiting_for_another_writer_is_bounded(database_url: str) -> None:
    """A writer that never ends gives the next one a clear error instead of a hang."""
    with Database.open(database_url, lock_wait_s=0.1) as database:
        with UnitOfWork(database, CONSUMER) as maker:
            maker.lock("0")
        with UnitOfWork(database, CONSUMER) as first:
            first.lock("0")
            second = UnitOfWork(database, CONSUMER)
            with (
                pytest.raises(DatabaseUnavailableError, match=r"0\.1 s|lock timeout|Lock wait timeout"),
                second,
            ):
                second.lock("0")


def test_a_replaced_sqlite_file_is_noticed(tmp_path: Path, sqlite_url: str) -> None:
    """Nothing is written into a file that is no longer there under its name."""
    with Database.open(sqlite_url) as database:
        database.ensure_table(flights)
        for path in tmp_path.glob("tidegate.db*"):
            path.unlink()
        database.ensure_table(flights)
        with UnitOfWork(database, CONSUMER) as unit:
            unit.advance("0", unit.lock("0"), 5)
        with sqlite3.connect(tmp_path / "tidegate.db") as connection:
            found = connection.execute("SELECT next_sequence_number FROM tidegate_checkpoint").fetchall()
        connection.close()
        assert found == [(5,)]


def test_shared_is_one_per_process_and_url(sqlite_url: str) -> None:
    """Spark tasks ask for it again and again and get the same one."""
    database = Database.shared(sqlite_url)
    assert Database.shared(sqlite_url) is database
    database.close()


def test_a_lock_held_at_a_fork_does_not_outlive_its_owner(tmp_path: Path) -> None:
    """A child that is forked while the lock is held keeps nobody out once the parent lets go."""
    path = tmp_path / "x.db"
    reading, writing = os.pipe()
    with WriterLock(path, wait_s=1):
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
    try:
        with WriterLock(path, wait_s=1):
            pass
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lock_waited_for_at_a_fork_does_not_outlive_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is forked while a thread of its parent queues keeps nobody out either."""
    path = tmp_path / "x.db"
    reading, writing = os.pipe()
    waiting = WriterLock(path, wait_s=10)
    thread = threading.Thread(target=waiting.__enter__)
    is_waiting, sleep = threading.Event(), time.sleep

    def tell_and_sleep(delay_s: float) -> None:
        is_waiting.set()
        sleep(delay_s)

    monkeypatch.setattr(time, "sleep", tell_and_sleep)
    with WriterLock(path, wait_s=1):
        thread.start()
        assert is_waiting.wait(10)
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
    try:
        thread.join()
        waiting.release()
        with WriterLock(path, wait_s=1):
            pass
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_an_urgent_writer_comes_first(tmp_path: Path) -> None:
    """A renewal of leases does not wait until all batches of its process have had their turn."""
    path, order = tmp_path / "x.db", list[str]()

    def write(name: str, is_urgent: bool) -> None:
        with WriterLock(path, wait_s=30.0, is_urgent=is_urgent):
            order.append(name)

    threads = [threading.Thread(target=write, args=("batch", False)) for _ in range(4)]
    threads.append(threading.Thread(target=write, args=("renewal", True)))
    with WriterLock(path, wait_s=1.0):
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30.0
        while not writer_lock._urgent:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == ["renewal", "batch", "batch", "batch", "batch"]


def test_ensure_table_refuses_one_that_lacks_columns(database: Database) -> None:
    """Found before the first batch, not in its middle."""
    database.ensure_table(flights)
    wider = Table(
        "flights", MetaData(), *[Column(c.name, c.type) for c in flights.columns], Column("x", Integer)
    )
    with pytest.raises(DatabaseError, match="has no column x"):
        database.ensure_table(wider)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "Invalid database URL"),
        ("mysql://user:secret@host/db", "mysql"),
        ("sqlite://", "in-memory"),
        ("sqlite:////no/such/folder/x.db", "does not exist"),
        ("postgresql://user:secret@127.0.0.1:1/db", "Connection refused"),
        ("postgresql://user:secret@host:port/db", "Invalid database URL"),
        ("mariadb://user:secret@127.0.0.1:1/db", "Connection refused"),
        ("mariadb://user:secret@127.0.0.1:1", "names no database"),
        ("postgresql://127.0.0.1:1/db?user=u&password=secret", r"password=\.\.\..*Connection refused"),
        ("postgresql://127.0.0.1:1/db?sslpassword=secret&user=u", "user=u: .*Connection refused"),
        ("mariadb://user@127.0.0.1:1?password=secret", "names no database"),
    ],
)
@pytest.mark.slow
def test_urls_that_cannot_be_meant(url: str, words: str) -> None:
    """Each gives one error with a next step, and never the password."""
    for use in (Database.open, Database.describe, partial(existing_database, named_by="x")):
        with pytest.raises(DatabaseError, match=words if use == Database.open else None) as caught:
            use(url)
        assert caught.value.next_step
        assert "secret" not in str(caught.value)


def test_passwords_are_not_shown() -> None:
    """Where they are a parameter, either: libpq and PyMySQL take several of them; the rest is shown."""
    url = "postgresql://u:secret@h/db?passwd=secret&password=secret&password=secret&sslmode=require"
    shown = shown_url(url)
    assert shown == "postgresql://u:***@h/db?passwd=...&password=...&sslmode=require"
    assert shown_url("postgresql://u@h/db?oauth_client_secret=x") == (
        "postgresql://u@h/db?oauth_client_secret=..."
    )
    assert shown_url("sqlite:////data/pass.db") == "sqlite:////data/pass.db"


def test_a_wrong_password_is_named_and_not_shown(server_url: str) -> None:
    """The user hears which database refused, not what was sent to it."""
    with pytest.raises(DatabaseError, match="refused this user") as caught:
        Database.open(server_url.replace(PASSWORD, "wrong-secret"))
    assert "wrong-secret" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Some other file at the path is left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to have a header of its own" * 10)
    with pytest.raises(DatabaseError, match="not a SQLite database"):
        Database.open(f"sqlite:///{path}")


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever installed without PostgreSQL is told what to install."""
    real_import: Callable[..., Any] = builtins.__import__

    def import_without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", import_without)
    with pytest.raises(DatabaseError, match=r"pip install .*\[postgresql\]"):
        Database.open("postgresql://user@127.0.0.1:1/db")
