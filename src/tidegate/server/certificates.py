"""The service's certificate: the user's files, or a generated one with its own certificate authority.

The generated one is kept in the data directory, for development and private networks; clients trust
``ca.pem`` and verify as usual. The authority is kept while it is valid and covers the wanted names, so that
renewing the server certificate requires no change on clients. Keys are readable by the owner only.

Clients trust ``ca.pem`` only for servers with this service's names: the authority carries name constraints
(RFC 5280 section 4.2.1.10) and an extended key usage, which limits the certificates below it (CA/Browser
Forum Baseline Requirements 7.1.2.10.6). A stolen authority key can therefore sign no valid certificate for
another host, for mail, code or a client. The key is kept because otherwise each yearly renewal of the server
certificate would need a new authority on all clients.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate.files import replace_file
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_LIFETIME = timedelta(days=3650)
_SERVER_LIFETIME = timedelta(days=397)
"""The longest lifetime that browsers accept (CA/Browser Forum Baseline Requirements 6.3.2, 2020-09)."""
_RENEW_BEFORE = timedelta(days=30)
_CLOCK_SKEW = timedelta(days=1)

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: only forward secrecy and authenticated encryption (RFC 9325 section 4.2), as always in 1.3."""

_GROUP = "prime256v1"
"""The one group for the exchange of keys, which each client must have (RFC 8446 section 9.1). By default,
OpenSSL lets a client choose ffdhe8192: its 1.1 KB cost 0.2 s of the loop. Python before 3.15 sets one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Where the files are."""

    ca_file: Path | None
    """The authority for clients to trust, PEM; None for a user's certificate, whose issuer clients know."""
    certificate_file: Path
    """The server's certificate followed by the authority's, PEM."""
    key_file: Path
    """The server's private key, PEM, without a password; mode 0600 if created here."""

    def ssl_context(self) -> ssl.SSLContext:
        """A server-side TLS context with this certificate: 1.3, and 1.2 with AEAD suites."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.set_ecdh_curve(_GROUP)
        # Otherwise a client could force endless handshakes on one connection.
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(self.certificate_file, self.key_file, password=_refuse_password)
        return context

    def names(self) -> list[str]:
        """The host names and addresses that the certificate is for."""
        return _names(self._certificate())

    def is_ending(self, now: datetime) -> bool:
        """Whether the certificate expires within 30 days, or has expired."""
        return _is_ending(self._certificate(), now)

    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate_file.read_bytes())


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def given_server_certificate(certificate_file: Path, key_file: Path) -> ServerCertificate:
    """The user's certificate (PEM, with the chain to its issuer) and key, after checking that they match.

    Raises InvalidArgumentError if they are missing, invalid or don't match, or if the key needs a password.
    """
    given = ServerCertificate(None, certificate_file, key_file)
    try:
        given.ssl_context()
        given.names()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidArgumentError(
            f"The TLS certificate {certificate_file} with the key {key_file} cannot be used: {error}",
            next_step="Use two PEM files: the certificate with its chain, and its key without a password.",
        ) from error
    return given


def ensure_server_certificate(directory: Path, names: Sequence[str], *, clock: Clock) -> ServerCertificate:
    """The certificate in ``directory`` for loopback and ``names``, created or renewed if needed.

    It is renewed if it expires within 30 days or lacks one of ``names`` (existing names are kept). A new
    authority, which clients must then trust, is created only if there is none, it expires, or a name is
    outside its constraints. An authority without constraints, from an earlier version, is kept.

    Raises InvalidArgumentError if ``directory`` holds files that this function did not write.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = clock.now_utc()
    ca_file = directory / "ca.pem"
    paths = ServerCertificate(ca_file, directory / "server.pem", directory / "server.key")
    current = _load(paths.certificate_file, paths.key_file)
    held = [] if current is None else _names(current.certificate)
    wanted = list(dict.fromkeys(map(_normalise, [*_LOOPBACK_NAMES, *names])))
    authority = _ensure_authority(ca_file, directory / "ca.key", wanted, held, now)
    if (
        current is not None
        and not _is_ending(current.certificate, now)
        and current.certificate.issuer == authority.certificate.subject
        and set(wanted) <= set(held)
        and _is_issued_by(current.certificate, authority)
    ):
        return paths
    server = _make_server(authority, list(dict.fromkeys([*wanted, *held])), now)
    replace_file(paths.key_file, _key_pem(server.key))
    chain = _certificate_pem(server.certificate) + _certificate_pem(authority.certificate)
    replace_file(paths.certificate_file, chain, mode=0o644)
    _log.info(
        "created a server certificate for %s: %s",
        ", ".join(_names(server.certificate)),
        paths.certificate_file,
    )
    return paths


def _ensure_authority(
    ca_file: Path, key_file: Path, wanted: Sequence[str], held: Sequence[str], now: datetime
) -> _Pair:
    """The authority in two files, or a new one if that expires soon or does not cover ``wanted``."""
    authority = _load(ca_file, key_file)
    outside = [] if authority is None else [name for name in wanted if not _may_name(authority, name)]
    if authority is not None and not outside and not _is_ending(authority.certificate, now):
        return authority
    made = _make_authority(now, list(dict.fromkeys([*wanted, *held])))
    replace_file(key_file, _key_pem(made.key))
    replace_file(ca_file, _certificate_pem(made.certificate), mode=0o644)
    if authority is None:
        _log.info("created a certificate authority: %s", ca_file)
    else:
        reason = f"does not cover {', '.join(outside)}" if outside else "was running out"
        _log.warning(
            "created a new certificate authority, since the old one %s: clients need the new %s",
            reason,
            ca_file,
        )
    return made


def _may_name(authority: _Pair, name: str) -> bool:
    """Whether the authority's constraints, if any, permit a certificate for a name or address."""
    try:
        constraints = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return True
    wanted = _constraint(name)
    for permitted in constraints.permitted_subtrees or ():
        if isinstance(permitted, x509.DNSName) and isinstance(wanted, x509.DNSName):
            if f".{wanted.value}".endswith(f".{permitted.value}"):
                return True
        elif permitted == wanted:
            return True
    return False


def _constraint(name: str) -> x509.IPAddress | x509.DNSName:
    """The smallest subtree that contains a name: an address alone, or a host and its subdomains."""
    try:
        return x509.IPAddress(ipaddress.ip_network(name))
    except ValueError:
        return x509.DNSName(name.removeprefix("*."))


def _make_authority(now: datetime, names: Sequence[str]) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tidegate"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Tidegate local authority {serial % 0x10000:04x}"),
        ]
    )
    constraints = x509.NameConstraints(list(dict.fromkeys(map(_constraint, names))), excluded_subtrees=None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .serial_number(serial)
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(constraints, critical=True)
    )
    return _signed(builder, key, key, is_authority=True)


def _make_server(authority: _Pair, names: Sequence[str], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    not_after = min(now + _SERVER_LIFETIME, authority.certificate.not_valid_after_utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return _signed(builder, key, authority.key, is_authority=False)


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> _Pair:
    """The certificate of ``key``, signed by ``issuer``, with the extensions that both kinds have."""
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        builder.public_key(key.public_key())
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .sign(issuer, hashes.SHA256())
    )
    return _Pair(certificate, key)


def _normalise(name: str) -> str:
    """The form used in certificates: shortest for addresses, lower-case ASCII (IDNA) for hosts."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return name.lower().encode("idna").decode()
    except ValueError as error:
        raise InvalidArgumentError(f"The TLS name {name!r} is neither an address nor a host name.") from error


def _general_name(name: str) -> x509.IPAddress | x509.DNSName:
    """name: normalised."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _refuse_password() -> bytes:
    # Without this, OpenSSL would prompt at the terminal.
    raise ValueError("the key needs a password.")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    addresses = extension.value.get_values_for_type(x509.IPAddress)
    return [*extension.value.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _is_ending(certificate: x509.Certificate, now: datetime) -> bool:
    return now + _RENEW_BEFORE >= certificate.not_valid_after_utc or now < certificate.not_valid_before_utc


def _is_issued_by(certificate: x509.Certificate, authority: _Pair) -> bool:
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(certificate_file: Path, key_file: Path) -> _Pair | None:
    """The pair in two files; None when either is absent."""
    try:
        certificate_pem, key_pem = certificate_file.read_bytes(), key_file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        certificate = x509.load_pem_x509_certificates(certificate_pem)[0]
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{certificate_file} or {key_file} is not a usable PEM file.",
            next_step="Delete both files; the service then creates new ones.",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return _Pair(certificate, key)


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
