"""Publishing by REST, as Event Hubs has it.

    POST /{hub}/messages                          one event, or a batch
    POST /{hub}/partitions/{partition}/messages   the same, to one partition

``Authorization`` holds a shared access signature. ``Content-Type: application/vnd.microsoft.servicebus.json``
is a batch: a JSON list of ``{"Body", "UserProperties", "BrokerProperties"}``; anything else is one event
whose body is the request's. 201 once the events are durable; errors are ``<Error><Code/><Detail/></Error>``.
Source: Azure "Send event" and "Send batch events" (Event Hubs REST, 2026-09).
"""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidegate.broker import Broker, Claim
from tidegate.gateway.http_errors import XML, error_response
from tidegate.model.clock import Clock
from tidegate.model.errors import EventTooLargeError, InvalidArgumentError, TidegateError, UnauthorizedError
from tidegate.model.events import EventData, PropertyValue
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.wire.batch import wrap_event
from tidegate.wire.conditions import error_description, http_status_for
from tidegate.wire.event_codec import encode_event

BATCH_CONTENT_TYPE = "application/vnd.microsoft.servicebus.json"

_OWN_HEADER = re.compile(
    "accept(-.*)?|authorization|brokerproperties|cache-control|connection|content-.*|cookie|date|expect|host|"
    "keep-alive|origin|pragma|referer|te|trailer|transfer-encoding|upgrade|user-agent|via"
)
"""Headers with a meaning in HTTP; the others are properties of the event."""

_log = logging.getLogger(__name__)


class Publishing:
    """Answers the requests that publish."""

    def __init__(self, broker: Broker, *, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    def routes(self) -> list[BaseRoute]:
        """What is served."""
        return [
            Route("/{hub}/messages", self._publish, methods=["POST"]),
            Route("/{hub}/partitions/{partition}/messages", self._publish, methods=["POST"]),
        ]

    async def _publish(self, request: Request) -> Response:
        try:
            await self._append(request)
        except TidegateError as error:
            _log.info("publishing to %.300r refused: %s", request.url.path, error)
            return error_response(http_status_for(error), error_description(error))
        except ClientDisconnect:
            return error_response(400, "The request ended before its body was complete.")
        return Response(status_code=201, media_type=XML)

    async def _append(self, request: Request) -> None:
        path = request.url.path.strip("/")
        host = request.headers.get("host", "")
        grant = self._broker.authorize(request.headers.get("authorization", ""), f"sb://{host}/{path}")
        if not grant.permits(path, Claim.SEND, now_utc=self._clock.now_utc()):
            raise UnauthorizedError(f"The policy {grant.policy_name!r} does not give the claim Send.")
        event_hub = self._broker.event_hub(request.path_params["hub"])
        partition_id = request.path_params.get("partition")
        body = await _read_body(request)
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() == BATCH_CONTENT_TYPE:
            publication = _parse_batch(body)
        else:
            publication = _parse_single(body, request.headers)
        key = publication.partition_key
        partition = (
            event_hub.partition_for(key) if partition_id is None else event_hub.partition(partition_id)
        )
        sections = [wrap_event(encode_event(event, key)) for event in publication.events]
        await partition.append(b"".join(sections), array("I", map(len, sections)))


@dataclass(frozen=True, slots=True)
class _Publication:
    events: Sequence[EventData]
    partition_key: str | None


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > EVENT_BYTES_MAX:
            raise EventTooLargeError(f"The request has more than {EVENT_BYTES_MAX} bytes, the most allowed.")
    return bytes(body)


def _parse_single(body: bytes, headers: Mapping[str, str]) -> _Publication:
    properties: dict[str, PropertyValue] = {
        name: _unquote(value)
        for name, value in headers.items()
        if _OWN_HEADER.fullmatch(name.lower()) is None
    }
    text = headers.get("brokerproperties")
    broker_properties = None if text is None else _parse_json(text, "The header BrokerProperties")
    return _Publication([EventData(body, properties)], _partition_key(broker_properties))


def _parse_batch(body: bytes) -> _Publication:
    items = _parse_json(body, "The batch")
    if not isinstance(items, list) or not items:
        raise InvalidArgumentError("The batch is not a JSON list of at least one event.")
    events: list[EventData] = []
    keys: set[str | None] = set()
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("Body"), str):
            raise InvalidArgumentError(f"Event {number} of the batch has no text in its Body.")
        properties = item.get("UserProperties") or {}
        if not isinstance(properties, dict) or any(
            isinstance(value, (list, dict)) for value in properties.values()
        ):
            raise InvalidArgumentError(
                f"The UserProperties of event {number} of the batch are not an object of plain values."
            )
        events.append(EventData(_utf8(item["Body"], f"The Body of event {number}"), properties))
        keys.add(_partition_key(item.get("BrokerProperties")))
    if len(keys) > 1:
        raise InvalidArgumentError(
            "The events of the batch have different partition keys.", next_step="Send one batch per key."
        )
    return _Publication(events, keys.pop())


def _partition_key(broker_properties: object) -> str | None:
    if broker_properties is None:
        return None
    if not isinstance(broker_properties, dict):
        raise InvalidArgumentError("BrokerProperties is not a JSON object.")
    key = broker_properties.get("PartitionKey")
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidArgumentError("The PartitionKey is not text.")
    _utf8(key, "The PartitionKey")
    return key


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair
        raise InvalidArgumentError(f"{what} holds half a character: {error.reason}.") from error


def _parse_json(text: str | bytes, what: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{what} is not JSON: {error}.") from error


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
