"""The self-made certificates: strict clients accept them, kept while good, renewed when not; private keys."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tidegate.model.errors import InvalidArgumentError
from tidegate.server.certificates import (
    ServerCertificate,
    ensure_server_certificate,
    given_server_certificate,
)


class FixedClock:
    """A clock that stands where the test puts it."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)  # noqa: TID251 - OpenSSL verifies against the real clock

    def now_utc(self) -> datetime:
        """The set time."""
        return self.now

    def monotonic(self) -> float:
        """Not used here."""
        return 0.0


def _handshake(certificate: ServerCertificate, name: str) -> None:
    """A TLS handshake in memory with full verification; raises ssl.SSLError when the client refuses."""
    client_context = ssl.create_default_context(cafile=str(certificate.ca_file))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = certificate.ssl_context().wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client, server]
    for _ in range(10):
        for side in list(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)
    assert not unfinished


def _ca(certificate: ServerCertificate) -> bytes:
    assert certificate.ca_file is not None
    return certificate.ca_file.read_bytes()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "hub.example"])
def test_strict_client_accepts_each_name(tmp_path: Path, name: str) -> None:
    """A client that trusts only our authority verifies loopback's names and the added one."""
    _handshake(ensure_server_certificate(tmp_path, ["Hub.example"], clock=FixedClock()), name)


def test_other_name_is_refused(tmp_path: Path) -> None:
    """The certificate does not speak for hosts that nobody named."""
    certificate = ensure_server_certificate(tmp_path, [], clock=FixedClock())
    with pytest.raises(ssl.SSLError):
        _handshake(certificate, "elsewhere.example")


def test_files_are_kept_and_keys_private(tmp_path: Path) -> None:
    """A restart changes nothing, so clients that pinned the authority go on; keys are the owner's only."""
    clock = FixedClock()
    first = ensure_server_certificate(tmp_path, [], clock=clock)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert ensure_server_certificate(tmp_path, [], clock=clock) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for path in tmp_path.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_missing_name_renews_the_server_certificate_only(tmp_path: Path) -> None:
    """A new --tls-name works for clients that hold the old ca.pem, and the earlier names stay."""
    clock = FixedClock()
    ca_before = _ca(ensure_server_certificate(tmp_path, ["one.example"], clock=clock))
    certificate = ensure_server_certificate(tmp_path, ["two.example"], clock=clock)
    assert _ca(certificate) == ca_before
    _handshake(certificate, "one.example")
    _handshake(certificate, "two.example")


def test_ending_certificate_is_renewed(tmp_path: Path) -> None:
    """A service started late in its certificate's life does not serve an expired one a week later."""
    clock = FixedClock()
    certificate = ensure_server_certificate(tmp_path, [], clock=clock)
    ca_before = _ca(certificate)
    clock.now += timedelta(days=380)
    ensure_server_certificate(tmp_path, [], clock=clock)
    renewed = x509.load_pem_x509_certificate(certificate.certificate_file.read_bytes())
    assert renewed.not_valid_after_utc > clock.now + timedelta(days=300)
    assert _ca(certificate) == ca_before


def test_lost_authority_reissues_both(tmp_path: Path) -> None:
    """A server certificate of an authority that is gone is not served: no client could verify it."""
    clock = FixedClock()
    ensure_server_certificate(tmp_path, [], clock=clock)
    (tmp_path / "ca.key").unlink()
    _handshake(ensure_server_certificate(tmp_path, [], clock=clock), "localhost")


def test_garbled_file_says_what_to_do(tmp_path: Path) -> None:
    """A damaged PEM file is one clear error, never a silent replacement of somebody's certificate."""
    clock = FixedClock()
    certificate = ensure_server_certificate(tmp_path, [], clock=clock)
    certificate.certificate_file.write_text("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    with pytest.raises(InvalidArgumentError, match=r"server\.pem.*Delete"):
        ensure_server_certificate(tmp_path, [], clock=clock)


def test_a_given_certificate_speaks_for_its_names(tmp_path: Path) -> None:
    """Somebody's own certificate is used as it is; nothing is known of whom clients trust."""
    made = ensure_server_certificate(tmp_path, ["hub.example"], clock=FixedClock())
    given = given_server_certificate(made.certificate_file, made.key_file)
    assert given.ca_file is None
    assert "hub.example" in given.names()
    _handshake(ServerCertificate(made.ca_file, given.certificate_file, given.key_file), "hub.example")


def test_files_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    """What cannot be used is told at the start by its name, and nobody is asked for a password."""
    clock = FixedClock()
    made = ensure_server_certificate(tmp_path / "one", [], clock=clock)
    other = ensure_server_certificate(tmp_path / "two", [], clock=clock)
    garbled = tmp_path / "garbled.pem"
    garbled.write_text("no certificate")
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(made.key_file.read_bytes(), password=None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    for certificate_file, key_file, words in [
        (tmp_path / "nowhere.pem", made.key_file, "nowhere.pem"),
        (made.certificate_file, tmp_path / "nowhere.key", "nowhere.key"),
        (made.certificate_file, other.key_file, "server.key"),
        (garbled, made.key_file, "garbled.pem"),
        (made.certificate_file, locked, "needs a password"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            given_server_certificate(certificate_file, key_file)
