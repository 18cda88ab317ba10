"""Reads a micro-batch's end from Spark's journal of a streaming query.

Source: Spark's ``OffsetSeqLog``: ``<checkpoint>/offsets/<batch id>`` holds a line ``v1``, a line of metadata
as JSON, and one line per source with its end offset (read with Spark 4.3).
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from tidegate.spark.source.offsets import StreamOffset


def local_path(location: str) -> Path | None:
    """The path of a checkpoint location on this machine; None if it is elsewhere."""
    parsed = urlparse(location)
    if parsed.scheme == "":
        return Path(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def journalled_offset(checkpoint_location: str, batch_id: int) -> StreamOffset | None:
    """Where a micro-batch of a query with one source ends.

    None if unknown: the directory is not on this machine's disk, Spark writes another version, or the query
    has several sources.
    """
    directory = local_path(checkpoint_location)
    if directory is None:
        return None
    try:
        lines = (directory / "offsets" / str(batch_id)).read_text().splitlines()
    except OSError:
        return None
    if len(lines) != 3 or lines[0] != "v1":
        return None
    value = json.loads(lines[2])
    return StreamOffset.from_json(value) if isinstance(value, dict) else None
