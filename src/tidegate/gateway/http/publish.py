"""Publishing over Event Hubs' REST interface.

    POST /{hub}/messages                          one event, or a batch
    POST /{hub}/partitions/{partition}/messages   the same, to one partition
    POST /{hub}/publishers/{publisher}/messages   the same, as a publisher; ``publisher`` also works

``Content-Type: application/vnd.microsoft.servicebus.json`` is a batch: a JSON list of ``{"Body",
"UserProperties", "BrokerProperties"}``; anything else is one event whose body is the request's, whose
partition key is in the header ``BrokerProperties`` and whose properties are the other headers that mean
nothing to HTTP. UserProperties are 1,000 at most. ``?timeout=`` is in seconds. 201 once all is durable.
Source: Azure "Event Hubs service REST", "Send event", "Send partition event", "Send event with publisher ID",
"Send batch events" (2026-09); the codes for 404, 408, 413 and 429 are our choice, as HTTP has them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from array import array
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import closing
from functools import lru_cache
from sys import getsizeof
from types import TracebackType
from typing import Final, Self

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidegate.amqp.encode import encode_value
from tidegate.broker import AppendResult, Broker, Claim, EventHub, Partition
from tidegate.gateway.http.authorization import RequestAuthorizer, peer_of
from tidegate.gateway.http.errors import XML, error_response, response_for
from tidegate.gateway.http.json_batch import batch_items, batch_text, partition_key
from tidegate.gateway.http.server import HEADER_NAMES
from tidegate.model.audience import beneath
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    OperationTimeoutError,
    ServerBusyError,
    TidegateError,
)
from tidegate.model.events import EventData, PropertyValue
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.addresses import NodeAddress
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event, encode_key
from tidegate.wire.names import PARTITION_KEY, PUBLISHER

BATCH_CONTENT_TYPE: Final = "application/vnd.microsoft.servicebus.json"

TIMEOUT_S_DEFAULT: Final = 60
TIMEOUT_S_MAX: Final = 300
"""Maximum time of a request, from its head to its answer. Our choice; Azure's examples use 60."""

_JSON_FACTOR: Final = 2
"""Maximum size of a batch's JSON, in largest batches (our choice: names, quotes and escapes)."""

_EVENTS_PER_COUNT: Final = 256
"""Events of a batch after which the memory that it holds is counted again."""

_OWN_HEADER = re.compile(
    "accept(-.*)?|authorization|brokerproperties|cache-control|connection|content-.*|cookie|date|dnt|expect|"
    "forwarded|from|host|if-.*|keep-alive|max-forwards|origin|pragma|priority|proxy-.*|range|referer|sec-.*|te|"
    "trailer|transfer-encoding|upgrade(-.*)?|user-agent|via|x-forwarded-.*|x-ms-retrypolicy"
)
"""Headers with a meaning in HTTP or for proxies; the others are properties of the event."""

_log = logging.getLogger(__name__)


class Publishing:
    """Answers publish requests."""

    def __init__(
        self, broker: Broker, *, clock: Clock, budget: MemoryBudget, sliced_work: SlicedWork
    ) -> None:
        """budget: counts what requests hold. sliced_work: parses large batches."""
        self._budget = budget
        self._sliced_work = sliced_work
        self._broker = broker
        self._authorizer = RequestAuthorizer(broker, clock)

    def routes(self) -> list[BaseRoute]:
        """The routes."""
        paths = ("messages", "partitions/{partition}/messages")
        publishers = ("publishers/{publisher}/messages", "publisher/{publisher}/messages")
        return [Route(f"/{{hub}}/{path}", self._publish, methods=["POST"]) for path in (*paths, *publishers)]

    async def _publish(self, request: Request) -> Response:
        try:
            timeout_s = _timeout_s(request.query_params.get("timeout"))
            try:
                async with asyncio.timeout(timeout_s) as deadline:
                    await (await self._queue(request, deadline))
            except TimeoutError as error:
                self._budget.require_room()
                raise OperationTimeoutError(
                    f"The request did not end within {timeout_s} s; whether its events are stored is unknown."
                ) from error
        except TidegateError as error:
            # An error with a separate message for remote peers is logged in full.
            level = logging.ERROR if error.remote_text else logging.INFO
            _log.log(level, "publishing to %.300r refused: %s", request.scope["path"], error)
            await self._broker.key_guard.wait_before_answer(error)
            return response_for(error)
        except ClientDisconnect:
            return error_response(400, "The client disconnected before its events were stored.")
        return Response(status_code=201, media_type=XML)

    async def _queue(self, request: Request, deadline: asyncio.Timeout) -> asyncio.Future[AppendResult]:
        """Queue the published events to be stored. What the request held is free, or counted as queued, then.

        Cancellation of this and of the result: all events are stored or none; stored ones may not be counted
        for their publisher.
        """
        hub, publisher = request.path_params["hub"], request.path_params.get("publisher")
        partition_id = request.path_params.get("partition")
        address = NodeAddress.for_sending(hub, partition_id=partition_id, publisher=publisher)
        event_hub = self._admit(request, address)
        await self._broker.wait_uncongested()
        self._budget.require_room()
        content_type = request.headers.get("content-type", "")
        is_batch = content_type.partition(";")[0].strip().lower() == BATCH_CONTENT_TYPE
        bytes_max = event_hub.event_bytes_max * (_JSON_FACTOR if is_batch else 1)
        encode = _encoder(publisher)
        with _Upload(self._budget, deadline, site_at(peer_of(request).address)) as upload:
            await upload.read_body(request, bytes_max)
            if is_batch:
                key = await self._parse_batch(request, upload, encode)
            else:
                key = _parse_single(request, upload, encode)
            upload.require_kept()
            # Again: body and parsing may take long, and a right lost meanwhile must not store anything.
            event_hub = self._admit(request, address)
            partition = _target(event_hub, partition_id, publisher, key)
            payload, lengths = bytes(upload.payload), upload.lengths
            added_bytes = 0 if publisher is None else len(_publisher_section(publisher)) * len(lengths)
            appended = partition.append_nowait(payload, lengths, added_bytes=added_bytes)
        if publisher is not None:
            event_hub.publishers.note_when_stored(
                appended, publisher, partition.partition_id, event_bytes=len(payload), is_own_address=True
            )
        return appended

    async def _parse_batch(self, request: Request, upload: _Upload, encode: _Encode) -> str | None:
        """Add the events of a batch to ``upload``; returns their partition key.

        Raises InvalidArgumentError; ClientDisconnect if the client leaves meanwhile.
        """
        keys: set[str | None] = set()

        def work() -> Generator[None, None, None]:
            # Encoded immediately: hundreds of thousands of objects would make garbage collections slow.
            for item in batch_items(upload.take_text()):
                if item is not None:
                    event, key = item
                    keys.add(key)
                    if len(keys) > 1:
                        raise InvalidArgumentError(
                            "The events of the batch have different partition keys.",
                            next_step="Send one batch per key.",
                        )
                    upload.add(encode(event, key))
                yield None

        async with TaskOwner("published batch") as watch:
            watch.start(upload.end_with_client(request), name="client")
            with closing(work()) as steps:  # else an error's traceback would keep the text until a collection
                await self._sliced_work.collect(steps, address=site_at(peer_of(request).address))
        if not upload.lengths:
            raise InvalidArgumentError("The batch is not a JSON list of at least one event.")
        return keys.pop()

    def _admit(self, request: Request, address: NodeAddress) -> EventHub:
        """The event hub, if the request may send to ``address`` now."""
        # Azure's examples create tokens for the URL that they post to, which ends in /messages.
        self._authorizer.require(request, beneath(address.entity, "messages"), Claim.SEND)
        event_hub = self._broker.event_hub(address.event_hub)
        if address.publisher is not None:
            event_hub.check_publisher(address.publisher)
        return event_hub


_Encode = Callable[[EventData, str | None], bytes]
"""Takes an event and its partition key, and returns its stored form."""


class _Upload:
    """What a request holds until its events are queued for the disk: its body, then its text, and its events
    in their stored form. It counts all of that, while the body arrives and while parsing waits for turns.
    """

    def __init__(self, budget: MemoryBudget, deadline: asyncio.Timeout, address: Hashable) -> None:
        """deadline: of the request; it ends at once when memory is exhausted, or its client leaves. address:
        as of ``MemoryBudget.open_account``."""
        self._body = bytearray()
        self._text = ""
        self.payload = bytearray()
        """The events, one after the other."""
        self.lengths = array("I")
        """Of each event, in bytes."""
        self._deadline = deadline
        self._reason: TidegateError | ClientDisconnect | None = None
        self._account = budget.open_account(self._held_bytes, address=address, end=self._end)

    async def read_body(self, request: Request, bytes_max: int) -> None:
        """Read the body. Raises EventTooLargeError, ClientDisconnect."""
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > bytes_max:
            raise _too_large(bytes_max)
        async for chunk in request.stream():
            self._body += chunk
            self._account.update()
            if len(self._body) > bytes_max:
                raise _too_large(bytes_max)

    def take_body(self) -> bytes:
        """The body, which is no longer held."""
        body = bytes(self._body)
        self._body.clear()
        return body

    def take_text(self) -> str:
        """The text of a batch in the body, which is no longer held. Raises InvalidArgumentError."""
        self._text = batch_text(self._body)
        self._body.clear()
        self._account.update()
        return self._text

    def add(self, event: bytes) -> None:
        """Add an event in its stored form."""
        self.payload += event
        self.lengths.append(len(event))
        if len(self.lengths) % _EVENTS_PER_COUNT == 0:
            self._account.update()

    async def end_with_client(self, request: Request) -> None:
        """Wait until the client leaves, and end the request then. The body has been read."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._give_up(ClientDisconnect())

    def require_kept(self) -> None:
        """Raise what ended the request, if it has been ended."""
        reason, self._reason = self._reason, None
        try:
            if reason is not None:
                raise reason
        finally:
            del reason  # its traceback has this frame

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._account.close()
        # It and the account refer to each other: the bytes must not wait for the garbage collector.
        self._body, self._text, self.payload, self.lengths = bytearray(), "", bytearray(), array("I")
        if isinstance(error, asyncio.CancelledError) and self._deadline.expired():
            self.require_kept()

    def _held_bytes(self) -> int:
        return sum(map(getsizeof, (self._body, self._text, self.payload, self.lengths)))

    def _end(self) -> None:
        self._give_up(
            ServerBusyError(
                "The request was given up to free memory; its events are not stored.",
                next_step="Send it again later.",
                retry_after_s=4.0,
            )
        )

    def _give_up(self, reason: TidegateError | ClientDisconnect) -> None:
        if not self._deadline.expired():
            self._reason = reason
            self._deadline.reschedule(0.0)


def _encoder(publisher: str | None) -> _Encode:
    if publisher is None:
        # Not by encode_event, which keeps the sections of many keys: clients would fill the service's memory.
        section = lru_cache(maxsize=1)(encode_key)
        return lambda event, key: wrap_event((b"" if key is None else section(key)) + encode_event(event))
    annotations = _publisher_section(publisher)  # with the key
    return lambda event, key: wrap_event(annotations + encode_event(event))


def _target(
    event_hub: EventHub, partition_id: str | None, publisher: str | None, key: str | None
) -> Partition:
    if partition_id is not None:
        return event_hub.partition_for(key, chosen=event_hub.partition(partition_id))
    if publisher is None:
        return event_hub.partition_for(key)
    if key is not None and key != publisher:
        raise InvalidArgumentError(
            f"The partition key {key[:40]!r} is not the publisher's name {publisher!r}.",
            next_step="Give none: a publisher's partition key is its name.",
        )
    return event_hub.partition_for(publisher)


def _publisher_section(publisher: str) -> bytes:
    return b"\x00\x53\x72" + encode_value({PARTITION_KEY: publisher, PUBLISHER: publisher})


def _timeout_s(text: str | None) -> int:
    if text is None:
        return TIMEOUT_S_DEFAULT
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise InvalidArgumentError(f"timeout must be an integer of seconds, 1 or more, got {text[:40]}.")
    return min(int(text), TIMEOUT_S_MAX)


def _too_large(bytes_max: int) -> EventTooLargeError:
    return EventTooLargeError(f"The request has more than {bytes_max} bytes, the most allowed.")


def _parse_single(request: Request, upload: _Upload, encode: _Encode) -> str | None:
    """Add the one event in the body to ``upload``; returns its partition key."""
    headers = request.headers
    names: Mapping[str, str] = request.scope.get("state", {}).get(HEADER_NAMES, {})
    properties: dict[str, PropertyValue] = {
        names.get(name, name): _unquote(value)
        for name, value in headers.items()
        if _OWN_HEADER.fullmatch(name) is None
    }
    text = headers.get("brokerproperties")
    broker_properties = None if text is None else _parse_json(text, "The header BrokerProperties")
    key = partition_key(broker_properties)
    upload.add(encode(EventData(upload.take_body(), properties), key))
    return key


def _parse_json(text: str | bytes, what: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{what} is not JSON: {error}.") from error


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
