"""The certificate of a running service: changed files are loaded without a restart.

New connections get the new certificate, those that are open keep theirs. Files that cannot be used, as while
they are replaced one by one, change nothing.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final

from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError
from tidegate.server.certificates import ServerCertificate

CHECK_INTERVAL_S: Final = 5.0
"""Seconds between checks of the files (our choice: a check is two calls of stat)."""

_Signature = tuple[tuple[int, int, int], ...]

_log = logging.getLogger(__name__)


class LiveCertificate:
    """A TLS context for accepting connections that always shows the newest usable certificate."""

    def __init__(self, obtain: Callable[[], ServerCertificate], *, clock: Clock) -> None:
        """obtain: returns the certificate; renews a generated one that expires soon.

        Raises what ``obtain`` raises.
        """
        self._obtain = obtain
        self._clock = clock
        self.certificate = obtain()
        self._current = self.certificate.ssl_context()
        self._loaded = self._seen = _signature(self.certificate)
        self._complaint: str | None = None
        self.context = self.certificate.ssl_context()
        """For all listening ports. Each handshake replaces its initial certificate with the newest.

        Each certificate has its own context: loading one over another of a different key type keeps the older
        one and still sends it to some clients.
        """
        live = self

        class Newest(ssl.SSLObject):
            # Not in sni_callback: Python writes each name that is not ASCII to standard error, which anyone
            # who connects could fill.
            _is_chosen = False

            def do_handshake(self) -> None:
                if not self._is_chosen:
                    self._is_chosen, self.context = True, live._current
                super().do_handshake()

        self.context.sslobject_class = Newest

    def refresh(self) -> bool:
        """Check the files and load changed ones; returns True if the certificate is new.

        Changed files are loaded after two checks without further change, so that a certificate and key
        replaced one after the other are loaded together. Never raises for the files: problems are logged
        once.
        """
        try:
            if self.certificate.ca_file is not None and self.certificate.is_ending(self._clock.now_utc()):
                self._obtain()
            signature = _signature(self.certificate)
            if signature == self._loaded:
                self._seen, self._complaint = signature, None
                return False
            if signature != self._seen:
                self._seen = signature
                return False
            self._current = self._obtain().ssl_context()
        except (InvalidArgumentError, OSError, ValueError) as error:
            self._complain(str(error))
            return False
        self._loaded, self._complaint = signature, None
        _log.info(
            "the TLS certificate has changed: new connections get %s", self.certificate.certificate_file
        )
        return True

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.error("the old TLS certificate stays in use, since the new one is invalid: %s", reason)


def _signature(certificate: ServerCertificate) -> _Signature:
    """A value that changes whenever one of the files does. Raises OSError."""
    states = (path.stat() for path in (certificate.certificate_file, certificate.key_file))
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
