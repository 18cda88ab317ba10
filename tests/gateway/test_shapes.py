"""Requests of the administration: what the check takes is exactly what the OpenAPI schema allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator
from starlette.requests import Request
from starlette.routing import Route
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.gateway.administration.operations import OPERATIONS
from tidegate.gateway.administration.shapes import Named, Shape, each_schema, schemas
from tidegate.gateway.http.admin import Administration
from tidegate.gateway.http.openapi import openapi_document
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.validation import decoded
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork

T = TypeVar("T")

REQUESTS = {operation.request.__name__: operation.request for operation in OPERATIONS if operation.request}
SCHEMAS = schemas()

# No floats: 1.0 is an integer to a schema, and not to the check.
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def _meant(field: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema of a field allows, and some that it does not."""
    field = field.get("anyOf", [field])[0]
    if "$ref" in field:
        field = SCHEMAS[field["$ref"].rpartition("/")[2]]
    if "properties" in field:
        return _objects(field)
    if "enum" in field:
        return st.sampled_from(field["enum"]) | _ANYTHING
    meant: dict[str, st.SearchStrategy[Any]] = {
        "integer": st.integers(),
        "string": st.text(max_size=4),
        "boolean": st.booleans(),
        "array": st.lists(_meant(field["items"]), max_size=3) if "items" in field else _ANYTHING,
    }
    return meant[field["type"]] | st.none() | _ANYTHING


def _part(read: Any, like: Any) -> Any:
    """What was read, without the fields that were not given."""
    if isinstance(like, dict):
        return {name: _part(read[name], each) for name, each in like.items()}
    if isinstance(like, list):
        return [_part(*pair) for pair in zip(read, like, strict=True)]
    return read


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects that have the shape, or nearly, or not at all."""
    fields = {name: _meant(field) for name, field in schema["properties"].items()}
    nearly = st.fixed_dictionaries({}, optional={**fields, "unknown": _ANYTHING})
    return nearly | st.fixed_dictionaries(fields) | _ANYTHING


@pytest.mark.parametrize("shape", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.slow
def test_check_and_schema_agree(shape: type[Shape]) -> None:
    """A body passes the check if, and only if, it is what the document promises to take."""
    validator = OAS31Validator({**SCHEMAS[shape.__name__], "components": {"schemas": SCHEMAS}})

    @settings(max_examples=60)
    @given(_objects(SCHEMAS[shape.__name__]))
    def compare(value: object) -> None:
        body = json.dumps(value).encode()
        if validator.is_valid(value):
            assert isinstance(value, dict)
            assert _part(msgspec.to_builtins(decoded(body, shape).given()), value) == value
        else:
            with pytest.raises(InvalidArgumentError):
                decoded(body, shape)

    compare()


def test_a_refusal_names_the_choices() -> None:
    """Protects users of a wrong tier or claim from having to look the right ones up."""
    with pytest.raises(InvalidArgumentError) as caught:
        decoded(b'{"tier": "x"}', REQUESTS["NamespaceUpdate"])
    assert "Basic, Standard, Premium, Dedicated" in caught.value.next_step
    with pytest.raises(InvalidArgumentError) as caught:
        decoded(b'{"name": "a", "claims": ["x"]}', REQUESTS["PolicyCreation"])
    assert "Send, Listen, Manage" in caught.value.next_step


@pytest.mark.parametrize(
    "body", [b"\xff", b'{"name": 1}', b'{"name": NaN}', b'{"name": "', b'{"name": "\\udc00"}']
)
def test_what_is_no_such_json_is_refused(body: bytes) -> None:
    """Bytes that are no JSON, half characters, and values of another type."""
    with pytest.raises(InvalidArgumentError):
        decoded(body, Named)


async def test_the_document_is_made_in_slices_and_once(broker: Broker, clock: SetClock) -> None:
    """Anybody may ask for it first: all shapes in one step held up every peer for half a second."""
    slices: list[int] = []

    class Watched(SlicedWork):
        async def collect(self, items: Iterator[T | None], *, address: object = None) -> list[T]:
            found = await super().collect(items, address=address)
            slices.append(len(found))
            return found

    administration = Administration(
        broker, clock=clock, capture_statistics=dict, sliced_work=Watched(), budget=MemoryBudget(1)
    )
    (route,) = (each for each in administration.routes() if isinstance(each, Route) and "open" in each.path)
    for _ in range(2):
        answer = await route.endpoint(Request({"type": "http", "client": ("192.0.2.1", 1)}))
        assert json.loads(answer.body) == openapi_document()
    assert slices == [len([*each_schema()])]
