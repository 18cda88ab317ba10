"""Reads leases from ``tidegate_lease``, and changes them by compare-and-set on their version.

Each change is one short transaction. Time is the database's: PostgreSQL's ``statement_timestamp()``; for
SQLite the machine's clock, read once the writers' lock is held. On PostgreSQL nothing here waits for batches
that are being committed. On SQLite a change queues with them for the writers' lock; meanwhile no other host
can take the lease either.

Rows are locked in ascending partition id, and no checkpoint is locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, case, func, literal, select, true, tuple_, update
from sqlalchemy import exc as sqlalchemy_errors
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.errors import DatabaseUnavailableError
from tidegate.sql.core.database import Database
from tidegate.sql.core.failures import is_connection_lost, reason_of, translate
from tidegate.sql.core.schema import UtcDateTime, checkpoint, lease
from tidegate.sql.core.values import ConsumerKey, storable_text


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Who holds a partition, as stored."""

    event_hub: str
    consumer_group: str
    partition_id: str
    owner: str
    """The host that holds it; empty: it was released."""
    epoch: int
    """Raised by each acquisition."""
    acquired_at: datetime
    """When ``owner`` acquired it; for a released lease, when its last owner did."""
    renewed_at: datetime
    """When it was last acquired, renewed or released."""
    version: int
    """Raised by each change."""
    age_s: float
    """Seconds from ``renewed_at`` to the reading by the database's clock, at least 0."""


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """An official processor's claim of one partition."""

    partition_id: str
    owner: str
    """The new owner; empty: release it."""
    version: int | None
    """The row's version as the claimer saw it; None: there was no row."""


class LeaseReader:
    """Reads leases without waiting for transactions that change them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, consumer: ConsumerKey) -> dict[str, LeaseRow]:
        """This consumer's leases by partition id; partitions that no host ever held are absent.

        Raises DatabaseError and DatabaseUnavailableError.
        """
        rows, _ = read_leases(self._database, leases_of(consumer))
        return {row.partition_id: row for row in rows}

    def read_all(self) -> list[LeaseRow]:
        """All consumers' leases, by hub, group and partition. Raises as ``read``."""
        rows, _ = read_leases(self._database)
        return rows


class LeaseTable:
    """Changes the leases of any consumer. Every method may be called from any thread.

    Each raises DatabaseUnavailableError (also if the connection is lost during COMMIT: then read the lease
    again) and DatabaseError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, consumer: ConsumerKey) -> tuple[list[LeaseRow], datetime]:
        """This consumer's leases, and the database's time after they were read."""
        return read_leases(self._database, leases_of(consumer))

    def acquire(
        self, consumer: ConsumerKey, partition_id: str, owner: str, *, version: int | None
    ) -> LeaseRow | None:
        """Give the partition to ``owner`` if the row still has ``version`` (None: no row exists).

        The new epoch exceeds the row's and the checkpoint's, so that earlier owners, including Spark drivers,
        are fenced. Returns None if another host was faster.
        """
        with self._changing("acquiring a lease") as connection:
            return self._acquire(connection, consumer, partition_id, owner, version)

    def renew(self, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]) -> dict[str, LeaseRow]:
        """Renew the leases, given as (partition id, version), that still have this version and an owner.

        Uses one statement. Returns the renewed leases by partition id.
        """
        with self._changing("renewing leases") as connection:
            return self._renew(connection, consumer, versions)

    def release(self, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]) -> dict[str, LeaseRow]:
        """Release leases that still have their version; their epochs stay. Returns the released ones."""
        with self._changing("releasing leases") as connection:
            return self._release(connection, consumer, versions)

    def claim(self, consumer: ConsumerKey, claims: Sequence[LeaseClaim]) -> dict[str, LeaseRow]:
        """Apply an official processor's claims in one transaction; returns those won, by partition id.

        A claim on the processor's own lease renews it, one with an empty owner releases it, and any other
        acquires it with the next epoch. Claims with an outdated version are lost.
        """
        kept, released, wanted = [], [], []
        with self._changing("claiming leases") as connection:
            known = [(each.partition_id, each.version) for each in claims if each.version is not None]
            owners = self._owners(connection, consumer, known)
            for each in sorted(claims, key=lambda each: each.partition_id):
                if each.version is None:
                    wanted.append(each)
                elif each.partition_id not in owners:
                    continue
                elif not each.owner:
                    released.append((each.partition_id, each.version))
                elif each.owner == owners[each.partition_id]:
                    kept.append((each.partition_id, each.version))
                else:
                    wanted.append(each)
            won = self._renew(connection, consumer, kept) | self._release(connection, consumer, released)
            for each in wanted:
                row = self._acquire(connection, consumer, each.partition_id, each.owner, each.version)
                if row is not None:
                    won[each.partition_id] = row
            return won

    def _owners(
        self, connection: Connection, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> dict[str, str]:
        """Lock the leases that still have their version; returns their owners by partition id."""
        if not versions:
            return {}
        row = lease.c
        statement = select(row.partition_id, row.owner).where(self._unchanged(consumer, versions))
        found = connection.execute(statement.order_by(row.partition_id).with_for_update())
        return {each.partition_id: each.owner for each in found}

    def _renew(
        self, connection: Connection, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> dict[str, LeaseRow]:
        return self._update(connection, consumer, versions, lease.c.owner != "", {})

    def _release(
        self, connection: Connection, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> dict[str, LeaseRow]:
        return self._update(connection, consumer, versions, true(), {"owner": ""})

    def _update(
        self,
        connection: Connection,
        consumer: ConsumerKey,
        versions: Sequence[tuple[str, int]],
        condition: ColumnElement[bool],
        changes: dict[str, object],
    ) -> dict[str, LeaseRow]:
        if not versions:
            return {}
        row = lease.c
        # The subquery locks in order, because updates in different orders could deadlock.
        unchanged = (
            select(row.partition_id)
            .where(self._unchanged(consumer, versions), condition)
            .order_by(row.partition_id)
            .with_for_update()
        )
        updated = connection.execute(
            update(lease)
            .where(leases_of(consumer), row.partition_id.in_(unchanged))
            .values(renewed_at=self._now(), version=row.version + 1, **changes)
            .returning(*lease.columns)
        )
        return {found["partition_id"]: LeaseRow(**found, age_s=0.0) for found in updated.mappings()}

    def _acquire(
        self,
        connection: Connection,
        consumer: ConsumerKey,
        partition_id: str,
        owner: str,
        version: int | None,
    ) -> LeaseRow | None:
        now = self._now()
        moved = checkpoint.c
        checkpoint_epoch = func.coalesce(
            select(moved.lease_epoch)
            .where(
                moved.event_hub == consumer.event_hub,
                moved.consumer_group == consumer.consumer_group,
                moved.partition_id == partition_id,
            )
            .scalar_subquery(),
            0,
        )
        row = lease.c
        if version is None:
            insert = (sqlite if self._database.is_sqlite else postgresql).insert(lease)
            found = connection.execute(
                insert.values(
                    event_hub=consumer.event_hub,
                    consumer_group=consumer.consumer_group,
                    partition_id=partition_id,
                    owner=storable_text(owner),
                    epoch=checkpoint_epoch + 1,
                    acquired_at=now,
                    renewed_at=now,
                    version=1,
                )
                .on_conflict_do_nothing()
                .returning(*lease.columns)
            )
        else:
            found = connection.execute(
                update(lease)
                .where(leases_of(consumer), row.partition_id == partition_id, row.version == version)
                .values(
                    owner=storable_text(owner),
                    epoch=case((row.epoch < checkpoint_epoch, checkpoint_epoch), else_=row.epoch) + 1,
                    acquired_at=now,
                    renewed_at=now,
                    version=row.version + 1,
                )
                .returning(*lease.columns)
            )
        won = found.mappings().one_or_none()
        return None if won is None else LeaseRow(**won, age_s=0.0)

    def _unchanged(self, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]) -> ColumnElement[bool]:
        return and_(leases_of(consumer), tuple_(lease.c.partition_id, lease.c.version).in_(versions))

    def _now(self) -> ColumnElement[datetime]:
        return _time_of(self._database)

    @contextmanager
    def _changing(self, doing: str) -> Iterator[Connection]:
        try:
            with self._database.writing(is_urgent=True) as connection, connection.begin():
                yield connection
        except sqlalchemy_errors.SQLAlchemyError as error:
            if is_connection_lost(error):
                raise DatabaseUnavailableError(
                    f"The connection to the database {self._database.url} was lost while {doing}, and "
                    f"whether it took place is not known: {' '.join(str(reason_of(error)).split())}",
                    next_step="Read the leases again; a change that did not take place may be tried again.",
                ) from error
            raise translate(error, doing=doing, where=self._database.url) from error


def read_leases(database: Database, *conditions: ColumnElement[bool]) -> tuple[list[LeaseRow], datetime]:
    """Lease rows by hub, group and partition, and the database's time after they were read."""
    row = lease.c
    statement = (
        select(lease)
        .where(*conditions)
        .order_by(row.event_hub, row.consumer_group, func.length(row.partition_id), row.partition_id)
    )
    with database.read(is_urgent=True) as connection:
        found = connection.execute(statement).mappings().all()
        now = connection.execute(select(_time_of(database))).scalar_one()
    rows = [LeaseRow(**each, age_s=max(0.0, (now - each["renewed_at"]).total_seconds())) for each in found]
    return rows, now


def _time_of(database: Database) -> ColumnElement[datetime]:
    """The database's own time, as an expression for a statement to be executed immediately."""
    if database.is_sqlite:
        return literal(database.clock.now_utc(), UtcDateTime)
    # The same in all columns of a statement, unlike clock_timestamp().
    return func.statement_timestamp(type_=UtcDateTime)


def leases_of(consumer: ConsumerKey) -> ColumnElement[bool]:
    return and_(lease.c.event_hub == consumer.event_hub, lease.c.consumer_group == consumer.consumer_group)
