"""A token issuer on this machine, for code that uses Entra ID: its key is in the service's data directory.

Who can read that directory has the service's own keys, so its tokens open nothing more. They name their roles
themselves; see ``tidegate token entra``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tidegate.broker.entra.issuers import AUDIENCE_DEFAULT, TokenIssuer
from tidegate.files import make_private_directory, replace_file
from tidegate.model.errors import InvalidArgumentError, NotFoundError

_ALGORITHM: Final = "ES256"


class DevelopmentIssuer:
    """Signs tokens with the key in a data directory."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._key_id = hashlib.sha256(public).hexdigest()[:32]

    @classmethod
    def create(cls, data_directory: Path) -> DevelopmentIssuer:
        """The issuer of a data directory; the first time with a new key. Raises OSError."""
        path = _key_path(data_directory)
        if not path.exists():
            make_private_directory(path.parent)
            pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            replace_file(path, pem, is_synced=True)
        return cls.open(data_directory)

    @classmethod
    def open(cls, data_directory: Path) -> DevelopmentIssuer:
        """The issuer that a service has created.

        Raises NotFoundError if it has none, InvalidArgumentError for a file that holds no key.
        """
        path = _key_path(data_directory)
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"The service of {data_directory} has no issuer for development.",
                next_step="Start it with `tidegate serve --development-issuer`.",
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise InvalidArgumentError(f"Cannot read the issuer's key {path}: {error}.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidArgumentError(f"The issuer's key {path} is not one for {_ALGORITHM}.")
        return cls(key)

    @property
    def trusted(self) -> TokenIssuer:
        """What the service has to trust."""
        return TokenIssuer(f"urn:tidegate:development:{self._key_id}", are_roles_in_tokens=True)

    def key_set(self) -> Mapping[str, Any]:
        """Its public key, as a JSON Web Key Set."""
        key = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        return {"keys": [key | {"kid": self._key_id, "alg": _ALGORITHM, "use": "sig"}]}

    def token(
        self, principal: str, roles: Sequence[str], *, now: int, life_s: int, audience: str = AUDIENCE_DEFAULT
    ) -> str:
        """A token of a principal with roles, each ``Azure Event Hubs Data Owner`` or that with ``@HUB``.

        now: Unix time in seconds.
        """
        claims = {
            "iss": self.trusted.issuer,
            "aud": audience,
            "sub": principal,
            "oid": principal,
            "roles": list(roles),
            "iat": now,
            "nbf": now,
            "exp": now + life_s,
        }
        return jwt.encode(claims, self._key, _ALGORITHM, headers={"kid": self._key_id})


def _key_path(data_directory: Path) -> Path:
    return data_directory / "development-issuer" / "key.pem"
