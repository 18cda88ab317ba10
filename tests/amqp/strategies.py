"""Hypothesis strategies for everything that AMQP can carry, and equality that sees types.

Ordinary equality cannot tell ``UInt(1)`` from ``1`` or ``True``; ``typed`` makes values comparable that way.
"""

from __future__ import annotations

import math
import struct
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tidegate.amqp.performatives import Accepted as AcceptedState
from tidegate.amqp.performatives import Error, Modified, Received, Rejected, Released
from tidegate.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def typed(value: object) -> object:
    """A value that equals another's only when types agree at every level; NaN equals NaN."""
    if isinstance(value, dict):
        return (dict, [(typed(key), typed(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [typed(item) for item in value])
    if isinstance(value, Array):
        return (Array, value.element_type, typed(value.items))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), [typed(getattr(value, item.name)) for item in fields(value)])
    if isinstance(value, float) and math.isnan(value):
        return (type(value), "nan")
    if isinstance(value, float):
        return (type(value), struct.pack(">d", value))  # tells -0.0 from 0.0
    return (type(value), value)


def _integers(kind: type[int], bits: int, *, is_signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    edges = st.sampled_from([low, high, min(255, high), max(-128, low), 0, 1])
    return st.one_of(st.integers(low, high), edges).map(kind)


texts = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.just("é" * 128))
symbols = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20), st.just("s" * 256)
).map(Symbol)
binaries = st.one_of(st.binary(max_size=20), st.just(b"b" * 256))

BY_TYPE: dict[type, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: _integers(int, 64, is_signed=True),
    UByte: _integers(UByte, 8, is_signed=False),
    UShort: _integers(UShort, 16, is_signed=False),
    UInt: _integers(UInt, 32, is_signed=False),
    ULong: _integers(ULong, 64, is_signed=False),
    Byte: _integers(Byte, 8, is_signed=True),
    Short: _integers(Short, 16, is_signed=True),
    Int: _integers(Int, 32, is_signed=True),
    Timestamp: _integers(Timestamp, 64, is_signed=True),
    float: st.floats(width=64),
    Float: st.floats(width=32).map(Float),
    str: texts,
    Symbol: symbols,
    Char: st.characters(exclude_categories=["Cs"]).map(Char),
    bytes: binaries,
    UUID: st.uuids(),
    Decimal: st.sampled_from([4, 8, 16])
    .flatmap(lambda size: st.binary(min_size=size, max_size=size))
    .map(Decimal),
}

scalars = st.one_of(*BY_TYPE.values())


def _arrays_of(kind: type, items: st.SearchStrategy[Any]) -> st.SearchStrategy[Array]:
    return st.lists(items, max_size=6).map(lambda values: Array(tuple(values), kind))


simple_arrays = st.one_of(
    *(_arrays_of(kind, items) for kind, items in BY_TYPE.items() if kind is not Decimal)
)
keys = st.one_of(symbols, texts)


def _compounds(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=5),
        st.dictionaries(keys, children, max_size=5),
        st.builds(Described, st.one_of(symbols, BY_TYPE[ULong]), children),
        st.lists(st.lists(children, max_size=3), max_size=3).map(lambda items: Array(tuple(items), list)),
        st.lists(st.dictionaries(keys, children, max_size=2), max_size=3).map(
            lambda items: Array(tuple(items), dict)
        ),
    )


values = st.recursive(st.one_of(scalars, simple_arrays), _compounds, max_leaves=12)

# The official Python client's decoder knows no char and only one width of decimal.
common_scalars = st.one_of(*(items for kind, items in BY_TYPE.items() if kind not in (Char, Decimal)))
annotation_maps = st.dictionaries(symbols.filter(bool), common_scalars, max_size=3)
errors = st.builds(Error, symbols, st.none() | texts, annotation_maps)
states = st.one_of(
    st.builds(AcceptedState),
    st.builds(Released),
    st.builds(Rejected, st.none() | errors),
    st.builds(Modified, st.booleans(), st.booleans(), annotation_maps),
    st.builds(Received, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
)
