"""The answer of ``/health``: whether the service works, and what an operator should check.

The status code is always 200. Load balancers rely on it, and removing the only node because one partition has
failed, or because a peer has used up a limit, would turn a partial failure into a complete one. So ``/ready``
is 503 only while the service starts or stops.
"""

from __future__ import annotations

import os
from typing import Final

from tidegate.broker import Broker
from tidegate.transport.admission import Admission

FULL_RECENTLY_S: Final = 10.0
"""How long a limit is reported after it refused a connection (our choice: checks come every few seconds)."""


def health_report(broker: Broker, admission: Admission, now: float) -> dict[str, object]:
    """``status`` is ``healthy``, or ``degraded`` with ``problems`` as sentences that name no client.

    now: on the clock that connections are admitted by.
    """
    event_hubs = broker.list_event_hubs()
    problems: list[str] = []
    partitions = [partition for hub in event_hubs for partition in hub.partitions]
    unopened = sum(partition.open_error is not None for partition in partitions)
    if unopened:
        problems.append(f"{unopened} partitions could not be opened and refuse all requests; see its log")
    failed = sum(partition.is_failed for partition in partitions) - unopened
    if failed:
        problems.append(f"{failed} partitions accept no events until the service restarts; see its log")
    if broker.catalog_failure is not None:
        problems.append("the namespace accepts no changes until the service restarts; see its log")
    statistics = admission.statistics()
    problems += [
        f"connections were refused: {refusal.words}"
        for refusal, at in statistics.full_at.items()
        if now - at < FULL_RECENTLY_S
    ]
    if _are_descriptors_short(statistics.limits.descriptors_max):
        problems.append("file descriptors are running out (ulimit -n)")
    if problems:
        return {"status": "degraded", "event_hubs": len(event_hubs), "problems": problems}
    return {"status": "healthy", "event_hubs": len(event_hubs)}


def _are_descriptors_short(descriptors_max: int | None) -> bool:
    """Whether the next file, which gets the lowest free number, is beyond those for connections."""
    if descriptors_max is None:
        return False
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(descriptor)
    return descriptor >= descriptors_max
