"""A client of Blob Storage that sends what a test writes, signed as Azure's documentation says.

It shares nothing with the service: text to sign, headers and answers are made and read here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote, urlencode

_STANDARD = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """In lower case."""
    body: bytes

    @property
    def code(self) -> str:
        """Azure's error code; empty: there is none."""
        return self.headers.get("x-ms-error-code", "")


@dataclass(frozen=True)
class BlobClient:
    """An account, and a key of it."""

    address: str
    account: str
    key: str
    """In base64."""

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        now: datetime | None = None,
        at: str | None = None,
    ) -> Answer:
        """Send a request with a shared key. path: below the account, not encoded. at: the account in the
        path, if it is not the one that signs."""
        query = query or {}
        raw = f"/{at or self.account}{quote(path, safe='/')}"
        given = {"x-ms-version": "2021-12-02", **(headers or {})}
        sent = {name.lower(): value for name, value in given.items()}
        time = now or datetime.now(UTC)  # noqa: TID251 - the service has the real clock
        sent["x-ms-date"] = format_datetime(time, usegmt=True)
        if body or method == "PUT":
            sent["content-length"] = str(len(body))
        lines = [method, *(sent.get(name, "").replace("0", "", sent.get(name) == "0") for name in _STANDARD)]
        lines += [f"{name}:{sent[name]}" for name in sorted(sent) if name.startswith("x-ms-")]
        lines += [f"/{self.account}{raw}", *(f"{name}:{query[name]}" for name in sorted(query))]
        sent["authorization"] = f"SharedKey {self.account}:{self.sign(lines)}"
        return self.send(method, raw, query, _as_spelled(sent, given), body)

    def sign(self, lines: Sequence[str]) -> str:
        """The signature of a text."""
        key = base64.b64decode(self.key)
        return base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)).decode()

    def send(
        self,
        method: str,
        raw_path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Send a request as it is."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            target = raw_path + ("?" + urlencode(query, quote_via=quote) if query else "")
            connection.request(method, target, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


def _as_spelled(headers: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in given}
    return {names.get(name, name): value for name, value in headers.items()}
