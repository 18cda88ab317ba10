"""The self-made certificates: strict clients accept them, kept while good, renewed when not; private keys."""

from __future__ import annotations

import ssl
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.support.clocks import FixedClock

from tidegate.model.errors import InvalidArgumentError
from tidegate.server import certificates
from tidegate.server.certificates import (
    ServerCertificate,
    ensure_server_certificate,
    given_server_certificate,
)


def _handshake(
    certificate: ServerCertificate,
    name: str,
    client_context: ssl.SSLContext | None = None,
    *,
    server_context: ssl.SSLContext | None = None,
) -> None:
    """A TLS handshake in memory with full verification; raises ssl.SSLError when the client refuses."""
    if client_context is None:
        client_context = ssl.create_default_context(cafile=str(certificate.ca_file))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = (server_context or certificate.ssl_context()).wrap_bio(to_server, to_client, server_side=True)
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


def test_a_name_that_the_authority_may_speak_for_renews_the_server_certificate_only(tmp_path: Path) -> None:
    """A host below one that was named works for clients that hold the old ca.pem; earlier names stay."""
    clock = FixedClock()
    ca_before = _ca(ensure_server_certificate(tmp_path, ["one.example"], clock=clock))
    certificate = ensure_server_certificate(tmp_path, ["broker.one.example"], clock=clock)
    assert _ca(certificate) == ca_before
    _handshake(certificate, "one.example")
    _handshake(certificate, "broker.one.example")


@pytest.mark.parametrize("name", ["two.example", "notone.example", "example", "192.0.2.7", "2001:db8::7"])
def test_a_name_outside_the_constraints_makes_a_new_authority(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else no client could use the new name. The log says that clients need the new ca.pem."""
    clock = FixedClock()
    ca_before = _ca(ensure_server_certificate(tmp_path, ["one.example"], clock=clock))
    assert "clients" not in caplog.text
    certificate = ensure_server_certificate(tmp_path, [name], clock=clock)
    assert _ca(certificate) != ca_before
    assert f"does not cover {name}: clients need the new" in caplog.text
    _handshake(certificate, "one.example")
    _handshake(certificate, name)
    ca_before = _ca(certificate)
    assert _ca(ensure_server_certificate(tmp_path, ["one.example", name], clock=clock)) == ca_before


@pytest.mark.parametrize("name", ["bank.example", "198.51.100.1", "::2", "one.example.org"])
def test_a_stolen_authority_speaks_for_no_other_host(tmp_path: Path, name: str) -> None:
    """Whoever trusts ca.pem is not open to a false bank: clients refuse other names that its key signs."""
    made = ensure_server_certificate(tmp_path, ["one.example", "*.many.example"], clock=FixedClock())
    _handshake(made, "any.many.example")
    authority = certificates._load(tmp_path / "ca.pem", tmp_path / "ca.key")
    assert authority is not None
    forged = certificates._make_server(authority, [name], FixedClock().now_utc())
    (tmp_path / "forged.pem").write_bytes(certificates._certificate_pem(forged.certificate))
    (tmp_path / "forged.key").write_bytes(certificates._key_pem(forged.key))
    with pytest.raises(ssl.SSLError, match="permitted subtree violation"):
        _handshake(ServerCertificate(made.ca_file, tmp_path / "forged.pem", tmp_path / "forged.key"), name)


def test_a_stolen_authority_makes_no_client(tmp_path: Path) -> None:
    """A certificate without names is outside no constraint: what its key signs is for servers alone."""
    made = ensure_server_certificate(tmp_path, ["one.example"], clock=FixedClock())
    authority = certificates._load(tmp_path / "ca.pem", tmp_path / "ca.key")
    assert authority is not None
    key, now = ec.generate_private_key(ec.SECP256R1()), FixedClock().now_utc()
    forged = (
        x509.CertificateBuilder(
            authority.certificate.subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "administrator")]),
            key.public_key(),
            x509.random_serial_number(),
        )
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    (tmp_path / "forged.pem").write_bytes(certificates._certificate_pem(forged))
    (tmp_path / "forged.key").write_bytes(certificates._key_pem(key))
    others = made.ssl_context()  # of a server that has the authority among those of its clients
    others.verify_mode = ssl.CERT_REQUIRED
    assert made.ca_file is not None
    others.load_verify_locations(made.ca_file)
    client = ssl.create_default_context(cafile=str(made.ca_file))
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 the client is done before it is refused
    client.load_cert_chain(tmp_path / "forged.pem", tmp_path / "forged.key")
    with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_VERIFY_FAILED.*purpose"):
        _handshake(made, "one.example", client, server_context=others)


def test_the_constraints_are_critical(tmp_path: Path) -> None:
    """A client that does not know constraints refuses the authority, instead of passing over them."""
    made = ensure_server_certificate(tmp_path, ["one.example"], clock=FixedClock())
    extension = x509.load_pem_x509_certificate(_ca(made)).extensions.get_extension_for_class(
        x509.NameConstraints
    )
    assert extension.critical
    permitted = extension.value.permitted_subtrees or ()
    assert [str(each.value) for each in permitted] == [
        "localhost",
        "127.0.0.1/32",
        "::1/128",
        "one.example",
    ]


def test_an_authority_without_constraints_stays(tmp_path: Path) -> None:
    """Clients of a data directory of an earlier version go on, also with a new name."""
    clock = FixedClock()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tidegate local authority")])
    builder = (
        x509.CertificateBuilder(name, name, None, x509.random_serial_number())
        .not_valid_before(clock.now - timedelta(days=1))
        .not_valid_after(clock.now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    earlier = certificates._signed(builder, key, key, is_authority=True).certificate
    (tmp_path / "ca.pem").write_bytes(certificates._certificate_pem(earlier))
    (tmp_path / "ca.key").write_bytes(certificates._key_pem(key))
    made = ensure_server_certificate(tmp_path, ["new.example"], clock=clock)
    assert _ca(made) == certificates._certificate_pem(earlier)
    _handshake(made, "new.example")


def test_a_name_in_other_letters_is_not_made_again_at_each_start(tmp_path: Path) -> None:
    """A host name beyond ASCII is compared as certificates hold it."""
    made = ensure_server_certificate(tmp_path, ["Bücher.example"], clock=FixedClock())
    before = made.certificate_file.read_bytes()
    assert ensure_server_certificate(tmp_path, ["bücher.example"], clock=FixedClock()) == made
    assert made.certificate_file.read_bytes() == before
    _handshake(made, "bücher.example")


def test_only_modern_tls_is_spoken(tmp_path: Path) -> None:
    """TLS 1.3, and 1.2 with forward secrecy and authenticated encryption; nothing older, nothing weaker."""
    made = ensure_server_certificate(tmp_path, [], clock=FixedClock())

    def client(version: ssl.TLSVersion, ciphers: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(made.ca_file))
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TLS 1.1
            context.minimum_version = context.maximum_version = version
        return context

    _handshake(made, "localhost", client(ssl.TLSVersion.TLSv1_3, "ALL"))
    for ciphers in ("ECDHE+AESGCM", "ECDHE+CHACHA20"):
        _handshake(made, "localhost", client(ssl.TLSVersion.TLSv1_2, ciphers))
    for version, ciphers in [
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AES:!AESGCM:!AESCCM"),
        (ssl.TLSVersion.TLSv1_2, "DHE+AESGCM"),
        (ssl.TLSVersion.TLSv1_2, "AESGCM:!ECDHE:!DHE"),
        (ssl.TLSVersion.TLSv1_1, "ALL"),
    ]:
        with pytest.raises(ssl.SSLError):
            _handshake(made, "localhost", client(version, ciphers))


@pytest.mark.parametrize("group", ["ffdhe2048", "ffdhe8192", "X448", "secp521r1"])
def test_keys_are_exchanged_over_one_cheap_curve(tmp_path: Path, group: str) -> None:
    """A client chooses the group: one with 8,192 bits cost the service 0.2 s. Usual clients offer several."""
    made = ensure_server_certificate(tmp_path, [], clock=FixedClock())
    _handshake(made, "localhost")  # its first key is of X25519
    client = ssl.create_default_context(cafile=str(made.ca_file))
    client.set_ecdh_curve(group)
    with pytest.raises(ssl.SSLError):
        _handshake(made, "localhost", client)


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
