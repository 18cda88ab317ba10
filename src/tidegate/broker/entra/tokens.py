"""Verifies JSON Web Tokens of trusted issuers, and finds the roles of the principal they name.

Nothing of a token is believed, or even parsed beyond its header, before a key of a trusted issuer has proved
it. Only asymmetric signatures are accepted: with a symmetric one, a public key could sign.

PyJWT alone decides. Because it looks at each character of a token, in Python (2.15: 1 ms for 14 KB, on the
event loop), it is only given those whose signature has been found right; a forged one costs that check.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.types import Options

from tidegate.broker.claims import Claim
from tidegate.broker.entra.issuers import TokenIssuer, assignments_in
from tidegate.model.errors import InvalidArgumentError, UnauthorizedError

TOKEN_CHARACTERS_MAX: Final = 16_384
"""Our choice: Entra ID lists at most 200 groups in a token, 40 characters each."""

_HEADER_CHARACTERS_MAX: Final = 2_048
"""Our choice: ten times Entra ID's."""

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_CLOCK_SKEW_S: Final = 300
"""By which an issuer's clock may be ahead, as in Microsoft's own libraries."""
_KEYS_MAX: Final = 100
_RSA_BITS_MIN: Final = 2048
"""RFC 7518, 3.3."""
_RSA_BITS_MAX: Final = 4096
_EXPONENT_BITS_MAX: Final = 32
_KEYS_OF_AN_ID_MAX: Final = 4
"""With a forged token, anyone has all keys of an id tried, on the event loop (our choice: at most 3 ms; Entra
ID has one of 2,048 bits)."""
_NAME_CHARACTERS_MAX: Final = 100
_NO_CHECKS: Final[Options] = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
"""They are made here, by the service's clock and for the issuer whose key it is."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a verified token names, and what the roles of that principal allow."""

    issuer: str
    name: str
    """Of the issuer: another may have one that is alike. May hold any character: quote it."""
    expiry: int
    """Unix time in seconds."""
    _claims_by_hub: Mapping[str, frozenset[Claim]]
    """Rights by event hub in lower case; those on the namespace at the empty name."""

    def claims_on(self, hub: str) -> tuple[frozenset[Claim], str]:
        """The rights on an event hub (the namespace: empty), and what they reach: that hub, or empty for all.

        Rights on the namespace include every hub, so both count together there.
        """
        namespace = self._claims_by_hub.get("", frozenset())
        own = self._claims_by_hub.get(hub.lower(), frozenset())
        return namespace | own, hub.lower() if own - namespace else ""


class EntraTokens:
    """The trusted issuers, with their present keys."""

    def __init__(self, issuers: Iterable[TokenIssuer]) -> None:
        self._issuers = {each.issuer: each for each in issuers}
        self._keys: dict[str, list[jwt.PyJWK]] = {}
        self.on_unknown_key: Callable[[], None] = lambda: None
        """Called when a token names a key that no issuer has: perhaps a new one."""

    def set_keys(self, issuer: str, document: Mapping[str, Any]) -> int:
        """Replace the keys of an issuer by those of a JSON Web Key Set, and return how many are usable.

        Keys of other kinds, too short or too costly, private, or not for signatures are left out. Raises
        InvalidArgumentError if none remains; the earlier keys then stay.
        """
        keys: list[jwt.PyJWK] = []
        given = document.get("keys")
        for each in given[:_KEYS_MAX] if isinstance(given, list) else ():
            if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
                continue
            if "d" in each:
                continue  # a private key, which others may have read as well
            try:
                key = jwt.PyJWK(each)
            except (jwt.PyJWTError, NotImplementedError, ValueError, TypeError, KeyError):
                continue  # PyJWT 2.15 raises what its parts do, as for "alg": "none"
            count = sum(known.key_id == key.key_id for known in keys)
            if key.algorithm_name in ALGORITHMS and _is_of_fair_size(key) and count < _KEYS_OF_AN_ID_MAX:
                keys.append(key)
        if not keys:
            raise InvalidArgumentError(
                f"The key set of the token issuer {issuer!r} has no usable key.",
                next_step="It needs a public key: RSA of 2048 to 4096 bits, or an elliptic curve.",
            )
        self._keys[issuer] = keys
        return len(keys)

    def verify(self, token: str, *, now_utc: datetime) -> Principal:
        """The principal of a token that is valid now.

        Raises UnauthorizedError: MalformedToken, InvalidSignature (no trusted key made it), InvalidIssuer,
        InvalidAudience, ExpiredToken. The message never contains the token.
        """
        issuer, claims = self._proved(token)
        now = now_utc.timestamp()
        expiry = _time_in(claims, "exp")
        if expiry is None:
            raise UnauthorizedError("MalformedToken: The token has no time of expiry (exp).")
        if now >= expiry:
            raise UnauthorizedError(
                "ExpiredToken: The token is expired.",
                next_step="Get a new token, and check this machine's clock.",
            )
        begin = _time_in(claims, "nbf") if "nbf" in claims else 0
        if begin is None or now + _CLOCK_SKEW_S < begin:
            raise UnauthorizedError(
                "InvalidToken: The token is not valid yet (nbf).",
                next_step="Check the clocks of this machine and of the issuer.",
            )
        audience = claims.get("aud")
        given = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        wanted = {each.rstrip("/") for each in issuer.audiences}
        if not any(isinstance(each, str) and each.rstrip("/") in wanted for each in given):
            raise UnauthorizedError(
                "InvalidAudience: The token is for another audience (aud).",
                next_step=f"Ask the issuer for a token for {' or '.join(sorted(wanted))}.",
            )
        return _principal(issuer, claims, expiry)

    def _proved(self, token: str) -> tuple[TokenIssuer, dict[str, Any]]:
        """The issuer whose key made the token's signature, and its claims."""
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise UnauthorizedError(
                f"MalformedToken: The token has more than {TOKEN_CHARACTERS_MAX} characters."
            )
        header = _header_of(token)
        if header.get("alg") not in ALGORITHMS:
            raise UnauthorizedError(
                "InvalidSignature: The token is not signed by an algorithm that is accepted.",
                next_step=f"Accepted: {', '.join(ALGORITHMS)}.",
            )
        candidates = self._candidates(header.get("kid"))
        if not candidates:
            self.on_unknown_key()
        is_signed = False
        for name, key in candidates:
            try:
                if not _is_signed_with(key, token):
                    continue
                claims = jwt.decode(token, key, algorithms=list(ALGORITHMS), options=_NO_CHECKS)
            except (jwt.PyJWTError, RecursionError, ValueError):
                continue
            if claims.get("iss") == name:
                return self._issuers[name], claims
            is_signed = True  # issuers of one tenant share their keys
        if is_signed:
            raise UnauthorizedError(
                "InvalidIssuer: The token names another issuer (iss) than the one whose key signed it.",
                next_step="Declare its issuer in token_issuers, exactly as the claim iss has it.",
            )
        raise UnauthorizedError(
            "InvalidSignature: No trusted issuer has signed the token.",
            next_step="Declare its issuer in token_issuers. After it has a new key, try again in a minute.",
        )

    def _candidates(self, key_id: object) -> list[tuple[str, jwt.PyJWK]]:
        """The keys with the id of a token's header; a token without one must fit an issuer's only key."""
        return [
            (issuer, key)
            for issuer, keys in self._keys.items()
            for key in keys
            if (key.key_id == key_id if key_id is not None else len(keys) == 1)
        ]


def _is_of_fair_size(key: jwt.PyJWK) -> bool:
    if not isinstance(key.key, RSAPublicKey):
        return True
    exponent = key.key.public_numbers().e
    return _RSA_BITS_MIN <= key.key.key_size <= _RSA_BITS_MAX and exponent.bit_length() <= _EXPONENT_BITS_MAX


def _header_of(token: str) -> Mapping[str, Any]:
    header, _, _ = token.partition(".")
    try:
        found = json.loads(_bytes_of(header)) if len(header) <= _HEADER_CHARACTERS_MAX else None
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict) or token.count(".") != 2:
        raise UnauthorizedError("MalformedToken: The token is not a JSON Web Token.")
    return found


def _is_signed_with(key: jwt.PyJWK, token: str) -> bool:
    """Whether a key made the token's signature, by the key's own algorithm. Raises ValueError."""
    signed, _, signature = token.rpartition(".")
    return key.Algorithm.verify(signed.encode(), key.key, _bytes_of(signature))


def _bytes_of(segment: str) -> bytes:
    """The bytes of a part in base64url. Raises ValueError."""
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def _principal(issuer: TokenIssuer, claims: Mapping[str, Any], expiry: int) -> Principal:
    ids = {each for name in ("oid", "sub") if isinstance(each := claims.get(name), str)}
    groups, app_roles = _strings_in(claims, "groups"), _strings_in(claims, "roles")
    assigned = [
        each
        for each in issuer.roles
        if each.principal in ids or each.group in groups or each.app_role in app_roles
    ]
    if issuer.are_roles_in_tokens:
        assigned += assignments_in(claims.get("roles"))
    rights: dict[str, frozenset[Claim]] = {}
    for each in assigned:
        hub = (each.event_hub or "").lower()
        rights[hub] = rights.get(hub, frozenset()) | each.role.claims
    name = next((each for key in ("oid", "sub") if isinstance(each := claims.get(key), str)), "")
    return Principal(issuer.issuer, _shortened(name) or "(unnamed)", expiry, rights)


def _shortened(name: str) -> str:
    """No two names alike, as subjects may be chosen: a long one is longer than any that is left whole."""
    if len(name) <= _NAME_CHARACTERS_MAX:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{name[:_NAME_CHARACTERS_MAX]}~{digest[:32]}"


def _strings_in(claims: Mapping[str, Any], name: str) -> set[str]:
    """The strings in a list; nothing if it is something else."""
    values = claims.get(name)
    return {each for each in values if isinstance(each, str)} if isinstance(values, list) else set()


def _time_in(claims: Mapping[str, Any], name: str) -> int | None:
    """A time in seconds, rounded down; None if there is none that is a number."""
    value = claims.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 2**53:
        return None
    return int(value)
