"""Reads leases from ``tidegate_lease``, and changes them by compare-and-set on their version.

Each change is one short transaction. Time is the database's: a server's when the statement begins; for SQLite
the machine's clock, read once the writers' lock is held. On a server nothing here waits for batches that are
being committed. On SQLite a change queues with them for the writers' lock; meanwhile no other host can take
the lease either.

Rows are locked in ascending partition id, and no checkpoint is locked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from tidegate.model.errors import DatabaseUnavailableError, InvalidArgumentError
from tidegate.processor.lease import NAMES_SUFFIX, Lease, LeaseSnapshot
from tidegate.sql.core.database import Database
from tidegate.sql.core.dialects.base import ErrorKind, locking
from tidegate.sql.core.failures import is_connection_lost, is_of, reason_of, translate
from tidegate.sql.core.schema import UtcDateTime, checkpoint, in_partition_order, lease, of_consumer
from tidegate.sql.core.values import ConsumerKey, storable_text

_LEASE: Final = (
    lease.c.partition_id,
    lease.c.owner,
    lease.c.epoch,
    lease.c.acquired_at,
    lease.c.renewed_at,
    lease.c.version,
    lease.c.requested_by,
    lease.c.requested_at,
)
"""The fields of ``Lease``, of which the table has the version as an integer."""

_PARAMETERS: Final = 20
"""Of a statement beside those of its leases, at most."""
_DEADLOCKS_MAX: Final = 5
"""Claims are tried again after so many deadlocks (our choice): MariaDB may lock more rows than asked for."""


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """An official processor's claim of one partition."""

    partition_id: str
    owner: str
    """The new owner; empty: release it."""
    version: int | None
    """The row's version as the claimer saw it; None: there was no row."""


class LeaseTable:
    """The leases of all consumers. Every method may be called from any thread.

    Reads do not wait for transactions. Every method raises DatabaseUnavailableError (also if the connection
    is lost during COMMIT: then read the lease again) and DatabaseError; and InvalidArgumentError for a lease
    of another store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, consumer: ConsumerKey) -> LeaseSnapshot:
        """This consumer's leases, and the database's time after they were read."""
        leases, now = self._read(of_consumer(lease, consumer))
        return LeaseSnapshot(leases.get(consumer, {}), now)

    def read_all(self) -> tuple[Mapping[ConsumerKey, dict[str, Lease]], datetime]:
        """All consumers' leases by partition id, without hosts' names, and the database's time after that."""
        return self._read(lease.c.consumer_group.not_like(f"%{NAMES_SUFFIX}"))

    def acquire(
        self, consumer: ConsumerKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """Give the partition to ``owner`` if the lease is still ``expected`` (None: there never was one).

        The new epoch exceeds the lease's and the checkpoint's, so that earlier owners, including Spark
        drivers, are fenced. Returns None if another host was faster.
        """
        version = None if expected is None else _version(expected)
        with self._changing("acquiring a lease") as connection:
            claim = LeaseClaim(partition_id, owner, version)
            return self._acquire(connection, consumer, claim, requested_by="")

    def request(self, consumer: ConsumerKey, wanted: Lease, requester: str) -> None:
        """Record that ``requester`` wants the partition, if it has the same owner, who knows requests."""
        row = lease.c
        here = sa.and_(
            of_consumer(lease, consumer, wanted.partition_id),
            row.owner == wanted.owner,
            row.owner != "",
            row.epoch == wanted.epoch,
            row.requested_by.is_not(None),
        )
        values = {"requested_by": storable_text(requester), "requested_at": self._now()}
        with self._changing("requesting a lease") as connection:
            connection.execute(sa.update(lease).where(here).values(values))

    def renew(self, consumer: ConsumerKey, leases: Sequence[Lease]) -> dict[str, Lease]:
        """Renew leases that are unchanged and have an owner, in one transaction; returns these."""
        versions = [(each.partition_id, _version(each)) for each in leases]
        if not versions:
            return {}
        with self._changing("renewing leases") as connection:
            return self._renew(connection, consumer, versions)

    def release(self, consumer: ConsumerKey, leases: Sequence[Lease]) -> dict[str, Lease]:
        """Release leases that are unchanged, in one transaction; their epochs stay. Returns these."""
        versions = [(each.partition_id, _version(each)) for each in leases]
        if not versions:
            return {}
        with self._changing("releasing leases") as connection:
            return self._release(connection, consumer, versions)

    def claim(self, consumer: ConsumerKey, claims: Sequence[LeaseClaim]) -> dict[str, Lease]:
        """Apply an official processor's claims in one transaction; returns those won, by partition id.

        A claim on the processor's own lease renews it, one with an empty owner releases it, and any other
        acquires it with the next epoch. Claims with an outdated version are lost.
        """
        for _ in range(_DEADLOCKS_MAX):
            try:
                return self._claim(consumer, claims)
            except DatabaseUnavailableError as error:
                if error.__cause__ is None or not is_of(error.__cause__, ErrorKind.DEADLOCK):
                    raise
        return self._claim(consumer, claims)

    def _claim(self, consumer: ConsumerKey, claims: Sequence[LeaseClaim]) -> dict[str, Lease]:
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
                acquired = self._acquire(connection, consumer, each, requested_by=None)
                if acquired is not None:
                    won[each.partition_id] = acquired
            return won

    def _read(
        self, condition: sa.ColumnElement[bool]
    ) -> tuple[Mapping[ConsumerKey, dict[str, Lease]], datetime]:
        statement = sa.select(lease.c.event_hub, lease.c.consumer_group, *_LEASE).where(condition)
        with self._database.read(is_urgent=True) as connection:
            rows = connection.execute(statement.order_by(*in_partition_order(lease))).all()
            now = connection.execute(sa.select(self._now())).scalar_one()
        found: defaultdict[ConsumerKey, dict[str, Lease]] = defaultdict(dict)
        for event_hub, consumer_group, *row in rows:
            each = _lease_of(row)
            found[ConsumerKey(event_hub, consumer_group)][each.partition_id] = each
        return found, now

    def _owners(
        self, connection: sa.Connection, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> dict[str, str]:
        """Lock the leases that still have their version; returns their owners by partition id."""
        row = lease.c
        owners: dict[str, str] = {}
        for some in self._pieces(versions):
            statement = sa.select(row.partition_id, row.owner).where(self._unchanged(consumer, some))
            found = connection.execute(locking(statement.order_by(row.partition_id), lease))
            owners |= {each.partition_id: each.owner for each in found}
        return owners

    def _renew(
        self, connection: sa.Connection, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> dict[str, Lease]:
        return self._update(connection, consumer, versions, lease.c.owner != "", {})

    def _release(
        self, connection: sa.Connection, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> dict[str, Lease]:
        return self._update(connection, consumer, versions, sa.true(), {"owner": ""})

    def _update(
        self,
        connection: sa.Connection,
        consumer: ConsumerKey,
        versions: Sequence[tuple[str, int]],
        condition: sa.ColumnElement[bool],
        changes: dict[str, object],
    ) -> dict[str, Lease]:
        row = lease.c
        changed: dict[str, Lease] = {}
        for some in self._pieces(versions):
            # The subquery locks in order, because updates in different orders could deadlock.
            found = sa.select(row.partition_id).where(self._unchanged(consumer, some), condition)
            unchanged = locking(found.order_by(row.partition_id), lease)
            mine: Any = unchanged
            if not self._database.dialect.has_returning:
                mine = list(connection.execute(unchanged).scalars())
            here = sa.and_(of_consumer(lease, consumer), row.partition_id.in_(mine))
            values = {"renewed_at": self._now(), "version": row.version + 1, **changes}
            statement = sa.update(lease).where(here).values(values)
            changed |= {each[0]: _lease_of(each) for each in self._returned(connection, statement, here)}
        return changed

    def _acquire(
        self,
        connection: sa.Connection,
        consumer: ConsumerKey,
        claim: LeaseClaim,
        *,
        requested_by: str | None,
    ) -> Lease | None:
        """requested_by: empty; None for an owner that knows no requests."""
        partition_id, version, row = claim.partition_id, claim.version, lease.c
        here = of_consumer(lease, consumer, partition_id)
        moved_under = sa.select(checkpoint.c.lease_epoch).where(
            of_consumer(checkpoint, consumer, partition_id)
        )
        checkpoint_epoch = sa.func.coalesce(moved_under.scalar_subquery(), 0)
        now = self._now()
        new = {
            "owner": storable_text(claim.owner),
            "acquired_at": now,
            "renewed_at": now,
            "requested_by": requested_by,
            "requested_at": None,
        }
        if version is None:
            key = {
                "event_hub": consumer.event_hub,
                "consumer_group": consumer.consumer_group,
                "partition_id": partition_id,
            }
            values = {**key, "epoch": checkpoint_epoch + 1, "version": 1, **new}
            statement: sa.Insert | sa.Update = self._database.dialect.insert_if_absent(lease, values)
        else:
            highest_epoch = sa.case((row.epoch < checkpoint_epoch, checkpoint_epoch), else_=row.epoch)
            statement = (
                sa.update(lease)
                .where(here, row.version == version)
                .values(epoch=highest_epoch + 1, version=row.version + 1, **new)
            )
        won = next(iter(self._returned(connection, statement, here)), None)
        return None if won is None else _lease_of(won)

    def _returned(
        self, connection: sa.Connection, statement: sa.Insert | sa.Update, here: sa.ColumnElement[bool]
    ) -> Sequence[Sequence[Any]]:
        """The leases that the statement changed. here: selects them, if it changed any."""
        if self._database.dialect.has_returning:
            return connection.execute(statement.returning(*_LEASE)).all()
        if not connection.execute(statement).rowcount:
            return []
        return connection.execute(sa.select(*_LEASE).where(here)).all()

    def _pieces(self, versions: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
        """As many as a statement has parameters for, two each; ascending, which is the order of locks."""
        ordered, most = sorted(versions), self._database.dialect.parameters_max
        size = len(ordered) if most is None else (most - _PARAMETERS) // 2
        for start in range(0, len(ordered), max(1, size)):
            yield ordered[start : start + size]

    def _unchanged(
        self, consumer: ConsumerKey, versions: Sequence[tuple[str, int]]
    ) -> sa.ColumnElement[bool]:
        row = lease.c
        is_one = self._database.dialect.is_one_of((row.partition_id, row.version), versions)
        return sa.and_(of_consumer(lease, consumer), is_one)

    def _now(self) -> sa.ColumnElement[datetime]:
        """The database's own time, as an expression for a statement to be executed immediately."""
        return self._database.dialect.now(self._database.clock, UtcDateTime())

    @contextmanager
    def _changing(self, doing: str) -> Iterator[sa.Connection]:
        try:
            with self._database.writing(is_urgent=True) as connection, connection.begin():
                yield connection
        except sa.exc.SQLAlchemyError as error:
            if is_connection_lost(error):
                raise DatabaseUnavailableError(
                    f"The connection to the database {self._database.url} was lost while {doing}, and "
                    f"whether it took place is not known: {' '.join(str(reason_of(error)).split())}",
                    next_step="Read the leases again; a change that did not take place may be tried again.",
                ) from error
            raise translate(error, doing=doing, where=self._database.url) from error


def _lease_of(row: Sequence[Any]) -> Lease:
    """The lease in a row with the columns ``_LEASE``."""
    partition_id, owner, epoch, acquired_at, renewed_at, version, requested_by, requested_at = row
    return Lease(
        partition_id, owner, epoch, acquired_at, renewed_at, str(version), requested_by, requested_at
    )


def _version(lease: Lease) -> int:
    if not lease.version.isdecimal():
        raise InvalidArgumentError(f"The lease version {lease.version!r} is not of a SQL store.")
    return int(lease.version)
