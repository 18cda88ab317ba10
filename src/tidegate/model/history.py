"""The histories of a partition's log: which events its sequence numbers mean.

A log begins another history with each start and each repair after which events are stored: a random id, and
the first number. A log that was restored from a backup gives the numbers after it again, to other events and
in another history. So a number together with the history in which it was read shows whether the log still
means the same event by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegate.model.errors import LogDivergedError

HISTORIES_MAX: Final = 100
"""Of one partition; older ones are forgotten. Our choice: months of restarts, and 5 KB in an answer."""


class History(NamedTuple):
    """A history lasts until the next one begins; the last one is of all events still to come."""

    history_id: str
    first_sequence_number: int


def history_of(sequence_number: int, histories: Sequence[History]) -> str | None:
    """The id of the history in which an event was stored; None if it is not known any more.

    histories: as the log reported them, in order.
    """
    for history in reversed(histories):
        if history.first_sequence_number <= sequence_number:
            return history.history_id
    return None


def find_divergence(
    resume_point: int, history_id: str | None, histories: Sequence[History], *, where: str
) -> LogDivergedError | None:
    """The error if the log's events before ``resume_point`` are not those that a reader had read; else None.

    history_id: the history in which the last of them was read; None: unknown. histories: of the log now;
    none: it does not report them. where: names the partition, at the start of a sentence.

    A history that the log does not know proves nothing if the event is older than those it knows: retention
    removes histories, and only the last ``HISTORIES_MAX`` are kept.
    """
    if history_id is None or not histories or resume_point <= histories[0].first_sequence_number:
        return None
    ids = [history.history_id for history in histories]
    if history_id not in ids:
        reason = "which this log does not have"
    else:
        following = ids.index(history_id) + 1
        if following == len(ids) or resume_point <= histories[following].first_sequence_number:
            return None
        reason = f"in which this log has only the events before {histories[following].first_sequence_number}"
    return LogDivergedError(
        f"{where}: sequence number {resume_point - 1} was read in the history {history_id}, {reason}. The "
        "log was restored from a backup, and gives numbers again, to other events.",
        next_step=_NEXT_STEP,
    )


_NEXT_STEP: Final = (
    "Choose the event to continue with, and move the group there: tidegate checkpoint set HUB --group GROUP "
    "--partition ID --sequence-number N --rewind. See the guide on disaster recovery."
)
