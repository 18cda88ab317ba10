"""What the operations on dead letters need: the server gives it, because the gateway knows no database."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from tidegate.broker import EventHub
from tidegate.gateway.administration import shapes


class DeadLetterKeeper(Protocol):
    """The dead letters of the service's database; the results are of ``shapes``, as plain values.

    All raise ServerBusyError and OperationTimeoutError if the database is busy or gone, and DatabaseError.
    """

    def add(self, hub: EventHub, group: str, wanted: shapes.DeadLetterAddition) -> Awaitable[object]:
        """AddedDeadLetters."""
        ...

    def page(self, hub: EventHub, group: str, wanted: shapes.DeadLetterQuery) -> Awaitable[object]:
        """DeadLetterPage."""
        ...

    def redrive(self, hub: EventHub, group: str, wanted: shapes.DeadLetterRedrive) -> Awaitable[object]:
        """ClosedDeadLetters."""
        ...

    def discard(self, hub: EventHub, group: str, wanted: shapes.DeadLetterDiscard) -> Awaitable[object]:
        """ClosedDeadLetters."""
        ...
