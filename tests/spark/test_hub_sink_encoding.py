"""The hub sink's columns become the very bytes that our producer makes of the same events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.events import EventData
from tidegate.spark.hub_sink.encoding import encode_sections
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event

_Row = tuple[bytes, str | None, dict[str, str | None] | None]

_bodies = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"b" * length for length in (0, 240, 255, 256, 70_000)])
)
_texts = st.one_of(
    st.text(max_size=8), st.sampled_from(["k" * length for length in (231, 254, 255, 256, 300)])
)
_properties = st.one_of(
    st.dictionaries(_texts, st.one_of(st.none(), _texts), max_size=3),
    st.sampled_from([{str(number): "v" for number in range(count)} for count in (30, 127, 128)]),
)
_rows = st.lists(
    st.tuples(_bodies, st.one_of(st.none(), _texts), st.one_of(st.none(), _properties)),
    min_size=1,
    max_size=8,
)


def _encoded(rows: list[_Row], skip: int = 0) -> list[object]:
    body = pa.array([row[0] for row in rows], pa.binary())
    keys = pa.array([row[1] for row in rows], pa.string())
    maps = pa.array(
        [None if row[2] is None else list(row[2].items()) for row in rows], pa.map_(pa.string(), pa.string())
    )
    return list(encode_sections(body[skip:], keys[skip:], maps[skip:]).to_pylist())


def _expected(rows: list[_Row]) -> list[object]:
    return [wrap_event(encode_event(EventData(body, dict(some or {})), key)) for body, key, some in rows]


@pytest.mark.slow
@given(rows=_rows, data=st.data())
def test_columns_become_the_bytes_of_our_producer(rows: list[_Row], data: st.DataObject) -> None:
    """Short and long forms of everything, nulls, and columns that begin within their buffers."""
    skip = data.draw(st.integers(0, len(rows) - 1))
    assert _encoded(rows, skip) == _expected(rows[skip:])


@pytest.mark.parametrize("body", [pa.array(["é", ""]), pa.array([b"\xc3\xa9", b""])])
def test_a_text_body_is_its_utf_8_bytes(body: pa.Array[Any]) -> None:
    """Both types of body that Spark may have, without key and properties."""
    assert encode_sections(body, None, None).to_pylist() == _expected(
        [("é".encode(), None, None), (b"", None, None)]
    )
