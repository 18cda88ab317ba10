"""What a checkpoint directory was made with, in a small file beside Spark's own.

The number of blocks decides which key of the state a home belongs to. With another number Spark would find no
state for a home, or another home's, and count on from there without a word; so the directory is asked first.
So is the format: of what was made when each home's page was a file of its own, the pages that do not change
would be missing.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import SparkSession

from tidegate import InvalidArgumentError
from tidegate.spark import HadoopDirectory

FILE_NAME: Final = "tidegate-home-security.json"
_SPARKS_FILE: Final = "metadata"
"""Where Spark keeps the query's id; it writes this first."""
_FORMAT: Final = 2
"""Of what goes with the state; 1 had no number, and a file for each home's page."""
_START_ANEW: Final = (
    "start anew with an empty checkpoint directory, an empty database and an empty place of summaries."
)


def claim_checkpoint(spark: SparkSession, location: str, blocks: int) -> None:
    """Note format and number of blocks in a new checkpoint directory, or compare them with what is there.

    location: as ``checkpoint_path`` gives it. Raises InvalidArgumentError where the directory's state is kept
    in another format or by another number of blocks, or the directory does not say by which.
    """
    directory = HadoopDirectory(spark, location)
    text = directory.read(FILE_NAME)
    if text is None and directory.read(_SPARKS_FILE) is None:
        directory.write(FILE_NAME, json.dumps({"format": _FORMAT, "blocks": blocks}) + "\n")
        return
    try:
        noted = json.loads(text or "")
        before = noted["blocks"]
        made_in = noted.get("format", 1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"The checkpoint directory {location} does not say how many blocks of homes its state has: it "
            "was made by an earlier version, or by something else.",
            next_step=_START_ANEW.capitalize(),
        ) from error
    if made_in != _FORMAT:
        raise InvalidArgumentError(
            f"The checkpoint directory {location} goes with summaries in the format {made_in}, and this "
            f"version writes the format {_FORMAT}.",
            next_step=_START_ANEW.capitalize(),
        )
    if before != blocks:
        raise InvalidArgumentError(
            f"The checkpoint directory {location} keeps its state in {before} blocks of homes, and {blocks} "
            "are asked for.",
            next_step=f"Take --blocks {before}. For another number, {_START_ANEW}",
        )
