"""Identifies the micro-batch for which a ``foreachBatch`` function was called.

Spark passes the function only the batch's number. The ids of query and run are properties of the calling
thread, and the offsets that fix the batch's content are in a file in the checkpoint directory (read with
Spark 4.3: ``StreamExecution``, ``OffsetSeqLog``).
"""

from __future__ import annotations

import hashlib
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql.ledger.ledger import MicroBatch


def current_batch(rows: DataFrame, batch_id: int) -> MicroBatch:
    """The micro-batch of ``rows``.

    Raises InvalidArgumentError outside a ``foreachBatch`` function of a classic (not Spark Connect) session.
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
        next_step="Give the sink to writeStream.foreachBatch, in a session that is not Spark Connect.",
    )


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
    return hashlib.sha256(text.encode()).hexdigest()
