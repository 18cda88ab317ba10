"""The table of Blob Storage's operations: what each is called by, which permission it needs, and its handler.

These are those that official checkpoint stores, the Functions trigger and the older Event Processor Hosts
call. What is not in the table is refused, and so is a header or parameter that would change its meaning.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from tidegate.broker import Action, Broker
from tidegate.broker.blobs import lease as leases
from tidegate.broker.blobs.blob import CONTENT_TYPE_DEFAULT, Conditions
from tidegate.broker.blobs.lease import Lease
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.gateway.http.blobs.access import Access
from tidegate.gateway.http.blobs.answers import (
    list_document,
    list_entry,
    md5_of,
    metadata_headers,
    property_headers,
    version_headers,
)
from tidegate.gateway.http.blobs.signatures import SIGNATURE_PARAMETERS, BlobRequest, http_time
from tidegate.gateway.http.long_answers import LongAnswer
from tidegate.transport.sliced_work import SlicedWork

LIST_MAX: Final = 1_000
"""Blobs of one answer; Azure's maximum is 5,000 (our choice: about 1 MB)."""

_METADATA: Final = "x-ms-meta-"
_RANGE: Final = re.compile(r"bytes=(\d{1,9})-(\d{0,18})", re.ASCII)
_COMMON: Final = frozenset({"restype", "comp", "timeout", "api-version"}) | SIGNATURE_PARAMETERS

_REFUSED_HEADERS: Final = re.compile(
    "x-ms-(copy-.*|source-.*|encryption-.*|tags|if-tags|blob-public-access|access-tier|"
    "immutability-policy-.*|legal-hold|blob-content-(encoding|language|disposition)|blob-cache-control)"
)
"""Headers with a meaning that is not here."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be served."""

    broker: Broker
    access: Access
    request: BlobRequest
    metadata: Mapping[str, str]
    """By name as spelled."""
    body: bytes
    sliced_work: SlicedWork
    address: object
    """Of the client, for ``sliced_work``."""

    def header(self, name: str) -> str | None:
        """None: it has no such header, or an empty one."""
        return self.request.headers.get(name) or None

    @property
    def lease_id(self) -> str | None:
        """The id of a lease in the headers, in lower case."""
        given = self.header("x-ms-lease-id")
        return None if given is None else given.lower()

    @property
    def place(self) -> tuple[str, str, str]:
        """Account id, container and blob."""
        return self.access.account_id, self.request.container, self.request.blob

    def conditions(self) -> Conditions:
        """The conditions in the headers. Raises BlobRefusedError."""
        return Conditions(
            _etag(self.header("if-match")),
            _etag(self.header("if-none-match")),
            self._time("if-modified-since"),
            self._time("if-unmodified-since"),
        )

    def record(self, action: Action, *, old: Mapping[str, object] | None = None) -> None:
        """Record a change of the container in the audit trail."""
        if self.access.grant is not None:  # the key of the development account is public, and could fill it
            self.broker.audit.record(action, f"{self.access.account}/{self.request.container}", old=old)

    def number(self, name: str) -> int | None:
        """An integer in a header. Raises BlobRefusedError."""
        text = self.header(name)
        if text is None:
            return None
        if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) is None:
            raise BlobRefusedError(Refusal.INVALID_HEADER, f"{name} is not an integer.")
        return int(text)

    def _time(self, name: str) -> datetime | None:
        text = self.header(name)
        try:
            return None if text is None else http_time(text)
        except ValueError as error:
            raise BlobRefusedError(Refusal.INVALID_HEADER, f"{name} is not a time.") from error


Handler = Callable[[Call], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    method: str
    resource: str
    """``c``: a container, ``o``: a blob."""
    restype: str
    comp: str
    permissions: str
    """Of a shared access signature; any of them is enough."""
    handler: Handler
    parameters: frozenset[str] = frozenset()
    """Of the query, besides those of all operations."""
    needs_manage: bool = False
    """Whether the policy needs Manage, not only Listen."""


async def _create_container(call: Call) -> Response:
    account_id, name, _ = call.place
    container = await call.broker.blobs.create_container(account_id, name, call.metadata)
    call.record(Action.CREATE_CONTAINER)
    return Response(None, 201, version_headers(container.etag, container.created_at_ms))


async def _read_container(call: Call) -> Response:
    account_id, name, _ = call.place
    container = call.broker.blobs.container(account_id, name)
    headers = {
        **version_headers(container.etag, container.created_at_ms),
        **metadata_headers(container.metadata),
        "x-ms-lease-status": "unlocked",
        "x-ms-lease-state": "available",
        "x-ms-has-immutability-policy": "false",
        "x-ms-has-legal-hold": "false",
    }
    return Response(None, 200, headers)


async def _delete_container(call: Call) -> Response:
    account_id, name, _ = call.place
    count = await call.broker.blobs.delete_container(account_id, name)
    call.record(Action.DELETE_CONTAINER, old={"blobs": count})
    return Response(None, 202)


async def _list_blobs(call: Call) -> Response:
    account_id, container, _ = call.place
    query = call.request.query
    text = query.get("maxresults", "") or str(LIST_MAX)
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) == 0:
        raise BlobRefusedError(Refusal.INVALID_QUERY_PARAMETER, "maxresults is not a positive integer.")
    store = call.broker.blobs
    has_metadata = "metadata" in query.get("include", "").split(",")
    async with call.sliced_work.alone((account_id, call.address)):
        page = store.page(
            account_id,
            container,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=_name_in(query.get("marker", "")),
            count=min(int(text), LIST_MAX),
        )
        now = store.now
        entries = await call.sliced_work.collect(
            (list_entry(each, now, has_metadata=has_metadata) for each in page), address=call.address
        )
    marker = "" if page.following is None else base64.urlsafe_b64encode(page.following.encode()).decode()
    head, tail = list_document(call.request.account, container, query, marker)
    budget = call.sliced_work.budget
    return LongAnswer(entries, budget, head=head, tail=tail, media_type="application/xml")


async def _put_blob(call: Call) -> Response:
    if call.header("x-ms-blob-type") != "BlockBlob":
        raise BlobRefusedError(Refusal.INVALID_HEADER, "x-ms-blob-type is not BlockBlob.")
    md5 = md5_of(call.body)
    for name in ("content-md5", "x-ms-blob-content-md5"):
        if call.header(name) not in (None, md5):
            raise BlobRefusedError(Refusal.MD5_MISMATCH)
    content_type = (
        call.header("x-ms-blob-content-type") or call.header("content-type") or CONTENT_TYPE_DEFAULT
    )
    if len(content_type) > 256 or not (content_type.isascii() and content_type.isprintable()):
        raise BlobRefusedError(Refusal.INVALID_HEADER, "The type of the content is invalid.")
    rights = call.access.rights
    blob = await call.broker.blobs.put(
        *call.place,
        call.conditions(),
        lease_id=call.lease_id,
        content=call.body,
        content_type=content_type,
        metadata=call.metadata,
        is_new_only=rights is not None and "w" not in rights.permissions,
    )
    headers = {"Content-MD5": md5, "x-ms-request-server-encrypted": "false"}
    return Response(None, 201, version_headers(blob.etag, blob.modified_at_ms) | headers)


async def _read_blob(call: Call) -> Response:
    store = call.broker.blobs
    held = store.read(*call.place, call.conditions(), lease_id=call.lease_id)
    content, headers = held.blob.content, property_headers(held, store.now)
    if call.request.method == "HEAD":
        return Response(None, 200, headers | {"Content-Length": str(len(content))})
    wanted = call.header("x-ms-range") or call.header("range")
    match = None if wanted is None else _RANGE.fullmatch(wanted)
    if match is None:
        return Response(content, 200, headers)
    first, last = int(match[1]), min(int(match[2] or len(content)), len(content) - 1)
    if first > last:
        raise BlobRefusedError(Refusal.INVALID_RANGE)
    # The digest of the whole has another name where a part is sent.
    headers["x-ms-blob-content-md5"] = headers.pop("Content-MD5")
    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return Response(content[first : last + 1], 206, headers)


async def _read_metadata(call: Call) -> Response:
    blob = call.broker.blobs.read(*call.place, call.conditions(), lease_id=call.lease_id).blob
    return Response(
        None, 200, version_headers(blob.etag, blob.modified_at_ms) | metadata_headers(blob.metadata)
    )


async def _set_metadata(call: Call) -> Response:
    blob = await call.broker.blobs.set_metadata(
        *call.place, call.conditions(), lease_id=call.lease_id, metadata=call.metadata
    )
    headers = {"x-ms-request-server-encrypted": "false"}
    return Response(None, 200, version_headers(blob.etag, blob.modified_at_ms) | headers)


async def _delete_blob(call: Call) -> Response:
    await call.broker.blobs.delete(*call.place, call.conditions(), lease_id=call.lease_id)
    return Response(None, 202, {"x-ms-delete-type-permanent": "true"})


async def _lease_blob(call: Call) -> Response:
    action = (call.header("x-ms-lease-action") or "").lower()
    if action not in _LEASE_ACTIONS:
        raise BlobRefusedError(Refusal.INVALID_HEADER, "x-ms-lease-action is unknown.")
    status, change = _LEASE_ACTIONS[action]
    store = call.broker.blobs
    held = await store.change_lease(*call.place, call.conditions(), partial(change, call))
    headers = version_headers(held.blob.etag, held.blob.modified_at_ms)
    if held.lease is not None and action == "break":
        left_s = max(0.0, (held.lease.broken_at or 0.0) - store.now)
        headers["x-ms-lease-time"] = str(round(left_s))
    elif held.lease is not None:
        headers["x-ms-lease-id"] = held.lease.stored.lease_id
    return Response(None, status, headers)


def _acquire(call: Call, lease: Lease | None, now: float) -> Lease:
    proposed = call.header("x-ms-proposed-lease-id")
    lease_id = str(uuid.uuid4()) if proposed is None else _guid(proposed)
    duration_s = call.number("x-ms-lease-duration")
    return leases.acquired(
        lease, now, lease_id=lease_id, duration_s=leases.INFINITE if duration_s is None else duration_s
    )


def _renew(call: Call, lease: Lease | None, now: float) -> Lease:
    return leases.renewed(lease, now, lease_id=_lease_id(call))


def _change(call: Call, lease: Lease | None, now: float) -> Lease:
    proposed = _guid(call.header("x-ms-proposed-lease-id") or "")
    return leases.changed(lease, now, lease_id=_lease_id(call), proposed_id=proposed)


def _release(call: Call, lease: Lease | None, now: float) -> None:
    leases.released(lease, lease_id=_lease_id(call))


def _break(call: Call, lease: Lease | None, now: float) -> Lease:
    period_s = call.number("x-ms-lease-break-period")
    if period_s is not None and not 0 <= period_s <= 60:
        raise BlobRefusedError(Refusal.INVALID_HEADER, "x-ms-lease-break-period is not 0 to 60 s.")
    return leases.broken(lease, now, period_s=period_s)


_LEASE_ACTIONS: Final[Mapping[str, tuple[int, Callable[[Call, Lease | None, float], Lease | None]]]] = {
    "acquire": (201, _acquire),
    "renew": (200, _renew),
    "change": (200, _change),
    "release": (200, _release),
    "break": (202, _break),
}

_LIST: Final = frozenset({"prefix", "marker", "maxresults", "include", "delimiter"})

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("PUT", "c", "container", "", "cw", _create_container),
    Operation("GET", "c", "container", "", "r", _read_container),
    Operation("GET", "c", "container", "metadata", "r", _read_container),
    Operation("DELETE", "c", "container", "", "d", _delete_container, needs_manage=True),
    Operation("GET", "c", "container", "list", "l", _list_blobs, _LIST),
    Operation("PUT", "o", "", "", "cw", _put_blob),
    Operation("GET", "o", "", "", "r", _read_blob),
    Operation("GET", "o", "", "metadata", "r", _read_metadata),
    Operation("PUT", "o", "", "metadata", "w", _set_metadata),
    Operation("DELETE", "o", "", "", "d", _delete_blob),
    Operation("PUT", "o", "", "lease", "wd", _lease_blob),
)
"""Every operation there is. HEAD is answered as GET is, without a body."""

_BY_CALL: Final = {(each.method, each.resource, each.restype, each.comp): each for each in OPERATIONS}


def operation_of(request: BlobRequest) -> Operation:
    """The operation that a request asks for. Raises BlobRefusedError."""
    query = request.query
    restype, comp = query.get("restype", "").lower(), query.get("comp", "").lower()
    resource = "o" if request.blob else "c" if request.container else "s"
    method = "GET" if request.method == "HEAD" else request.method
    found = _BY_CALL.get((method, resource, restype, comp))
    if found is None:
        raise BlobRefusedError(
            Refusal.UNSUPPORTED_OPERATION, "It has those that official checkpoint stores use."
        )
    unknown = query.keys() - _COMMON - found.parameters
    if unknown:
        raise BlobRefusedError(Refusal.UNSUPPORTED_QUERY_PARAMETER, f"It is {min(unknown)[:40]!r}.")
    for name, value in request.headers.items():
        if value and _REFUSED_HEADERS.fullmatch(name):
            raise BlobRefusedError(Refusal.UNSUPPORTED_HEADER, f"It is {name[:40]}.")
    return found


def metadata_in(headers: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The metadata in a request's headers. names: of headers as sent, by name in lower case."""
    return {
        names.get(name, name)[len(_METADATA) :]: value
        for name, value in headers.items()
        if name.startswith(_METADATA)
    }


def _lease_id(call: Call) -> str:
    if call.lease_id is None:
        raise BlobRefusedError(Refusal.INVALID_HEADER, "x-ms-lease-id is missing.")
    return call.lease_id


def _guid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise BlobRefusedError(Refusal.INVALID_HEADER, "A lease's id is not a GUID.") from error


def _etag(text: str | None) -> str | None:
    return None if text is None else text.removeprefix("W/").strip('"')


def _name_in(marker: str) -> str:
    try:
        return base64.urlsafe_b64decode(marker).decode()
    except ValueError as error:
        raise BlobRefusedError(Refusal.INVALID_QUERY_PARAMETER, "The marker is of no list.") from error
