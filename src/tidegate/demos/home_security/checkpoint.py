"""What a checkpoint directory was made with, in a small file beside Spark's own.

The number of blocks decides which key of the state a home belongs to. With another number Spark would find no
state for a home, or another home's, and count on from there without a word; so the directory is asked first.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import SparkSession

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.stream_pipeline_identity import SPARKS_FILE, HadoopDirectory

FILE_NAME: Final = "tidegate-home-security.json"
_START_ANEW: Final = "Start anew with an empty checkpoint directory and an empty database."


def claim_checkpoint(spark: SparkSession, location: str, blocks: int) -> None:
    """Note the number of blocks in a new checkpoint directory, or compare it with what is there.

    location: as ``checkpoint_path`` gives it. Raises InvalidArgumentError where the directory's state is kept
    by another number of blocks, or the directory does not say by which.
    """
    directory = HadoopDirectory(spark, location)
    text = directory.read(FILE_NAME)
    if text is None and directory.read(SPARKS_FILE) is None:
        directory.write(FILE_NAME, json.dumps({"blocks": blocks}) + "\n")
        return
    try:
        before = json.loads(text or "")["blocks"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"The checkpoint directory {location} does not say how many blocks of homes its state has: it "
            "was made by an earlier version, or by something else.",
            next_step=_START_ANEW,
        ) from error
    if before != blocks:
        raise InvalidArgumentError(
            f"The checkpoint directory {location} keeps its state in {before} blocks of homes, and {blocks} "
            "are asked for.",
            next_step=f"Take --blocks {before}. For another number, start anew with an empty checkpoint "
            "directory and an empty database.",
        )
