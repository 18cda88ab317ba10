"""$cbs and $management: requests and responses of both sides, as the official Python client has them, too."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from azure.eventhub._pyamqp import _decode
from azure.eventhub._pyamqp.message import Message as TheirMessage
from azure.eventhub._pyamqp.message import Properties as TheirProperties
from tests.support.responses import encode_error_response
from tests.wire.official_client import message_payload

from tidegate.amqp.message import Message, MessageId, Properties, decode_message, encode_message
from tidegate.amqp.types import ULong
from tidegate.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    RemoteProtocolError,
    UnauthorizedError,
)
from tidegate.model.history import History
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.model.times import time_of
from tidegate.wire.cbs import ACCEPTED, SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.management import (
    ManagementRequest,
    Operation,
    event_hub_from_map,
    event_hub_to_map,
    partition_from_map,
    partition_to_map,
    partitions_from_list,
)
from tidegate.wire.request_response import Request, Response, encode_response, successful_value

HUB = EventHubProperties(
    "hub", time_of(1_700_000_000_000), ("0", "1"), namespace_id="0123abcd", retention_hours=24
)
PARTITION = PartitionEnds("hub", "0", 5, 17, "16", 1_700_000_000_000, (History("a1", 3), History("b2", 16)))


def _over_the_wire(message: Message) -> Message:
    sent = replace(message, properties=Properties(message_id="1", reply_to="here"))
    return decode_message(encode_message(sent))


@pytest.mark.parametrize("name", ["name", "partition"])
def test_long_names_are_refused_by_their_length(name: str) -> None:
    """Any client may send them, and each costs its length several times if it is looked for."""
    words: dict[str, object] = {"type": "com.microsoft:partition", "name": "h", "partition": "0"}

    def read(value: str) -> ManagementRequest:
        return ManagementRequest.from_request(Request("READ", words | {name: value}))

    with pytest.raises(InvalidArgumentError, match=rf"'{name}' of the request has more than 1024 characters"):
        read("%" * 1025)
    assert read("%" * 1024) is not None


def test_a_token_is_put_and_accepted() -> None:
    """Protects our client's authorisation, and the secrecy of the token in logs."""
    put = PutToken(SAS_TOKEN_TYPE, "sb://h/hub", "SharedAccessSignature secret", 5)
    request = Request.from_message(_over_the_wire(put_token_request(put)))
    assert PutToken.from_request(request) == replace(put, expires_at_s=None)
    assert (request.message_id, request.reply_to) == ("1", "here")
    assert "secret" not in repr(request) + repr(put)
    accepted = Response.from_message(decode_message(encode_response("1", ACCEPTED)))
    assert (accepted.status_code, accepted.status_description) == (202, "Accepted")


def test_the_official_clients_put_token_is_read() -> None:
    """Protects azure-eventhub 5.15.1's authorisation."""
    payload = message_payload(
        TheirMessage(
            value="SharedAccessSignature sr=x",
            properties=TheirProperties(message_id=UUID(int=7), reply_to="cbs"),
            application_properties={
                "name": "sb://h/hub",
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "expiration": 1_700_000_000,
            },
        )
    )
    request = Request.from_message(decode_message(payload))
    assert PutToken.from_request(request).audience == "sb://h/hub"
    assert request.message_id == UUID(int=7)


@pytest.mark.parametrize("message_id", ["text", UUID(int=7), ULong(7), b"bytes"], ids=repr)
def test_the_correlation_id_has_the_type_of_the_message_id(message_id: MessageId) -> None:
    """Protects clients that compare the two by type, too."""
    properties = decode_message(encode_response(message_id, ACCEPTED)).properties
    assert properties is not None
    assert (type(properties.correlation_id), properties.correlation_id) == (type(message_id), message_id)


def test_refusals_carry_status_text_and_condition() -> None:
    """Protects the way in which clients learn why, and that ours raises the same error again."""
    for error, status in ((NotFoundError("no hub"), 404), (UnauthorizedError("bad key"), 401)):
        message = decode_message(encode_error_response("1", error, tracking_id="t-1"))
        response = Response.from_message(message)
        assert response.status_code == status
        assert response.status_description.startswith(f"{error} TrackingId:t-1")
        with pytest.raises(type(error)):
            successful_value(message)


def test_the_official_client_reads_our_answers() -> None:
    """Protects azure-eventhub 5.15.1's properties calls: the keys and types that it looks for."""
    theirs = _decode.decode_payload(memoryview(encode_response("1", 200, event_hub_to_map(HUB))))
    assert theirs.application_properties == {
        b"status-code": 200,
        b"status-description": b"OK",
        b"statusDescription": b"OK",
    }
    assert theirs.value is not None
    assert theirs.value[b"name"] == b"hub"
    assert theirs.value[b"partition_ids"] == [b"0", b"1"]
    assert theirs.value[b"created_at"] == 1_700_000_000_000
    theirs = _decode.decode_payload(memoryview(encode_response("1", 200, partition_to_map(PARTITION))))
    assert theirs.value is not None
    assert theirs.value[b"begin_sequence_number"] == 5
    assert theirs.value[b"last_enqueued_offset"] == b"16"
    assert theirs.value[b"is_partition_empty"] is False
    # The official Rust client fails without the second (0.16.0) or without either (earlier versions).
    assert theirs.value[b"begin_sequence_number_epoch"] == -1
    assert theirs.value[b"last_enqueued_sequence_number_epoch"] == -1


@pytest.mark.parametrize(
    "request_",
    [
        ManagementRequest(Operation.READ_EVENT_HUB, "hub", security_token="secret"),
        ManagementRequest(Operation.READ_PARTITION, "hub", "3"),
        ManagementRequest(Operation.QUERY_PARTITIONS, "hub"),
    ],
    ids=lambda request: request.operation.name,
)
def test_a_management_request_comes_back(request_: ManagementRequest) -> None:
    """Protects both sides of every operation."""
    message = _over_the_wire(request_.to_message())
    assert ManagementRequest.from_request(Request.from_message(message)) == request_
    assert "secret" not in repr(request_)


def _answered(value: object) -> object:
    return successful_value(decode_message(encode_response("1", 200, value)))


def test_descriptions_come_back() -> None:
    """Protects the answers of every operation."""
    azure = replace(HUB, retention_hours=None, namespace_id=None)
    for hub in (HUB, azure):
        assert event_hub_from_map(_answered(event_hub_to_map(hub))) == hub
    assert partition_from_map(_answered(partition_to_map(PARTITION))) == PARTITION
    partitions = [PARTITION, replace(PARTITION, partition_id="7")]
    assert partitions_from_list(_answered([partition_to_map(each) for each in partitions])) == partitions
    with pytest.raises(AlreadyExistsError):
        successful_value(decode_message(encode_error_response("1", AlreadyExistsError("there is one"))))


@pytest.mark.parametrize(
    "message",
    [
        Message(),
        Message(application_properties={"operation": "READ"}),
        Message(application_properties={"operation": "READ", "type": "com.microsoft:topic", "name": "h"}),
        Message(application_properties={"operation": "READ", "type": "com.microsoft:eventhub"}),
        Message(application_properties={"operation": "READ", "type": "com.microsoft:partition", "name": "h"}),
        Message(application_properties={"operation": "DROP", "type": "com.microsoft:eventhub", "name": "h"}),
    ],
)
def test_a_request_that_lacks_something_is_refused(message: Message) -> None:
    """Protects the service from guessing, and tells the caller what is missing."""
    with pytest.raises(InvalidArgumentError):
        ManagementRequest.from_request(Request.from_message(message))
    with pytest.raises(InvalidArgumentError):
        PutToken.from_request(Request.from_message(message))


def test_properties_of_a_request_are_text_by_name() -> None:
    """Protects time: a name, or a token, that is no text is not made into text, which may take as long as its
    sender likes.
    """
    named = {"operation": "READ", 5: "x", b"type": "y", "security_token": [1]}
    request_ = Request.from_message(Message(application_properties=named))
    assert request_.properties == {"operation": "READ", "security_token": [1]}
    with pytest.raises(InvalidArgumentError):
        request_.optional_text("security_token")


@pytest.mark.parametrize(
    "message",
    [
        Message(),
        Message(application_properties={"status-code": "200"}),
        Message(application_properties={"status-code": 200}),
        Message(application_properties={"status-code": 200}, value={"name": 5}),
    ],
)
def test_an_answer_that_lacks_something_is_refused(message: Message) -> None:
    """Protects the client from half an answer."""
    for read in (event_hub_from_map, partition_from_map, partitions_from_list):
        with pytest.raises(RemoteProtocolError):
            read(successful_value(message))


def test_an_empty_partition_of_azure_begins_where_it_ends() -> None:
    """Its flag counts; its numbers, which are not documented then, do not make up an event."""
    found = partition_from_map(partition_to_map(PARTITION) | {"is_partition_empty": True})
    assert (found.begin_sequence_number, found.next_sequence_number, found.is_empty) == (17, 17, True)
    never = {"begin_sequence_number": -1, "last_enqueued_sequence_number": 0, "is_partition_empty": True}
    found = partition_from_map(partition_to_map(PARTITION) | never)
    assert (found.begin_sequence_number, found.next_sequence_number) == (0, 0)
    assert found.last_enqueued_time is None
