"""Reads from Spark's own journal where the micro-batches of a query end.

``<checkpoint>/offsets/<batch id>`` is written before a micro-batch runs: a line with the format's version, a
line of metadata, and one line per source with its end. For the source ``eventhubs`` that is a JSON object
whose ``partitions`` has the first event of each partition after the micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_VERSION_LINE = "v1"


def running_batch_id(checkpoint_dir: Path) -> int | None:
    """The micro-batch that has begun but not ended; None if there is none, or if it is the first one."""
    try:
        names = [entry.name for entry in (checkpoint_dir / "offsets").iterdir()]
    except FileNotFoundError:
        return None
    begun = max((int(name) for name in names if name.isdigit()), default=0)
    return begun if begun and not (checkpoint_dir / "commits" / str(begun)).exists() else None


def batch_end(checkpoint_dir: Path, batch_id: int) -> Mapping[str, int] | None:
    """Partition id → one past the last event of a micro-batch of a query with one source.

    None if it has not begun, or Spark has deleted its entry.
    """
    try:
        lines = (checkpoint_dir / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    if len(lines) != 3 or lines[0] != _VERSION_LINE:
        return None
    partitions: dict[str, int] = json.loads(lines[2])["partitions"]
    return partitions
