"""Finds out whether a COMMIT took place whose answer was lost, by reading behind the same locks.

COMMIT is never sent twice. The committer supplies a ``Witness`` that recognises its transaction, usually by
the random token that it wrote where it moved something.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from sqlalchemy import Connection
from sqlalchemy import exc as sqlalchemy_errors

from tidegate.model.errors import DatabaseUnavailableError, FencedError
from tidegate.sql.core.database import Database
from tidegate.sql.core.failures import reason_of
from tidegate.sql.core.values import ConsumerKey

RECONNECT_S_MAX: Final = 15.0
"""How long to ask for a lost COMMIT's outcome, in seconds (our choice: longer than a database restart)."""
_PAUSE_S: Final = 0.1


class CommitOutcome(Enum):
    """The outcome of a COMMIT whose answer was lost."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    SUPERSEDED = "superseded"
    """The checkpoint has moved since: the range is done, once, by this transaction or another."""


Witness = Callable[[Connection], CommitOutcome]
"""Reads the lost transaction's outcome, behind its locks."""


def resolve_lost_commit(
    database: Database,
    consumer: ConsumerKey,
    witness: Witness | None,
    error: sqlalchemy_errors.SQLAlchemyError,
) -> None:
    """Return if the transaction was committed; finding out may take ``RECONNECT_S_MAX`` seconds.

    witness: None if nothing shows the outcome. error: the answer to COMMIT.
    Raises FencedError (another owner has moved the checkpoint since), DatabaseUnavailableError (rolled back,
    or not known yet: its message says which).
    """
    outcome = _find_outcome(database, witness, error)
    if outcome is CommitOutcome.COMMITTED:
        return
    if outcome is CommitOutcome.SUPERSEDED:
        raise FencedError(
            f"The connection broke during COMMIT, and another owner has continued the work of {consumer} "
            "since: this batch is done, once.",
            next_step="Continue from the checkpoint.",
        ) from error
    raise DatabaseUnavailableError(
        f"The connection to {database.url} gave no good answer to COMMIT, and the transaction was rolled "
        f"back: {reason_of(error)}",
        next_step="Nothing of the batch was written; run it again.",
    ) from error


def _find_outcome(
    database: Database, witness: Witness | None, error: sqlalchemy_errors.SQLAlchemyError
) -> CommitOutcome:
    unknown = DatabaseUnavailableError(
        f"The connection to {database.url} broke during COMMIT, and whether it took place is not known yet.",
        next_step="Read the checkpoint first. Running the same batch again is safe: it starts from the "
        "checkpoint.",
    )
    if witness is None:
        raise unknown from error
    deadline = time.monotonic() + RECONNECT_S_MAX
    while True:
        try:
            with database.writing() as connection, connection.begin() as asking:
                outcome = witness(connection)
                asking.rollback()
                return outcome
        except (sqlalchemy_errors.SQLAlchemyError, DatabaseUnavailableError):
            if time.monotonic() >= deadline:
                raise unknown from error
            time.sleep(_PAUSE_S)
