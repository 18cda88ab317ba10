"""How far behind a query is, from the progress that Spark reports."""

from __future__ import annotations

import json

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.progress.lag import partition_lags, partition_losses


def _offset(created_at_ms: int = 5, **partitions: int) -> dict[str, object]:
    numbers = {key.removeprefix("p"): number for key, number in partitions.items()}
    return {"version": 1, "eventHubCreatedAtMs": created_at_ms, "partitions": numbers}


def _source(end: object, latest: object) -> dict[str, object]:
    return {"description": "a stream", "startOffset": None, "endOffset": end, "latestOffset": latest}


def _progress(*sources: dict[str, object]) -> dict[str, object]:
    return {"id": "q", "batchId": 3, "sources": [*sources]}


def test_the_lag_is_what_the_hub_holds_beyond_the_micro_batch() -> None:
    """By partition; one that the query has not begun lags by all it holds, and none lags by less than 0."""
    progress = _progress(_source(_offset(p0=10, p1=30), _offset(p0=15, p1=30, p2=4)))
    assert partition_lags(progress) == {"0": 5, "1": 0, "2": 4}
    assert partition_lags(json.dumps(progress)) == {"0": 5, "1": 0, "2": 4}
    behind = _progress(_source(_offset(p0=20), _offset(p0=15)))
    assert partition_lags(behind) == {"0": 0}


def test_offsets_may_be_text() -> None:
    """PySpark's progress object has them as text, its JSON as objects."""
    source = _source(json.dumps(_offset(p0=1)), json.dumps(_offset(p0=3)))
    assert partition_lags(_progress(source)) == {"0": 2}


def test_several_hubs_are_added_up_and_other_sources_left_out() -> None:
    """A query may join two hubs, or a hub and a file stream."""
    files = _source({"logOffset": 4}, None)
    rates = _source("17", "18")
    hubs = [_source(_offset(p0=1), _offset(p0=3)), _source(_offset(6, p0=1), _offset(6, p0=2, p1=7))]
    assert partition_lags(_progress(files, *hubs, rates)) == {"0": 3, "1": 7}
    assert partition_lags(_progress(files, rates)) == {}
    assert partition_lags(_progress(_source(_offset(p0=1), None))) == {}


def test_a_hub_made_anew_is_all_unread() -> None:
    """Its sequence numbers have nothing to do with those that the query got to."""
    assert partition_lags(_progress(_source(_offset(1, p0=900), _offset(2, p0=7)))) == {"0": 7}


def test_what_was_lost_is_in_the_progress() -> None:
    """By partition, added up over the hubs of a query; nothing where nothing was."""
    lossy = {**_offset(p0=9), "lostEvents": {"0": 4, "2": 1}}
    sources = [_source(lossy, _offset(p0=9)), _source({**_offset(p0=9), "lostEvents": {"0": 3}}, None)]
    assert partition_losses(_progress(*sources)) == {"0": 7, "2": 1}
    assert partition_losses(_progress(_source(_offset(p0=1), None))) == {}


@pytest.mark.parametrize("value", ["", "[]", "{}", '{"sources": 1}', "null"])
def test_what_is_no_progress_is_refused(value: str) -> None:
    """A status command may be pointed at any file."""
    with pytest.raises(InvalidArgumentError, match="progress"):
        partition_lags(value)
