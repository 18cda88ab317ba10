"""Fetches the public keys of trusted token issuers: from a file, or by OpenID discovery.

An issuer that cannot be reached does not keep the service from starting: its tokens are refused until its
keys are known, and the log says so. Keys that are known stay until others have been fetched.
Source: OpenID Connect Discovery 1.0, sections 3 and 4; RFC 7517 (JSON Web Key Set).
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import IO, Any, Final
from urllib.parse import urlsplit

from tidegate.broker.entra.issuers import TokenIssuer
from tidegate.broker.entra.tokens import EntraTokens
from tidegate.model.errors import BrokenError, InvalidArgumentError
from tidegate.model.hosts import is_loopback

RENEWAL_INTERVAL_S: Final = 3600.0
"""Entra ID announces new keys long before it uses them; Microsoft's libraries look once a day."""
RETRY_INTERVAL_S: Final = 60.0
"""Also the shortest time between two looks for a key that a token names."""
_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 1024 * 1024

_log = logging.getLogger(__name__)


class IssuerKeys:
    """Keeps the keys of the issuers current; ``run`` it as a task."""

    def __init__(self, tokens: EntraTokens, issuers: Sequence[TokenIssuer]) -> None:
        """issuers: those whose keys are fetched."""
        self._tokens = tokens
        self._issuers = issuers
        self._is_wanted = asyncio.Event()
        tokens.on_unknown_key = self._is_wanted.set

    async def load(self) -> bool:
        """Fetch the keys of all issuers; returns whether those of each are known.

        Raises InvalidArgumentError for a file that cannot be read or has no usable key, or an address that is
        neither HTTPS nor on this machine.
        """
        found = await asyncio.gather(*map(self._load, self._issuers))
        return all(found)

    async def run(self, *, is_complete: bool) -> None:
        """Fetch again every hour, and if a token names an unknown key, at most once a minute. Never returns.

        is_complete: what ``load`` returned.
        """
        while True:
            self._is_wanted.clear()
            await asyncio.sleep(RETRY_INTERVAL_S)
            if is_complete:
                try:
                    async with asyncio.timeout(RENEWAL_INTERVAL_S - RETRY_INTERVAL_S):
                        await self._is_wanted.wait()
                except TimeoutError:
                    pass
            try:
                is_complete = await self.load()
            except InvalidArgumentError as error:
                _log.warning("the keys of token issuers stay as they are: %s", error)

    async def _load(self, issuer: TokenIssuer) -> bool:
        try:
            document = await asyncio.to_thread(_key_set, issuer)
        except BrokenError as error:
            _log.warning("the keys of the token issuer %s could not be fetched: %s", issuer.issuer, error)
            return False
        self._tokens.set_keys(issuer.issuer, document)
        return True


def _key_set(issuer: TokenIssuer) -> Mapping[str, Any]:
    if issuer.keys is not None:
        try:
            return _object(issuer.keys.read_bytes(), str(issuer.keys))
        except (OSError, BrokenError) as error:
            raise InvalidArgumentError(
                f"Cannot read the keys of the token issuer {issuer.issuer!r} from {issuer.keys}: {error}."
            ) from error
    address = issuer.discovery or f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
    configuration = _fetch(address)
    if configuration.get("issuer") != issuer.issuer:
        raise BrokenError(f"{address} is the configuration of another issuer.")
    return _fetch(str(configuration.get("jwks_uri")))


def _fetch(address: str) -> Mapping[str, Any]:
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise InvalidArgumentError(f"The address {address[:200]!r} of a token issuer is not HTTPS.")
    try:
        with _OPENER.open(address, timeout=_TIMEOUT_S) as response:
            body = response.read(_BYTES_MAX + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise BrokenError(f"{address}: {error}") from error
    if len(body) > _BYTES_MAX:
        raise BrokenError(f"{address} has more than {_BYTES_MAX} bytes.")
    return _object(body, address)


def _object(text: bytes, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenError(f"{where} is not JSON.") from error
    if not isinstance(found, dict):
        raise BrokenError(f"{where} is not a JSON object.")
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An issuer's address is configured; where it would lead to is not."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """No new request: the answer is an error."""


_OPENER: Final = urllib.request.build_opener(_NoRedirects)
