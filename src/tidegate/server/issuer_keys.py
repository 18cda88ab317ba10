"""Fetches the public keys of trusted token issuers: from a file, or by OpenID discovery.

The service starts without waiting for an issuer: its tokens are refused until its keys are known, and the log
says if they cannot be fetched. Keys that are known stay until others have been fetched.
Source: OpenID Connect Discovery 1.0, sections 3 and 4; RFC 7517 (JSON Web Key Set).
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from typing import IO, Any, Final
from urllib.parse import urlsplit

from tidegate.broker.entra.issuers import TokenIssuer
from tidegate.broker.entra.tokens import EntraTokens
from tidegate.model.errors import BrokenError, InvalidArgumentError
from tidegate.model.hosts import is_loopback
from tidegate.transport.threads import Threads

RENEWAL_INTERVAL_S: Final = 3600.0
"""Entra ID announces new keys long before it uses them; Microsoft's libraries look once a day."""
RETRY_INTERVAL_S: Final = 60.0
"""Also the shortest time between two looks for a key that a token names."""
FETCH_TIMEOUT_S: Final = 20.0
"""For all that one issuer answers (our choice)."""
_READ_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 1024 * 1024

_FAILED: Final = "the keys of the token issuer %s could not be fetched: %s"

_log = logging.getLogger(__name__)


class IssuerKeys:
    """Keeps the keys of the issuers current; ``run`` it as a task."""

    def __init__(self, tokens: EntraTokens, issuers: Sequence[TokenIssuer]) -> None:
        """issuers: those whose keys are fetched."""
        self._tokens = tokens
        self._issuers = issuers
        self._is_wanted = asyncio.Event()
        self._threads = {each.issuer: Threads(1, name="issuer-keys") for each in issuers}
        tokens.on_unknown_key = self._is_wanted.set

    def load_files(self) -> None:
        """Load the keys that are in files, and check the addresses of the others.

        Raises InvalidArgumentError for a file that cannot be read or has no usable key, or an address that is
        neither HTTPS nor on this machine.
        """
        for issuer in self._issuers:
            if issuer.keys is None:
                _check_address(_configuration_of(issuer))
            else:
                self._tokens.set_keys(issuer.issuer, _key_set(issuer))

    async def run(self) -> None:
        """Fetch the keys of all issuers: now, every hour, and at most once a minute if some are not known or
        a token names an unknown one. Never returns."""
        while True:
            self._is_wanted.clear()
            are_known = all(await asyncio.gather(*map(self._fetch, self._issuers)))
            await asyncio.sleep(RETRY_INTERVAL_S)
            if are_known:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RENEWAL_INTERVAL_S - RETRY_INTERVAL_S):
                        await self._is_wanted.wait()

    async def _fetch(self, issuer: TokenIssuer) -> bool:
        """Replace the keys of an issuer; returns whether that was possible. Nothing that it answers, or does
        not answer, keeps the keys of the others, or a stop, waiting."""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                document = await self._threads[issuer.issuer].run(partial(_key_set, issuer))
            self._tokens.set_keys(issuer.issuer, document)
        except TimeoutError:
            _log.warning(_FAILED, issuer.issuer, f"it has not answered within {FETCH_TIMEOUT_S:g} s.")
        except (BrokenError, InvalidArgumentError) as error:
            _log.warning(_FAILED, issuer.issuer, error)
        except Exception:
            _log.exception(_FAILED, issuer.issuer, "the service failed.")
        else:
            return True
        return False


def _key_set(issuer: TokenIssuer) -> Mapping[str, Any]:
    if issuer.keys is not None:
        try:
            return _object(issuer.keys.read_bytes(), str(issuer.keys))
        except (OSError, BrokenError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise InvalidArgumentError(
                f"Cannot read the keys of the token issuer {issuer.issuer!r} from {issuer.keys}: {reason}.",
                next_step="Put its JSON Web Key Set there, or remove keys from token_issuers to fetch it.",
            ) from error
    address = _configuration_of(issuer)
    configuration = _fetch(address)
    if configuration.get("issuer") != issuer.issuer:
        raise BrokenError(f"{address} is the configuration of another issuer.")
    # Otherwise a remote issuer could have the service ask programs on this machine.
    is_local = is_loopback(urlsplit(address).hostname or "")
    return _fetch(str(configuration.get("jwks_uri")), is_local=is_local)


def _configuration_of(issuer: TokenIssuer) -> str:
    return issuer.discovery or f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration"


def _check_address(address: str, *, is_local: bool = True) -> None:
    """is_local: whether an address on this machine needs no HTTPS."""
    try:
        parts = urlsplit(address)
    except ValueError:
        is_accepted = False
    else:
        is_own = is_local and parts.scheme == "http" and is_loopback(parts.hostname or "")
        is_accepted = is_own or parts.scheme == "https"
    if not is_accepted:
        raise InvalidArgumentError(
            f"The address {address[:200]!r} of a token issuer is not HTTPS.",
            next_step="Correct issuer, discovery or keys in token_issuers of the configuration.",
        )


def _fetch(address: str, *, is_local: bool = True) -> Mapping[str, Any]:
    _check_address(address, is_local=is_local)
    try:
        with _OPENER.open(address, timeout=_READ_TIMEOUT_S) as response:
            body = response.read(_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            raise BrokenError(f"{address}: {error}") from error
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
