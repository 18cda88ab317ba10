"""Waits inside a micro-batch while the service, the database or what a handler calls is away.

Spark tries a failed task again at once, a few times; then the query ends. So whatever a task, the planning
process or a ledger sink does with something that may be away is tried again here, with growing waits.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.model.errors import PartitionPausedError
from tidegate.processor.policies import RESTART
from tidegate.spark.runtime.errors import error_in

T = TypeVar("T")

PATIENCE_S: Final = 300.0
"""How long the service or the database may be away, in seconds (our choice: longer than an upgrade or a
fail-over, and short enough to report a wrong address). What a handler calls may be away for any time."""

_logger = logging.getLogger(__name__)


class Patience:
    """The tries of one operation."""

    def __init__(self, what: str) -> None:
        """what: is done, for the log: "Reading partition 3"."""
        self._what = what
        self._tries = 0
        self._until: float | None = None

    def wait(self, failure: Exception) -> None:
        """Sleep before the next try. Raises ``failure`` if that would not help, or the time is up."""
        error, now = error_in(failure), time.monotonic()
        if error is None or not error.is_transient:
            raise failure
        if isinstance(error, PartitionPausedError):
            self._until = None  # service and database have answered
        else:
            self._until = self._until or now + PATIENCE_S
            if now >= self._until:
                raise failure
        self._tries += 1
        delay_s = RESTART.delay_before(self._tries, jitter_fraction=random.Random().random(), error=error)
        _logger.warning("%s: %s It is tried again in %.1f s.", self._what, error, delay_s)
        time.sleep(delay_s)

    def over(self) -> None:
        """Note that a try succeeded."""
        if self._tries:
            self._tries, self._until = 0, None
            _logger.warning("%s: it continues.", self._what)


def patiently(attempt: Callable[[], T], what: str, *, unless: type[Exception] | tuple[()] = ()) -> T:
    """The result of ``attempt``, which is called again while something is away.

    what: is done, for the log. unless: errors to raise at once. Raises what ``attempt`` raises.
    """
    patience = Patience(what)
    while True:
        try:
            result = attempt()
        except unless:
            raise
        except Exception as failure:  # Spark wraps ours into its own
            patience.wait(failure)
        else:
            patience.over()
            return result
