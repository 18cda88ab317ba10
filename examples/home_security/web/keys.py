"""Who may see which page: a key in its address, which only the operator's secret can compute."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final

from tidegate import InvalidArgumentError

_SECRET_BYTES: Final = 32


class Keys:
    """The keys of all pages. The same secret gives the same keys, so residents can keep their addresses."""

    def __init__(self, secret: bytes) -> None:
        """secret: at least 32 random bytes. Raises InvalidArgumentError for fewer."""
        if len(secret) < _SECRET_BYTES:
            raise InvalidArgumentError(f"The secret has {len(secret)} bytes instead of {_SECRET_BYTES}.")
        self._secret = secret

    @classmethod
    def of_file(cls, path: Path) -> Keys:
        """With the secret in a file, which is created, for its owner alone, if there is none.

        Raises OSError, and InvalidArgumentError for a file that is too short.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(path.read_bytes())
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret := os.urandom(_SECRET_BYTES))
        return cls(secret)

    def of_home(self, name: str) -> str:
        """The key of one home's page."""
        return self._key(f"home {name}")

    def of_list(self) -> str:
        """The key of the list of all homes, which has all their keys: for the operator."""
        return self._key("list")

    def _key(self, what: str) -> str:
        digest = hmac.digest(self._secret, what.encode(), hashlib.sha256)
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_same(key: str, given: str) -> bool:
    """Whether the keys are the same; how long it takes says nothing about where they differ."""
    return hmac.compare_digest(key.encode(), given.encode())
