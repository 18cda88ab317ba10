"""The settings that a checkpoint directory was created with: a small file next to Spark's own.

The number of blocks determines the state's key of each home. With another number, Spark would find no state
for a home, or another home's, and silently continue from there; so the directory is checked first, for its
format as well: with one from when each home's page was a file, unchanged pages would be missing.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import SparkSession

from tidegate import InvalidArgumentError
from tidegate.spark import HadoopDirectory

FILE_NAME: Final = "tidegate-home-security.json"
_SPARKS_FILE: Final = "metadata"
"""Spark's own first file, which holds the query's id."""
_FORMAT: Final = 2
"""The format of the summaries that belong to the state; 1 had no number, and a file for each home's page."""
_START_ANEW: Final = "start again with an empty checkpoint directory, an empty database and no summaries."


def claim_checkpoint(spark: SparkSession, location: str, blocks: int) -> None:
    """Save format and number of blocks in a new checkpoint directory; compare them with an existing one's.

    location: as ``checkpoint_path`` returns it. Raises InvalidArgumentError if the directory has another
    format or number of blocks, or does not record them.
    """
    directory = HadoopDirectory(spark, location)
    wanted, text = {"format": _FORMAT, "blocks": blocks}, directory.read(FILE_NAME)
    if text is None and directory.read(_SPARKS_FILE) is None:
        directory.write(FILE_NAME, json.dumps(wanted) + "\n")
        return
    try:
        noted = json.loads(text or "")
    except ValueError:
        noted = None
    if noted == wanted:
        return
    if isinstance(noted, dict) and noted.get("format") == _FORMAT and "blocks" in noted:
        raise InvalidArgumentError(
            f"The checkpoint directory {location} keeps its state in {noted['blocks']} blocks of homes, not "
            f"{blocks}.",
            next_step=f"Use --blocks {noted['blocks']}. For another number, {_START_ANEW}",
        )
    raise InvalidArgumentError(
        f"The checkpoint directory {location} does not record how many blocks of homes its state has, in the "
        f"format {_FORMAT}: it was made by an earlier version, or by something else.",
        next_step=_START_ANEW.capitalize(),
    )
