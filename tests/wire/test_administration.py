"""The table of administrative requests: every one comes back as it was sent, and nothing else is taken."""

from __future__ import annotations

import pytest

from tidegate.amqp.message import Message, decode_message, encode_message
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import InvalidArgumentError, NotFoundError, RemoteProtocolError
from tidegate.model.hub_settings import HUB_SETTINGS
from tidegate.wire.administration import (
    Administration,
    AdministrationRequest,
    HubPart,
    encode_administration_response,
    map_in,
    maps_in,
    names_in,
)
from tidegate.wire.request_response import Request, encode_error_response

_VALUES: dict[str, object] = {
    **{setting.name: 24 if setting.kind is int else "text" for setting in HUB_SETTINGS},
    "retention_bytes": None,
    "claims": ["Send", "Listen"],
    "is_secondary": True,
    "units": 2**40,
    "tier": "Standard",
    **CaptureSettings("/var/lib/capture").to_mapping(),
}


def _request(operation: Administration, *, with_hub: bool) -> AdministrationRequest:
    form = operation.value
    return AdministrationRequest(
        operation,
        "hub" if with_hub else "",
        "somebody" if form.name_property is not None else "",
        {name: _VALUES[name] for name in form.values},
        security_token="secret",
    )


def _decoded(message: Message) -> AdministrationRequest | None:
    return AdministrationRequest.from_request(Request.from_message(decode_message(encode_message(message))))


@pytest.mark.parametrize("operation", Administration, ids=lambda operation: operation.name)
def test_every_request_comes_back(operation: Administration) -> None:
    """Both sides know every row of the table, with and without what may be left out."""
    for with_hub in (True, False):
        if operation.value.hub not in (HubPart.OPTIONAL, HubPart.REQUIRED if with_hub else HubPart.ABSENT):
            continue
        request = _request(operation, with_hub=with_hub)
        assert _decoded(request.to_message()) == request
        assert "secret" not in repr(request)


@pytest.mark.parametrize("operation", Administration, ids=lambda operation: operation.name)
def test_what_is_missing_or_unknown_is_refused(operation: Administration) -> None:
    """A request without its hub or name, or with a value that the table lacks, changes nothing."""
    form = operation.value
    words: dict[object, object] = {"operation": form.operation, "type": form.entity}
    if form.hub is HubPart.REQUIRED or form.name_property is not None:
        with pytest.raises(InvalidArgumentError):
            _decoded(Message(application_properties=words))
    words |= {"name": "hub", form.name_property or "unused": "somebody"}
    with pytest.raises(InvalidArgumentError, match="knows no 'color'"):
        _decoded(Message(application_properties=words, value={"color": "red"}))


def test_other_requests_are_left_to_others() -> None:
    """What Event Hubs itself has is no business of this table."""
    others: list[dict[object, object]] = [
        {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"},
        {"operation": "DROP", "type": "tidegate:policy", "name": "hub"},
        {"operation": "READ"},
    ]
    for words in others:
        assert _decoded(Message(application_properties=words)) is None


def test_values_are_checked() -> None:
    """A value of another kind is refused with its name, whatever sent it."""
    values: dict[str, object] = {"units": "4", "is_secondary": 1, "claims": ["Send", 5], "tier": 2}
    request = AdministrationRequest(Administration.UPDATE_THROUGHPUT, values=values)
    for read, name in (
        (request.integer, "units"),
        (request.boolean, "is_secondary"),
        (request.texts, "claims"),
        (request.text, "tier"),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            read(name)
    with pytest.raises(InvalidArgumentError):
        AdministrationRequest(Administration.UPDATE_THROUGHPUT, values={"units": True}).integer("units")


def test_answers_come_back() -> None:
    """Maps, lists of maps and lists of names; a refusal is raised, and another kind of body is, too."""

    def answer(body: object) -> Message:
        return decode_message(encode_administration_response("1", Administration.READ_POLICY, body))

    policy = {"name": "p", "claims": ["Send"], "units": None, "count": 2**40}
    assert map_in(answer(policy)) == policy
    assert maps_in(answer([policy])) == [policy]
    assert names_in(answer(["a", "b"])) == ["a", "b"]
    for read, body in ((map_in, []), (maps_in, {}), (names_in, None), (maps_in, ["a"])):
        with pytest.raises(RemoteProtocolError):
            read(answer(body))
    with pytest.raises(NotFoundError):
        map_in(decode_message(encode_error_response("1", NotFoundError("no such policy"))))
