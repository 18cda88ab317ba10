"""What a client of Blob Storage signs: its request (shared key), or a right (shared access signature). Pure.

The rule: what is signed is read exactly once, here, and the same parsed values are acted on. Source: Azure
"Authorize with Shared Key", "Create a service SAS", "Create an account SAS", 2026-09.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import unquote

from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal

CLOCKS_DIFFER_MAX: Final = timedelta(minutes=15)
"""From a request's date to now ("Authorize with Shared Key")."""

_SIGNED_HEADERS: Final = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
_ONCE: Final = frozenset({*_SIGNED_HEADERS, "authorization"})

SIGNATURE_PARAMETERS: Final = frozenset(
    {
        *("sv", "ss", "srt", "sr", "sp", "st", "se", "sip", "spr", "sig", "ses", "si"),
        *("rscc", "rscd", "rsce", "rscl", "rsct"),
    }
)
"""Parameters of a query that belong to a shared access signature."""

_VERSION: Final = re.compile(r"20\d\d-\d\d-\d\d", re.ASCII)
_VERSION_MIN: Final = "2018-11-09"
"""From which on a service SAS signs ``sr``. Every maintained SDK writes a later one."""

_VERSION_OF_SCOPES: Final = "2020-12-06"
"""From which on the encryption scope is signed."""


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A request as it was sent, its path taken apart."""

    method: str
    raw_path: str
    """Percent-encoded, as signed."""
    account: str
    container: str
    """Empty: the request is about the account."""
    blob: str
    """Empty: the request is about the container."""
    query: Mapping[str, str]
    """Decoded, by name in lower case."""
    headers: Mapping[str, str]
    """By name in lower case."""

    @classmethod
    def parse(
        cls, method: str, raw_path: str, raw_query: str, headers: Iterable[tuple[str, str]]
    ) -> BlobRequest:
        """Raises BlobRefusedError: something that cannot be read in one way only."""
        _, account, *rest = raw_path.split("/", 3)
        container, blob = (*rest, "", "")[:2]
        by_name: dict[str, str] = {}
        for name, value in headers:
            if name in by_name and (name in _ONCE or name.startswith("x-ms-")):
                raise _refused(f"The header {name[:40]} occurs twice.")
            by_name[name] = value.strip()
        query: dict[str, str] = {}
        for part in filter(None, raw_query.split("&")):
            name, _, value = part.partition("=")
            name = _decoded(name).lower()
            if name in query:
                raise _refused("A parameter of the query occurs twice.")
            query[name] = _decoded(value)
        return cls(method, raw_path, account, _decoded(container), _decoded(blob), query, by_name)


@dataclass(frozen=True, slots=True)
class Signed:
    """A signature and what it signs; ``rights`` is None for a shared key, which may do everything."""

    text: str
    signature: bytes
    rights: SignedRights | None = None


@dataclass(frozen=True, slots=True)
class SignedRights:
    """What a shared access signature permits."""

    permissions: frozenset[str]
    resources: frozenset[str]
    """Of an account SAS, any of ``s``, ``c``, ``o``; of a service SAS ``b`` or ``c``: a blob, or those of a
    container."""
    is_of_account: bool
    expires_at: datetime
    """From which on it permits nothing."""


def signed_by(request: BlobRequest, *, now: datetime, is_https: bool) -> Signed:
    """The signature that a request comes with. Raises BlobRefusedError: there is none that may count now."""
    header = request.headers.get("authorization", "")
    if header and "sig" in request.query:
        raise _refused("It has two signatures.")
    return _shared_key(request, header, now) if header else _access_signature(request, now, is_https)


def http_time(text: str) -> datetime:
    """The time of a header. Raises ValueError."""
    try:
        time = parsedate_to_datetime(text)
        # "-0000" gives a time without a zone, which is in UTC (RFC 5322, 3.3), not in the machine's zone.
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (IndexError, OverflowError, TypeError) as error:
        raise ValueError(f"{text[:40]!r} is not a time.") from error


def _shared_key(request: BlobRequest, header: str, now: datetime) -> Signed:
    scheme, _, rest = header.partition(" ")
    account, _, signature = rest.partition(":")
    if scheme.lower() != "sharedkey" or account != request.account:
        raise _refused("Use SharedKey ACCOUNT:SIGNATURE, or a shared access signature.")
    date = request.headers.get("x-ms-date") or request.headers.get("date", "")
    try:
        sent_at = http_time(date)
    except ValueError as error:
        raise _refused("It has no valid x-ms-date.") from error
    if abs(now - sent_at) > CLOCKS_DIFFER_MAX:
        raise _refused(f"Its date is not within 15 minutes of the service's clock, {now:%Y-%m-%dT%H:%M:%SZ}.")
    lines = [request.method, *(request.headers.get(name, "") for name in _SIGNED_HEADERS)]
    if request.headers.get("content-length") == "0":
        lines[1 + _SIGNED_HEADERS.index("content-length")] = ""
    if "x-ms-date" in request.headers:
        lines[1 + _SIGNED_HEADERS.index("date")] = ""
    own = (f"{name}:{value}" for name, value in sorted(request.headers.items()) if name.startswith("x-ms-"))
    resource = f"/{account}{request.raw_path}"
    query = (f"{name}:{value}" for name, value in sorted(request.query.items()))
    return Signed("\n".join((*lines, *own, resource, *query)), _bytes(signature))


def _access_signature(request: BlobRequest, now: datetime, is_https: bool) -> Signed:
    query = request.query
    signature, version = query.get("sig", ""), query.get("sv", "")
    if not signature:
        raise _refused()
    if _VERSION.fullmatch(version) is None or version < _VERSION_MIN:
        raise _refused(f"Use a shared access signature of the version {_VERSION_MIN} or later.")
    if any(name.startswith(("sk", "sao", "suo", "sdd", "sduoid")) for name in query) or query.get("si"):
        raise _refused("User delegation and stored access policies are not supported.")
    if query.get("sip"):
        raise _refused("A signature for an IP address (sip) is not supported.")
    if query.get("spr", "https,http") not in ("https,http", "http,https") and not is_https:
        raise _refused("The signature is for HTTPS.")
    expires_at = _time(query.get("se"))
    if now >= expires_at or (query.get("st") and now < _time(query["st"])):
        raise _refused("The signature has expired, or is not valid yet.")
    is_of_account = "srt" in query
    scope = [query.get("ses", "")] if version >= _VERSION_OF_SCOPES else []
    if is_of_account:
        if "b" not in query.get("ss", ""):
            raise _refused("The signature is not for blobs.")
        names = ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv")
        lines = [request.account, *(query.get(name, "") for name in names), *scope, ""]
    else:
        resource = f"/blob/{request.account}/{request.container}"
        if query.get("sr") == "b":
            resource += f"/{request.blob}"
        elif query.get("sr") != "c":
            raise _refused("The signature is for neither a container nor a blob.")
        lines = [query.get("sp", ""), query.get("st", ""), query.get("se", ""), resource]
        lines += [query.get(name, "") for name in ("si", "sip", "spr", "sv", "sr")]
        lines += ["", *scope, *(query.get(name, "") for name in ("rscc", "rscd", "rsce", "rscl", "rsct"))]
    rights = SignedRights(
        frozenset(query.get("sp", "")),
        frozenset(query.get("srt", query.get("sr", ""))),
        is_of_account,
        expires_at,
    )
    return Signed("\n".join(lines), _bytes(signature), rights)


def _bytes(signature: str) -> bytes:
    try:
        return base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _time(text: str | None) -> datetime:
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError as error:
        raise _refused("A time of the signature is invalid.") from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _decoded(text: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise _refused("Something percent-encoded is not UTF-8.") from error
    if not decoded.isprintable():
        # A line feed would let one signed line pass for two.
        raise _refused("Something percent-encoded is not printable.")
    return decoded


def _refused(detail: str = "") -> BlobRefusedError:
    return BlobRefusedError(Refusal.AUTHENTICATION_FAILED, detail)
