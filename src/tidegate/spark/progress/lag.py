"""Computes how far a streaming query is behind from the progress that Spark reports.

Pure, and without pyspark: a status command reads the JSON of another process's query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.source.offsets import StreamOffset


def partition_lags(progress: str | Mapping[str, object]) -> dict[str, int]:
    """Partition id → events that the service held and the query had not read when it last checked.

    progress: ``query.lastProgress``, its ``.json``, or the parsed JSON. For a query over several hubs, lags
    of partitions with the same id are added up. Empty if the query has no Tidegate source. The hub's end is
    read when the micro-batch is planned, so events that arrive while it runs appear in the next progress.
    Raises InvalidArgumentError if it is not a progress.
    """
    lags: dict[str, int] = {}
    for end, latest in _offsets(progress):
        if latest is None:
            continue
        if end.event_hub_created_at_ms != latest.event_hub_created_at_ms:
            end = StreamOffset({}, latest.event_hub_created_at_ms)  # the hub was recreated: all is unread
        for partition_id, until in latest.partitions.items():
            lag = max(0, until - end.partitions.get(partition_id, 0))
            lags[partition_id] = lags.get(partition_id, 0) + lag
    return lags


def partition_losses(progress: str | Mapping[str, object]) -> dict[str, int]:
    """Partition id → events that the query has skipped since it began because they were gone.

    Only with ``failOnDataLoss=false``. Events that a task found to be gone, after its micro-batch was
    planned, are only in the executors' log. Argument and errors are those of ``partition_lags``.
    """
    losses: dict[str, int] = {}
    for end, _ in _offsets(progress):
        for partition_id, count in end.lost_events.items():
            losses[partition_id] = losses.get(partition_id, 0) + count
    return losses


def _offsets(progress: str | Mapping[str, object]) -> Iterator[tuple[StreamOffset, StreamOffset | None]]:
    """(end of the micro-batch, end of the hub) of each source of the format ``eventhubs``."""
    try:
        value = json.loads(progress) if isinstance(progress, str) else progress
    except ValueError as exc:
        raise InvalidArgumentError("The progress of a query is not JSON.") from exc
    sources = value.get("sources") if isinstance(value, Mapping) else None
    if not isinstance(sources, list):
        raise InvalidArgumentError(
            "This is not the progress of a streaming query: it has no sources.",
            next_step="Pass query.lastProgress.json.",
        )
    for source in sources:
        end = parsed_offset(source.get("endOffset")) if isinstance(source, Mapping) else None
        if end is not None:
            yield end, parsed_offset(source.get("latestOffset"))


def parsed_offset(value: object) -> StreamOffset | None:
    """Parse an offset of the format ``eventhubs``, given as text or decoded; None for another source's."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping) or "eventHubCreatedAtMs" not in value:
        return None
    return StreamOffset.from_json(value)
