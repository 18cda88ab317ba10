"""JSON objects as tables: what the check takes is exactly what the OpenAPI schema allows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator

from tidegate.gateway.administration.json_shapes import Field, Kind, Shape
from tidegate.gateway.administration.operations import OPERATIONS
from tidegate.model.errors import InvalidArgumentError

REQUESTS = {operation.request.name: operation.request for operation in OPERATIONS if operation.request}

# No floats: 1.0 is an integer to a schema, and not to the check.
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def _meant(field: Field) -> st.SearchStrategy[Any]:
    """Values of the field's kind, and some that are not."""
    choices = st.sampled_from(field.choices) if field.choices else st.text(max_size=4)
    meant: dict[Kind, st.SearchStrategy[Any]] = {
        Kind.INTEGER: st.integers(),
        Kind.TEXT: choices,
        Kind.BOOLEAN: st.booleans(),
        Kind.STRINGS: st.lists(choices, max_size=3),
    }
    return meant[field.kind] | st.none() | _ANYTHING


def _objects(shape: Shape) -> st.SearchStrategy[Any]:
    """Objects that have the shape, or nearly, or not at all."""
    fields = {field.name: _meant(field) for field in shape.fields}
    nearly = st.fixed_dictionaries({}, optional={**fields, "unknown": _ANYTHING})
    return nearly | st.fixed_dictionaries(fields) | _ANYTHING


@pytest.mark.parametrize("shape", REQUESTS.values(), ids=lambda shape: shape.name)
def test_check_and_schema_agree(shape: Shape) -> None:
    """A body passes the check if, and only if, it is what the document promises to take."""
    validator = OAS31Validator(shape.schema())

    @settings(max_examples=200, deadline=None)
    @given(_objects(shape))
    def compare(value: object) -> None:
        body = json.dumps(value).encode()
        if validator.is_valid(value):
            assert shape.parse(body) == value
        else:
            with pytest.raises(InvalidArgumentError):
                shape.parse(body)

    compare()


@pytest.mark.parametrize("body", [b"", b"{}", b" \n{} "])
def test_an_empty_body_is_an_empty_object(body: bytes) -> None:
    """Who asks for defaults only need not send a body."""
    assert Shape("Empty", ()).parse(body) == {}


@pytest.mark.parametrize("body", [b"\xff", b'{"a": 1.5}', b'{"a": NaN}', b'{"a": 1', b'{"a": "\\udc00"}'])
def test_what_is_no_such_json_is_refused(body: bytes) -> None:
    """Bytes that are no JSON, half characters, and numbers that are not whole."""
    shape = Shape("One", (Field("a", Kind.INTEGER, ""),))
    with pytest.raises(InvalidArgumentError):
        shape.parse(body)
