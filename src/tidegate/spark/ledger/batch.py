"""Identifies the micro-batch for which a ``foreachBatch`` function was called.

Spark passes the function only the batch's number. The ids of query and run are properties of the calling
thread, and the offsets that fix the batch's content are in a file in the checkpoint directory (read with
Spark 4.3: ``StreamExecution``, ``OffsetSeqLog``). With Spark Connect, the function is called in a process of
its own for each run, in which only the checkpoint directory says which query it is.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.source.journal import local_path
from tidegate.sql.ledger.ledger import MicroBatch


def current_batch(rows: DataFrame, batch_id: int) -> MicroBatch:
    """The micro-batch of ``rows``.

    Raises InvalidArgumentError outside a ``foreachBatch`` function.
    """
    try:
        context = rows.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        run_id = context.getLocalProperty("spark.jobGroup.id")
    except Exception as error:
        raise _no_batch_error() from error
    if not query_id or not run_id:
        raise _no_batch_error()
    return MicroBatch(query_id, run_id, batch_id, _fingerprint(rows, query_id, batch_id))


def _no_batch_error() -> InvalidArgumentError:
    return InvalidArgumentError(
        "A ledger sink writes micro-batches of a streaming query, and this call is not one.",
        next_step="Give the sink to writeStream.foreachBatch.",
    )


def batch_of_connect(rows: DataFrame, batch_id: int, run_id: str, checkpoint_location: str) -> MicroBatch:
    """The same with Spark Connect. run_id: unique to this process, which serves one run."""
    query = json.loads(_text(rows, f"{checkpoint_location}/metadata"))
    offsets = _text(rows, f"{checkpoint_location}/offsets/{batch_id}")
    return MicroBatch(query["id"], run_id, batch_id, _digest(offsets))


def _text(rows: DataFrame, location: str) -> str:
    """A file of the checkpoint directory: from this machine, which is the driver's, or by Spark."""
    path = local_path(location) or Path()
    if path.is_file():
        return path.read_text(encoding="utf-8")
    (row,) = rows.sparkSession.read.text(location, wholetext=True).collect()
    return str(row[0])


def _digest(offsets: str) -> str:
    return hashlib.sha256(offsets.encode()).hexdigest()


def _fingerprint(rows: DataFrame, query_id: str, batch_id: int) -> str | None:
    """A digest of the journal's file for this batch: its offsets, watermark and planning time.

    None if Spark does not reveal it.
    """
    session: Any = rows.sparkSession
    java_session, gateway = session._jsparkSession, session.sparkContext._jvm
    try:
        running = java_session.sharedState().activeStreamingQueries()
        query = running.get(gateway.java.util.UUID.fromString(query_id))
        if query is None:
            return None
        path = gateway.org.apache.hadoop.fs.Path(f"{query.resolvedCheckpointRoot()}/offsets/{batch_id}")
        file = path.getFileSystem(java_session.sessionState().newHadoopConf()).open(path)
        try:
            text: str = gateway.org.apache.commons.io.IOUtils.toString(file, "UTF-8")
        finally:
            file.close()
    except Py4JError:
        return None
    return _digest(text)
