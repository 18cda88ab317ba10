"""What the machine, the official SDK and the database can do by themselves, measured in the same run.

A ratio to one of these carries from one machine to another; an absolute figure does not.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from azure.eventhub import EventData as SdkEventData
from azure.eventhub import EventDataBatch as SdkEventDataBatch
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.message import Message as SdkMessage
from azure.eventhub._pyamqp.utils import amqp_long_value

from bench.measure import Measurement, timed

if TYPE_CHECKING:
    import psycopg

_CHUNK_BYTES = 1 << 20


def loopback_copy(payload_bytes: int, event_bytes: int) -> Measurement:
    """Move bytes over loopback TCP, one thread each side: what no service on TCP can pass."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def receive() -> None:
        nonlocal received
        buffer = bytearray(_CHUNK_BYTES)
        connection, _ = listener.accept()
        with connection:
            while count := connection.recv_into(buffer):
                received += count

    receiver = threading.Thread(target=receive)
    receiver.start()
    chunk = bytes(_CHUNK_BYTES)
    with timed(
        "loopback copy", events=payload_bytes // event_bytes, payload_bytes=payload_bytes
    ) as measurement:
        with socket.create_connection(listener.getsockname()) as sender:
            for _ in range(payload_bytes // _CHUNK_BYTES):
                sender.sendall(chunk)
        receiver.join()
    listener.close()
    measurement.payload_bytes = received
    return measurement


def disk_write(payload_bytes: int, event_bytes: int, directory: Path) -> Measurement:
    """Append 1 MiB at a time and fsync each: what a durable log on this disk cannot pass."""
    chunk = os.urandom(_CHUNK_BYTES)
    events = payload_bytes // event_bytes
    with (
        tempfile.NamedTemporaryFile(dir=directory) as file,
        timed("disk write + fsync", events=events, payload_bytes=payload_bytes) as measurement,
    ):
        for _ in range(payload_bytes // _CHUNK_BYTES):
            os.write(file.fileno(), chunk)
            os.fsync(file.fileno())
    return measurement


def sdk_encode(bodies: Sequence[bytes]) -> Measurement:
    """The official SDK builds and encodes batches, without a network: the ceiling of its producers."""
    with timed("official SDK encode", events=len(bodies), payload_bytes=sum(map(len, bodies))) as measurement:
        batch = SdkEventDataBatch(max_size_in_bytes=1 << 20)
        for body in bodies:
            event = SdkEventData(body)
            event.properties = {"device": "d-1", "kind": "reading"}
            try:
                batch.add(event)
            except ValueError:
                encode_payload(bytearray(), batch._message)
                batch = SdkEventDataBatch(max_size_in_bytes=1 << 20)
                batch.add(event)
        encode_payload(bytearray(), batch._message)
    return measurement


def sdk_decode(bodies: Sequence[bytes]) -> Measurement:
    """The official SDK decodes messages and reads their fields: the ceiling of its consumers."""
    message = SdkMessage(
        data=[bodies[0]],
        application_properties={"device": "d-1", "kind": "reading"},
        message_annotations={
            b"x-opt-sequence-number": amqp_long_value(1),  # type: ignore[no-untyped-call]
            b"x-opt-offset": "1",
            b"x-opt-enqueued-time": amqp_long_value(1_700_000_000_000),  # type: ignore[no-untyped-call]
        },
    )
    encoded = memoryview(bytes(encode_payload(bytearray(), message)))
    with timed("official SDK decode", events=len(bodies), payload_bytes=sum(map(len, bodies))) as measurement:
        for _ in bodies:
            event = SdkEventData._from_message(decode_payload(encoded))
            _ = (event.sequence_number, event.offset, event.body, event.properties)
    return measurement


def sqlite_bulk_insert(rows: Sequence[tuple[object, ...]], directory: Path) -> Measurement:
    """Insert rows of the pipeline's table by executemany, 16,000 a transaction: the database alone."""
    return _into_sqlite("SQLite executemany", rows, rows, 1, directory)


def sqlite_many_rows(rows: Sequence[tuple[object, ...]], directory: Path) -> Measurement:
    """The same with 100 rows to a statement, as ``tidegate.sql.core.bulk`` does; rows: a multiple of them."""
    assert len(rows) % 100 == 0
    starts = range(0, len(rows), 100)
    statements = [tuple(chain.from_iterable(rows[start : start + 100])) for start in starts]
    return _into_sqlite("SQLite, 100 rows a statement", rows, statements, 100, directory)


def _into_sqlite(
    name: str,
    rows: Sequence[tuple[object, ...]],
    statements: Sequence[tuple[object, ...]],
    rows_per_statement: int,
    directory: Path,
) -> Measurement:
    columns = ", ".join(f"c{index}" for index in range(len(rows[0])))
    marks = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * rows_per_statement)
    step = 16_000 // rows_per_statement
    path = directory / f"bulk-{time.monotonic_ns()}.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
    connection.execute(f"CREATE TABLE bulk ({columns}, PRIMARY KEY (c0, c1))")
    with timed(name, events=len(rows), payload_bytes=0) as measurement:
        for start in range(0, len(statements), step):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(f"INSERT INTO bulk VALUES {marks}", statements[start : start + step])
            connection.execute("COMMIT")
    connection.close()
    path.unlink()
    return measurement


def postgresql_executemany(rows: Sequence[tuple[object, ...]], database_url: str) -> Measurement:
    """The same with PostgreSQL's, which psycopg pipelines."""
    marks = ", ".join(["%s"] * len(rows[0]))

    def insert(cursor: psycopg.Cursor, part: Sequence[tuple[object, ...]]) -> None:
        cursor.executemany(f"INSERT INTO bulk VALUES ({marks})", part)

    return _into_postgresql("PostgreSQL executemany", insert, rows, database_url)


def postgresql_copy(rows: Sequence[tuple[object, ...]], database_url: str) -> Measurement:
    """The same by COPY."""

    def insert(cursor: psycopg.Cursor, part: Sequence[tuple[object, ...]]) -> None:
        with cursor.copy("COPY bulk FROM STDIN") as stream:
            for row in part:
                stream.write_row(row)

    return _into_postgresql("PostgreSQL COPY", insert, rows, database_url)


def _into_postgresql(
    name: str,
    insert: Callable[[psycopg.Cursor, Sequence[tuple[object, ...]]], None],
    rows: Sequence[tuple[object, ...]],
    database_url: str,
) -> Measurement:
    import psycopg

    columns = "c0 text, c1 bigint, c2 text, c3 integer, c4 bigint, PRIMARY KEY (c0, c1)"
    with psycopg.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE bulk ({columns})")
        connection.commit()
        with timed(name, events=len(rows), payload_bytes=0) as measurement:
            for start in range(0, len(rows), 16_000):
                insert(cursor, rows[start : start + 16_000])
                connection.commit()
        cursor.execute("DROP TABLE bulk")
    return measurement
