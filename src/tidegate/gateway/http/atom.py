"""The administration as old SDKs and tools call it: Event Hubs' REST interface, with Atom documents.

    GET                 /$Resources/EventHubs
    GET, PUT, DELETE    /{hub}
    GET                 /{hub}/Partitions[/{partition}]
    GET                 /{hub}/ConsumerGroups[/{group}[/Partitions[/{partition}]]]
    PUT, DELETE         /{hub}/ConsumerGroups/{group}
    GET                 /{hub}/RevokedPublishers[/{publisher}]
    PUT, DELETE         /{hub}/RevokedPublishers/{publisher}

PUT creates; with If-Match it updates. The fixed parts are case-insensitive. Claims, the limit of the body and
the audit trail are those of ``admin``; queries (``api-version``, ``timeout``) are ignored.
Source: as in ``wire.atom``. Our choice: missing entities are answered with 404.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidegate.broker import Broker, EventHub, EventHubDescription, Grant, Partition
from tidegate.gateway.administration.operations import Needs
from tidegate.gateway.administration.partition_lists import each_partition, in_slices
from tidegate.gateway.http.admin import AdministrationEndpoint
from tidegate.gateway.http.connected import while_connected
from tidegate.gateway.http.errors import response_for
from tidegate.gateway.http.long_answers import LongAnswer
from tidegate.model.clock import Clock
from tidegate.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from tidegate.model.hosts import host_of
from tidegate.model.hub_settings import HubChanges
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.atom import (
    ENTRY_TYPE,
    FEED_TYPE,
    AtomEntry,
    feed_ends,
    format_time,
    parse_description,
)

_NAME_CHARACTERS_MAX: Final = 255
"""Of a host (RFC 1035 section 2.3.4)."""

PARTITION_COUNT_DEFAULT: Final = 16
"""For a hub whose description has no number (Azure "Create Event Hub", 2026-09)."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, its claims checked."""

    broker: Broker
    parameters: Mapping[str, str]
    body: bytes
    is_update: bool
    """Whether it only changes existing entities."""
    sliced_work: SlicedWork
    """For long feeds."""
    host: str
    """As the client named it."""

    @property
    def event_hub(self) -> EventHub:
        """The event hub of the address. Raises NotFoundError."""
        return self.broker.event_hub(self.parameters["hub"])

    @property
    def group(self) -> str:
        """The consumer group of the address as its creator wrote it. Raises NotFoundError."""
        wanted = self.parameters["group"].lower()
        for name in self.event_hub.description.consumer_groups:
            if name.lower() == wanted:
                return name
        raise NotFoundError(f"The event hub {self.event_hub.name!r} has no such consumer group.")


Contents = AtomEntry | Sequence[bytes] | None
"""An entry, a feed of encoded entries, or nothing."""

Answer = Contents | Coroutine[Any, Any, Contents]


@dataclass(frozen=True, slots=True)
class AtomOperation:
    """One row of the table; ``path`` has names of parameters in braces."""

    method: str
    path: str
    operation_id: str
    needs: Needs
    handler: Callable[[_Call], Answer]


class AtomAdministration:
    """Answers the requests of old SDKs and tools."""

    def __init__(
        self, broker: Broker, *, clock: Clock, sliced_work: SlicedWork, budget: MemoryBudget
    ) -> None:
        """sliced_work: for long feeds. budget: counts them, and bodies of requests."""
        self._sliced_work = sliced_work
        self._budget = budget
        self._broker = broker
        self._clock = clock
        self._endpoint = AdministrationEndpoint(broker, clock, response_for, budget)

    def routes(self) -> list[BaseRoute]:
        """The routes; put them last, because ``/{hub}`` matches every short path."""
        by_path: dict[str, dict[str, AtomOperation]] = {}
        for operation in ATOM_OPERATIONS:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        return [
            _AnyCaseRoute(path, partial(self._answer, operations), methods=list(operations))
            for path, operations in by_path.items()
        ]

    async def _answer(self, operations: Mapping[str, AtomOperation], request: Request) -> Response:
        operation = operations["GET" if request.method == "HEAD" else request.method]
        parameters: dict[str, str] = dict(request.path_params)

        async def perform(body: bytes, grant: Grant) -> Response:
            is_update, host = "if-match" in request.headers, _host_of(request)
            answer = operation.handler(
                _Call(self._broker, parameters, body, is_update, self._sliced_work, host)
            )
            if isinstance(answer, Coroutine) and operation.method == "GET":
                answer = await while_connected(request, answer)
            contents = await answer if isinstance(answer, Coroutine) else answer
            return self._response(request, contents)

        return await self._endpoint.answer(
            request, operation.operation_id, operation.needs, parameters.get("hub"), perform
        )

    def _response(self, request: Request, answer: Contents) -> Response:
        if answer is None:
            return Response(status_code=200)
        host = _host_of(request)
        if isinstance(answer, AtomEntry):
            is_created = request.method == "PUT" and "if-match" not in request.headers
            return Response(answer.format(host), 201 if is_created else 200, media_type=ENTRY_TYPE)
        path: str = request.scope["path"]
        title, now_ms = path.rpartition("/")[2], int(self._clock.now_utc().timestamp() * 1000)
        head, tail = feed_ends(host, quote(path), title, now_ms)
        return LongAnswer(answer, self._budget, head=head.encode(), tail=tail.encode(), media_type=FEED_TYPE)


def _host_of(request: Request) -> str:
    """What the links of an answer begin with; empty if the client named none.

    Raises InvalidArgumentError for what names no host (RFC 9112 section 3.2): each row of a feed repeats it.
    """
    host = request.headers.get("host", "")
    name = host_of(host)
    if host and (name is None or len(name) > _NAME_CHARACTERS_MAX):
        raise InvalidArgumentError(
            f"The Host header {host[:80]!r} does not name a host, with or without a port."
        )
    return host


class _AnyCaseRoute(Route):
    """A route whose fixed parts are case-insensitive."""

    def __init__(self, path: str, endpoint: Callable[..., object], *, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.path_regex = re.compile(self.path_regex.pattern, re.IGNORECASE)


async def _put_event_hub(call: _Call) -> Contents:
    properties = parse_description(call.body, "EventHubDescription")
    days = _integer(properties, "MessageRetentionInDays")
    partition_count = _integer(properties, "PartitionCount")
    if properties.get("AuthorizationRules"):
        raise InvalidArgumentError(
            "AuthorizationRules are not supported here.", next_step="Create policies: tidegate policy create."
        )
    if properties.get("Status", "Active") not in ("", "Active"):
        raise InvalidArgumentError("An event hub cannot be disabled.", next_step="Leave Status out.")
    settings: HubChanges = {"retention_hours": days * 24} if days else {}
    if "UserMetadata" in properties:
        settings["user_metadata"] = properties["UserMetadata"]
    if call.is_update:
        name = call.parameters["hub"]
        return _event_hub(
            await call.broker.update_event_hub(name, partition_count=partition_count or None, **settings)
        )
    return _event_hub(
        await call.broker.create_event_hub(
            call.parameters["hub"],
            partition_count=partition_count or PARTITION_COUNT_DEFAULT,
            **settings,
        )
    )


async def _put_consumer_group(call: _Call) -> Contents:
    parse_description(call.body, "ConsumerGroupDescription")
    if not call.is_update:  # otherwise nothing could change
        await call.event_hub.create_consumer_group(call.parameters["group"])
    return _consumer_group(call.event_hub.description, call.group)


def _read_revoked_publisher(call: _Call) -> Answer:
    name = call.parameters["publisher"]
    if not call.event_hub.is_publisher_revoked(name):
        raise NotFoundError(f"The publisher {name[:80]!r} of {call.event_hub.name!r} is not revoked.")
    return _revoked_publisher(call.event_hub.description, name)


async def _revoke_publisher(call: _Call) -> Contents:
    name = call.parameters["publisher"]
    described = parse_description(call.body, "RevokedPublisherDescription").get("Name") or name
    if described != name:
        raise InvalidArgumentError("The Name in the body is not the publisher of the address.")
    try:
        await call.event_hub.revoke_publisher(name)
    except AlreadyExistsError:
        if not call.is_update:
            raise
    return _revoked_publisher(call.event_hub.description, name)


def _integer(properties: Mapping[str, str], name: str) -> int:
    """An integer; 0 if missing, which clients also send to set none."""
    text = properties.get(name) or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidArgumentError(f"{name} must be an integer, got {text[:40]!r}.")
    return int(text)


def _event_hub(event_hub: EventHub) -> AtomEntry:
    description = event_hub.description
    created = format_time(description.created_at_ms)
    return AtomEntry(
        f"/{description.name}",
        description.name,
        "EventHubDescription",
        {
            "MessageRetentionInDays": max(1, description.retention_hours // 24),
            "AuthorizationRules": "",
            "Status": "Active",
            "CreatedAt": created,
            "UpdatedAt": created,
            **({"UserMetadata": description.user_metadata} if description.user_metadata else {}),
            "PartitionCount": len(description.partition_ids),
            "PartitionIds": description.partition_ids,
        },
        description.created_at_ms,
    )


async def _feed(call: _Call, entries: Iterable[AtomEntry]) -> Sequence[bytes]:
    """A feed of entries that are made and formatted in slices: a hub may have thousands."""
    rows = (each.format(call.host, is_whole=False).encode() for each in entries)
    return await in_slices(rows, call.sliced_work)


def _consumer_groups(call: _Call) -> Answer:
    hub = call.event_hub.description
    return _feed(call, (_consumer_group(hub, name) for name in hub.consumer_groups))


def _consumer_group(hub: EventHubDescription, name: str) -> AtomEntry:
    created = format_time(hub.created_at_ms)
    return AtomEntry(
        f"/{hub.name}/ConsumerGroups/{name}",
        name,
        "ConsumerGroupDescription",
        {"CreatedAt": created, "UpdatedAt": created},
        hub.created_at_ms,
    )


async def _partitions(call: _Call) -> Sequence[bytes]:
    async def row(partition: Partition) -> bytes:
        return (await _partition(call, partition)).format(call.host, is_whole=False).encode()

    return await each_partition(call.event_hub, row, call.sliced_work)


async def _partition(call: _Call, partition: Partition) -> AtomEntry:
    ends, hub = await partition.ends(), call.event_hub.description
    within = f"/ConsumerGroups/{call.group}" if "group" in call.parameters else ""
    last_ms = ends.last_enqueued_time_ms
    properties: dict[str, str | int] = {
        "SizeInBytes": partition.stored_bytes,
        "BeginSequenceNumber": ends.begin_sequence_number,
        "EndSequenceNumber": ends.last_enqueued_sequence_number,
        "LastEnqueuedOffset": ends.last_enqueued_offset,
        "LastEnqueuedTimeUtc": "0001-01-01T00:00:00Z" if last_ms is None else format_time(last_ms),
    }
    path = f"/{hub.name}{within}/Partitions/{partition.partition_id}"
    return AtomEntry(path, partition.partition_id, "PartitionDescription", properties, hub.created_at_ms)


def _revoked_publishers(call: _Call) -> Answer:
    hub = call.event_hub.description
    return _feed(call, (_revoked_publisher(hub, name) for name in call.event_hub.revoked_publishers))


def _revoked_publisher(hub: EventHubDescription, name: str) -> AtomEntry:
    path = f"/{hub.name}/RevokedPublishers/{quote(name, safe='')}"
    return AtomEntry(path, name, "RevokedPublisherDescription", {"Name": name}, hub.created_at_ms)


_GROUP: Final = "/{hub}/ConsumerGroups/{group}"
_PUBLISHER: Final = "/{hub}/RevokedPublishers/{publisher}"
_SEE, _MANAGE = Needs.SEE, Needs.MANAGE

ATOM_OPERATIONS: Final = (
    AtomOperation(
        "GET", "/$Resources/EventHubs", "list event hubs", _SEE,
        lambda call: _feed(call, map(_event_hub, call.broker.list_event_hubs())),
    ),
    AtomOperation("GET", "/{hub}", "get event hub", _SEE, lambda call: _event_hub(call.event_hub)),
    AtomOperation("PUT", "/{hub}", "put event hub", _MANAGE, _put_event_hub),
    AtomOperation(
        "DELETE", "/{hub}", "delete event hub", _MANAGE,
        lambda call: call.broker.delete_event_hub(call.parameters["hub"]),
    ),
    AtomOperation(
        "GET", "/{hub}/ConsumerGroups", "list consumer groups", _SEE,
        _consumer_groups,
    ),
    AtomOperation(
        "GET", _GROUP, "get consumer group", _SEE,
        lambda call: _consumer_group(call.event_hub.description, call.group),
    ),
    AtomOperation("PUT", _GROUP, "put consumer group", _MANAGE, _put_consumer_group),
    AtomOperation(
        "DELETE", _GROUP, "delete consumer group", _MANAGE,
        lambda call: call.event_hub.delete_consumer_group(call.parameters["group"]),
    ),
    *(
        row
        for of in ("/{hub}", _GROUP)
        for row in (
            AtomOperation(
                "GET", f"{of}/Partitions", "list partitions", _SEE,
                lambda call: _partitions(call),
            ),
            AtomOperation(
                "GET", f"{of}/Partitions/{{partition}}", "get partition", _SEE,
                lambda call: _partition(call, call.event_hub.partition(call.parameters["partition"])),
            ),
        )
    ),
    AtomOperation(
        "GET", "/{hub}/RevokedPublishers", "list revoked publishers", _SEE,
        _revoked_publishers,
    ),
    AtomOperation("GET", _PUBLISHER, "get revoked publisher", _SEE, _read_revoked_publisher),
    AtomOperation("PUT", _PUBLISHER, "revoke publisher", _MANAGE, _revoke_publisher),
    AtomOperation(
        "DELETE", _PUBLISHER, "resume publisher", _MANAGE,
        lambda call: call.event_hub.restore_publisher(call.parameters["publisher"]),
    ),
)  # fmt: skip
