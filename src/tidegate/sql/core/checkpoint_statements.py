"""The checkpoint statements of every transaction, each built once.

SQLAlchemy builds a statement from Python objects and visits all of them to find its compiled form. For a
transaction of a few events, that takes as long as the database itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Update, and_, bindparam, or_, select, update

from tidegate.sql.core import schema
from tidegate.sql.core.values import ConsumerKey

_row: Final = schema.checkpoint.c


def _is(event_hub: object, consumer_group: object, partition_id: object) -> ColumnElement[bool]:
    return and_(
        _row.event_hub == event_hub, _row.consumer_group == consumer_group, _row.partition_id == partition_id
    )


_AT: Final = _is(bindparam("at_event_hub"), bindparam("at_consumer_group"), bindparam("at_partition_id"))

_LOCKED: Final = (
    _row.next_sequence_number,
    _row.event_hub_created_at_ms,
    _row.transaction_token,
    _row.owner,
    _row.lease_epoch,
)
LOCK: Final[Select[Any]] = select(*_LOCKED).where(_AT).with_for_update()
"""Parameters: ``at``."""

LOCK_SEVERAL: Final[Select[Any]] = (
    select(_row.partition_id, *_LOCKED)
    .where(
        _row.event_hub == bindparam("at_event_hub"),
        _row.consumer_group == bindparam("at_consumer_group"),
        _row.partition_id.in_(bindparam("at_partition_ids", expanding=True)),
    )
    .order_by(_row.partition_id)
    .with_for_update()
)
"""The partition id, then the columns of ``LOCK``; locks in this order. Parameters: ``at_several``."""


def is_of(consumer: ConsumerKey, partition_id: str) -> ColumnElement[bool]:
    """The same condition with its values, for rare statements."""
    return _is(consumer.event_hub, consumer.consumer_group, partition_id)


def at(consumer: ConsumerKey, partition_id: str) -> dict[str, object]:
    """The parameters that select one checkpoint."""
    return {
        "at_event_hub": consumer.event_hub,
        "at_consumer_group": consumer.consumer_group,
        "at_partition_id": partition_id,
    }


def at_several(consumer: ConsumerKey, partition_ids: Sequence[str]) -> dict[str, object]:
    """The parameters that select several checkpoints of a consumer."""
    return {
        "at_event_hub": consumer.event_hub,
        "at_consumer_group": consumer.consumer_group,
        "at_partition_ids": list(partition_ids),
    }


@cache
def advance(changed: tuple[str, ...], *, has_epoch: bool) -> Update:
    """Move a checkpoint that is still where it was.

    changed: the columns to set, each by the parameter ``new_`` plus its name. has_epoch: only if no owner has
    a higher lease epoch. Other parameters: ``at``, ``from_sequence_number`` (None: there was none) and, with
    ``has_epoch``, ``held_epoch``.
    """
    here = and_(_AT, _row.next_sequence_number.is_not_distinct_from(bindparam("from_sequence_number")))
    if has_epoch:
        here = and_(here, or_(_row.lease_epoch.is_(None), _row.lease_epoch <= bindparam("held_epoch")))
    return update(schema.checkpoint).where(here).values({name: bindparam(f"new_{name}") for name in changed})
