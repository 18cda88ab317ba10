"""Makes a shadow live, and the live pipeline the shadow; or drops a shadow.

Theory of operation. Both have processed the same events, so no checkpoint moves: the tables exchange their
names, the dead letters and their audit trail their consumer groups, and the live checkpoints get a higher
lease epoch, which fences an owner that still processes. That is one transaction, in which the checkpoints of
both are locked. Swapped again, everything is as before.

Where a statement that renames a table commits (MariaDB), there are three steps:

    1  a transaction marks the live checkpoints: no batch and no redrive is committed (``check_epoch``)
    2  one statement renames the tables and, with them, an empty one whose name says that this was done
    3  a transaction exchanges the dead letters and replaces the marks

After a kill between them, the same call completes it. All rows are old before step 2, and new after it.
"""

from __future__ import annotations

import re

from sqlalchemy import Column, Connection, Integer, MetaData, Table, and_, inspect, select, update

from tidegate.processor.lease import SHADOW_MARK
from tidegate.processor.options import PartitionManagerOptions
from tidegate.sql.core.checkpoint_rows import CheckpointRows
from tidegate.sql.core.database import Database
from tidegate.sql.core.dialects import dialect_of
from tidegate.sql.core.schema import checkpoint, dead_letter, dead_letter_audit, of_consumer
from tidegate.sql.core.unit_of_work import SWAP_TOKEN, UnitOfWork
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.shadows.shadow import Shadow, ShadowError, check_positions, read_positions
from tidegate.sql.stores.checkpoints import forget_consumer, highest_epoch
from tidegate.sql.stores.leases import LeaseTable


def swap_shadow(database: Database, shadow: Shadow) -> None:
    """Exchange a shadow and its live pipeline: rows, open and closed dead letters, and their audit trail.

    Completes a swap that was interrupted. Stop the live pipeline first: a lease that is held refuses the
    swap, and a Spark query that still runs is fenced, so that its next micro-batch fails.
    Raises ShadowError, EventHubReplacedError, DatabaseError and DatabaseUnavailableError; then nothing has
    changed, or the live pipeline cannot commit until the swap is completed.
    """
    if database.dialect.has_transactional_ddl:
        with _unit(database, shadow) as unit, unit.translating("swapping a shadow"):
            _lock(unit, shadow)
            _check(unit, shadow)
            _rename(unit.connection, shadow)
            _exchange_letters(unit.connection, shadow)
            _claim(unit, shadow)
        return
    schema, dialect = shadow.table.schema, database.dialect
    planned, done = (
        Table(shadow.spare_name(each), MetaData(schema=schema), Column("n", Integer)) for each in "12"
    )
    # One swap at a time, or a second one would remove what says how far the first one is.
    with database.writing() as connection, connection.begin(), dialect.changing_schema(connection):
        if not _is_interrupted(connection, shadow):
            done.drop(connection, checkfirst=True)
            planned.create(connection, checkfirst=True)
            with _unit(database, shadow) as unit, unit.translating("beginning a swap"):
                _lock(unit, shadow)
                _check(unit, shadow)
                unit.token = f"{SWAP_TOKEN}{shadow.name}"
                _claim(unit, shadow)
        if inspect(connection).has_table(planned.name, schema):
            _rename(connection, shadow, (planned.name, done.name))
        with _unit(database, shadow) as unit, unit.translating("completing a swap"):
            _lock(unit, shadow)
            _exchange_letters(unit.connection, shadow)
            _claim(unit, shadow)
        done.drop(connection)


def drop_shadow(database: Database, shadow: Shadow) -> bool:
    """Delete a shadow's table, checkpoints and dead letters; what is missing is ignored.

    Returns whether there was a table.
    Raises ShadowError if a swap was interrupted, DatabaseError and DatabaseUnavailableError.
    """
    with _unit(database, shadow) as unit, unit.translating("dropping a shadow"):
        connection = unit.connection
        if _is_interrupted(connection, shadow):
            raise ShadowError(
                f"A swap with the shadow {shadow.name} was interrupted.",
                next_step="Complete it first: run `tidegate pipeline swap` again.",
            )
        # In this order: a table without a checkpoint is refused by a replay, the reverse would go unnoticed.
        forget_consumer(connection, shadow.consumer)
        table = shadow.shadow_table()
        is_there = inspect(connection).has_table(table.name, schema=table.schema)
        table.drop(connection, checkfirst=True)
    return is_there


def _unit(database: Database, shadow: Shadow) -> UnitOfWork:
    return UnitOfWork(database, shadow.live, pipeline_name=shadow.pipeline_name)


def _partition_ids(connection: Connection, consumer: ConsumerKey) -> list[str]:
    row = checkpoint.c.partition_id
    return [*connection.execute(select(row).where(of_consumer(checkpoint, consumer)).order_by(row)).scalars()]


def _is_interrupted(connection: Connection, shadow: Shadow) -> bool:
    token = checkpoint.c.transaction_token
    marked = select(token).where(of_consumer(checkpoint, shadow.live), token == f"{SWAP_TOKEN}{shadow.name}")
    return connection.execute(marked.limit(1)).first() is not None


def _lock(unit: UnitOfWork, shadow: Shadow) -> None:
    """Wait for batches of either that are being committed, and let no other begin until the end."""
    for consumer in (shadow.live, shadow.consumer):
        ids = _partition_ids(unit.connection, consumer)
        CheckpointRows(consumer, unit.database.clock).lock_existing(unit.connection, ids)


def _claim(unit: UnitOfWork, shadow: Shadow) -> None:
    """Fence the live pipeline's owners: a later one gets a higher epoch."""
    epoch = highest_epoch(unit.connection, shadow.live) + 1
    for partition_id in _partition_ids(unit.connection, shadow.live):
        unit.claim(partition_id, lease_epoch=epoch)


def _check(unit: UnitOfWork, shadow: Shadow) -> None:
    """Raises ShadowError if the two cannot be exchanged."""
    connection = unit.connection
    check_positions(shadow, read_positions(connection, connection, shadow))
    leases = LeaseTable(unit.database).read(shadow.live)
    duration_s = PartitionManagerOptions().lease_duration_s
    owners = {each.owner for each in leases.leases.values() if not each.is_expired(leases.now, duration_s)}
    if owners:
        raise ShadowError(
            f"The live pipeline runs: {', '.join(sorted(owners))} processes {shadow.live}.",
            next_step="Stop its hosts, and swap then.",
        )
    names = {shadow.table.name, shadow.table_name}
    inspector, schema = inspect(connection), shadow.table.schema
    for (_, name), keys in inspector.get_multi_foreign_keys(schema).items():
        if name not in names and any(key["referred_table"] in names for key in keys):
            raise _attached(shadow, f"A foreign key of the table {name}")
    for name in inspector.get_view_names(schema):
        definition = inspector.get_view_definition(name, schema) or ""
        if any(re.search(rf"\b{re.escape(each)}\b", definition) for each in names):
            raise _attached(shadow, f"The view {name}")


def _attached(shadow: Shadow, what: str) -> ShadowError:
    return ShadowError(
        f"{what} refers to the table {shadow.table.name}, and would refer to the former rows after the swap.",
        next_step="Drop it, swap, and create it again.",
    )


def _rename(connection: Connection, shadow: Shadow, *more: tuple[str, str]) -> None:
    live, own, spare = shadow.table.name, shadow.table_name, shadow.spare_name("0")
    names = [(live, spare), (own, live), (spare, own), *more]
    dialect_of(connection).rename_tables(connection, names, shadow.table.schema)


def _exchange_letters(connection: Connection, shadow: Shadow) -> None:
    own = shadow.consumer
    spare = ConsumerKey(own.event_hub, f"{own.consumer_group}{SHADOW_MARK}")
    for table in (dead_letter, dead_letter_audit):
        for old, new in ((shadow.live, spare), (own, shadow.live), (spare, own)):
            mine = of_consumer(table, old)
            connection.execute(update(table).where(mine).values(consumer_group=new.consumer_group))
    # Those written by Spark have the query's name, by which a redrive would not find them.
    letter = dead_letter.c
    mine = and_(of_consumer(dead_letter, shadow.live), letter.pipeline == shadow.query_name)
    connection.execute(update(dead_letter).where(mine).values(pipeline=shadow.pipeline_name))
