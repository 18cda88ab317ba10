"""Administration over $management: requests come back, and nothing but plain values is accepted."""

from __future__ import annotations

import pytest

from tidegate.amqp.message import Message, decode_message, encode_message
from tidegate.amqp.types import Int, Symbol
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.administration import ADMINISTRATION_ENTITY, AdministrationRequest
from tidegate.wire.request_response import Request

_REQUESTS = (
    AdministrationRequest("readNamespace"),
    AdministrationRequest("updateNamespace", values={"throughput_units": None, "tier": "Standard"}),
    AdministrationRequest("updateEventHub", {"hub": "hub"}, {"retention_hours": 2**40}),
    AdministrationRequest("deleteEventHubPolicy", {"hub": "hub", "policy": "p"}, security_token="secret"),
    AdministrationRequest("createPolicy", values={"name": "p", "claims": ["Send"], "primary_key": "secret"}),
    AdministrationRequest("setCapture", {"hub": "h"}, CaptureSettings("/var/lib/capture").to_mapping()),
)


def _decoded(message: Message) -> AdministrationRequest | None:
    return AdministrationRequest.from_request(Request.from_message(decode_message(encode_message(message))))


@pytest.mark.parametrize("request_", _REQUESTS, ids=lambda request: request.operation_id)
def test_every_request_comes_back(request_: AdministrationRequest) -> None:
    """With its parameters and values, and its secrets stay out of what is logged."""
    assert _decoded(request_.to_message()) == request_
    assert "secret" not in repr(request_)


@pytest.mark.parametrize("name", ["hub", "policy", "publisher", "group", "partition", "backup"])
def test_long_names_are_refused_by_their_length(name: str) -> None:
    """Any client may send them, and each costs its length several times if it is looked for."""
    words = {"operation": "readX", "type": ADMINISTRATION_ENTITY, name: "%" * 1025}
    with pytest.raises(InvalidArgumentError, match=rf"'{name}' of the request has more than 1024 characters"):
        AdministrationRequest.from_request(Request("readX", words))
    found = AdministrationRequest.from_request(Request("readX", words | {name: "%" * 1024}))
    assert found is not None
    assert found.parameters == {name: "%" * 1024}


def test_other_requests_are_left_to_others() -> None:
    """What Event Hubs itself has is no business of this module."""
    others: list[dict[object, object]] = [
        {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"},
        {"operation": "updateNamespace"},
    ]
    for words in others:
        assert _decoded(Message(application_properties=words)) is None


def test_values_become_plain() -> None:
    """Other clients send smaller numbers and symbols: the checks know JSON's kinds alone."""
    words: dict[object, object] = {"operation": "setX", "type": ADMINISTRATION_ENTITY}
    sent = {"a": Int(3), "b": Symbol("x"), "c": [Symbol("y"), True, None]}
    found = _decoded(Message(application_properties=words, value=sent))
    assert found is not None
    assert found.values == {"a": 3, "b": "x", "c": ["y", True, None]}
    assert [type(found.values[name]) for name in "ab"] == [int, str]


@pytest.mark.parametrize("body", [[1], "text", 5, {"a": 1.5}, {"a": b"x"}, {"a": [[[[[1]]]]]}])
def test_other_bodies_are_refused(body: object) -> None:
    """Nothing that JSON could not have said, and nothing without end."""
    words: dict[object, object] = {"operation": "setX", "type": ADMINISTRATION_ENTITY}
    with pytest.raises(InvalidArgumentError):
        _decoded(Message(application_properties=words, value=body))
