"""Spark's own journal of a streaming query, as far as it is read here: where a micro-batch ends.

Source: Spark's ``OffsetSeqLog``: ``<checkpoint>/offsets/<batch id>`` holds a line ``v1``, a line of metadata
as JSON, and one line per source with its end offset (read with Spark 4.3).
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from tidegate.spark.source.offsets import StreamOffset

_VERSION_LINE = "v1"


def journalled_offset(checkpoint_location: str, batch_id: int) -> StreamOffset | None:
    """Where a micro-batch of a query with one source ends.

    None where that cannot be told from here: the directory is not on a disk of this machine, Spark writes
    another version, or the query has several sources.
    """
    location = urlparse(checkpoint_location)
    if location.scheme not in ("", "file"):
        return None
    path = (
        Path(unquote(location.path) if location.scheme else checkpoint_location) / "offsets" / str(batch_id)
    )
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    if len(lines) != 3 or lines[0] != _VERSION_LINE:
        return None
    value = json.loads(lines[2])
    return StreamOffset.from_json(value) if isinstance(value, dict) else None
