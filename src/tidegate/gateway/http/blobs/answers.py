"""Answers of Blob Storage: headers, the XML of a list, and errors.

Source: Azure "Blob service REST API", 2026-09.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from typing import Final
from xml.etree import ElementTree

from starlette.responses import Response

from tidegate.broker.blobs.blob import Blob, Held
from tidegate.broker.blobs.lease import INFINITE, Lease
from tidegate.broker.blobs.refusals import Refusal

VERSION_DEFAULT: Final = "2021-12-02"
_VERSION: Final = re.compile(r"20\d\d-\d\d-\d\d", re.ASCII)
_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)
_XML: Final = "application/xml"
_DECLARATION: Final = '<?xml version="1.0" encoding="utf-8"?>'


def common_headers(request_headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of every answer."""
    version = request_headers.get("x-ms-version", "")
    headers = {
        "x-ms-request-id": str(uuid.uuid4()),
        "x-ms-version": version if _VERSION.fullmatch(version) else VERSION_DEFAULT,
        "Cache-Control": "no-store",
        # A blob may be a page, and the console has the same origin: no browser may run or embed it.
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Content-Disposition": "attachment",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }
    own_id = request_headers.get("x-ms-client-request-id", "")
    if _REQUEST_ID.fullmatch(own_id):
        headers["x-ms-client-request-id"] = own_id
    return headers


def error_answer(
    refusal: Refusal, message: str, headers: Mapping[str, str], *, retry_after_s: float | None = None
) -> Response:
    """The answer to a refused request."""
    headers = {**headers, "x-ms-error-code": refusal.code}
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if refusal.status == 304:
        return Response(None, 304, headers)
    error = ElementTree.Element("Error")
    ElementTree.SubElement(error, "Code").text = refusal.code
    ElementTree.SubElement(error, "Message").text = message
    return Response(_document(error), refusal.status, headers, _XML)


def version_headers(etag: str, modified_at_ms: int) -> dict[str, str]:
    """ETag and Last-Modified."""
    return {"ETag": f'"{etag}"', "Last-Modified": formatdate(modified_at_ms // 1000, usegmt=True)}


def metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata in an answer."""
    return {f"x-ms-meta-{name}": value for name, value in metadata.items()}


def property_headers(held: Held, now: float) -> dict[str, str]:
    """The properties of a blob, with its lease at the time ``now``, and its metadata."""
    blob = held.blob
    return {
        **version_headers(blob.etag, blob.modified_at_ms),
        **metadata_headers(blob.metadata),
        "x-ms-blob-type": "BlockBlob",
        "x-ms-creation-time": formatdate(blob.created_at_ms // 1000, usegmt=True),
        "x-ms-server-encrypted": "false",
        "Accept-Ranges": "bytes",
        "Content-Type": blob.content_type,
        "Content-MD5": md5_of(blob.content),
        **{f"x-ms-lease-{name}": value for name, value in _lease_values(held.lease, now).items()},
    }


def list_entry(held: Held | str, now: float, *, has_metadata: bool) -> bytes:
    """One blob of a list, or the common part of several names, in UTF-8."""
    if isinstance(held, str):
        common = ElementTree.Element("BlobPrefix")
        ElementTree.SubElement(common, "Name").text = held
        return _encoded(common)
    blob = held.blob
    entry = ElementTree.Element("Blob")
    ElementTree.SubElement(entry, "Name").text = blob.name
    properties = ElementTree.SubElement(entry, "Properties")
    for name, value in _list_properties(blob):
        ElementTree.SubElement(properties, name).text = value
    for name, value in _lease_values(held.lease, now).items():
        ElementTree.SubElement(properties, f"Lease{name.capitalize()}").text = value
    if has_metadata:
        metadata = ElementTree.SubElement(entry, "Metadata")
        for name, value in blob.metadata.items():
            ElementTree.SubElement(metadata, name).text = value
    return _encoded(entry)


def list_document(
    account: str, container: str, query: Mapping[str, str], next_marker: str
) -> tuple[bytes, bytes]:
    """What is before and behind the entries of a list."""
    results = ElementTree.Element(
        "EnumerationResults", {"ServiceEndpoint": f"/{account}/", "ContainerName": container}
    )
    for name in ("Prefix", "Marker", "MaxResults", "Delimiter"):
        if name.lower() in query:
            ElementTree.SubElement(results, name).text = query[name.lower()]
    ElementTree.SubElement(results, "Blobs")
    ElementTree.SubElement(results, "NextMarker").text = next_marker
    head, _, tail = _document(results).partition("<Blobs />")
    return f"{head}<Blobs>".encode(), f"</Blobs>{tail}".encode()


def md5_of(content: bytes) -> str:
    """As ``Content-MD5`` has it."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _list_properties(blob: Blob) -> Iterator[tuple[str, str]]:
    yield "Creation-Time", formatdate(blob.created_at_ms // 1000, usegmt=True)
    yield "Last-Modified", formatdate(blob.modified_at_ms // 1000, usegmt=True)
    yield "Etag", blob.etag
    yield "Content-Length", str(len(blob.content))
    yield "Content-Type", blob.content_type
    yield "Content-MD5", md5_of(blob.content)
    yield "BlobType", "BlockBlob"
    yield "ServerEncrypted", "false"


def _lease_values(lease: Lease | None, now: float) -> dict[str, str]:
    if lease is None:
        return {"status": "unlocked", "state": "available"}
    values = {"status": "locked" if lease.is_held(now) else "unlocked", "state": lease.state(now)}
    if lease.is_held(now):
        values["duration"] = "infinite" if lease.stored.duration_s == INFINITE else "fixed"
    return values


def _encoded(element: ElementTree.Element) -> bytes:
    found: bytes = ElementTree.tostring(element, encoding="utf-8")
    return found


def _document(element: ElementTree.Element) -> str:
    return _DECLARATION + ElementTree.tostring(element, encoding="unicode")
