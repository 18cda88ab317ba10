"""Certificates that change while the service runs: taken up whole, by new connections, or not at all."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from tests.support.clocks import FixedClock

from tidegate.server import live_certificate
from tidegate.server.app import TidegateServer
from tidegate.server.certificates import ensure_server_certificate, given_server_certificate
from tidegate.server.live_certificate import LiveCertificate
from tidegate.server.settings import ServerSettings

_DEADLINE_S = 60.0


class Files:
    """A user's certificate and key, written as a user would."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.certificate_file, self.key_file = directory / "mine.pem", directory / "mine.key"

    def write(self, name: str, *, is_rsa: bool = False) -> None:
        """Replace both by a new pair for a host."""
        certificate, key = _pair(name, is_rsa=is_rsa)
        self.certificate_file.write_bytes(certificate)
        self.key_file.write_bytes(key)


def _pair(name: str, *, is_rsa: bool) -> tuple[bytes, bytes]:
    key = (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        if is_rsa
        else ec.generate_private_key(ec.SECP256R1())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = FixedClock().now
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=100))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem), key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _shown(context: ssl.SSLContext, signatures: str | None = None) -> str:
    """The host of the certificate that a new connection gets; signatures: what the client can verify."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    if signatures is not None:
        client_context.maximum_version = ssl.TLSVersion.TLSv1_2
        client_context.set_ciphers(signatures)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client, server]
    for _ in range(10):
        for side in list(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)
    return _host(client.getpeercert(binary_form=True))


def _host(certificate: bytes | None) -> str:
    assert certificate is not None
    names = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return names.value.get_values_for_type(x509.DNSName)[0]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A user's pair for old.example."""
    made = Files(tmp_path / "mine")
    made.write("old.example")
    return made


def _live(files: Files) -> LiveCertificate:
    return LiveCertificate(
        lambda: given_server_certificate(files.certificate_file, files.key_file), clock=FixedClock()
    )


def test_a_clients_name_for_the_server_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone who connects sends it, as often as they like: past the log, it could fill the disk."""
    written: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", written.append)
    certificate = ensure_server_certificate(tmp_path, (), clock=FixedClock())
    live = LiveCertificate(lambda: certificate, clock=FixedClock())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(to_client, to_server, server_hostname="name.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = to_server.read().replace(b"name.example", b"\xffame.example")
    to_server.write(hello)
    with pytest.raises(ssl.SSLWantReadError):
        live.context.wrap_bio(to_server, to_client, server_side=True).do_handshake()
    assert not written


def test_a_replaced_pair_is_shown_to_new_connections(files: Files) -> None:
    """Once the files have stayed the same for two looks; then nothing changes until they do."""
    live = _live(files)
    assert not live.refresh()
    files.write("new.example")
    assert not live.refresh()
    assert _shown(live.context) == "old.example"
    assert live.refresh()
    assert _shown(live.context) == "new.example"
    assert not live.refresh()


def test_the_old_certificate_is_gone_also_where_its_key_was_of_another_kind(files: Files) -> None:
    """A context keeps a certificate per kind of key, and clients that cannot do the new kind would see it."""
    files.write("old.example", is_rsa=True)
    live = _live(files)
    assert _shown(live.context, "ECDHE+aRSA") == "old.example"
    files.write("new.example")
    assert [live.refresh(), live.refresh()] == [False, True]
    assert _shown(live.context) == "new.example"
    with pytest.raises(ssl.SSLError):
        _shown(live.context, "ECDHE+aRSA")


def test_a_pair_that_is_replaced_file_by_file_is_not_met_halfway(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is complained about while somebody copies the second file."""
    live = _live(files)
    certificate, key = _pair("new.example", is_rsa=False)
    files.certificate_file.write_bytes(certificate)
    assert not live.refresh()
    files.key_file.write_bytes(key)
    assert not live.refresh()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert live.refresh()
    assert _shown(live.context) == "new.example"


@pytest.mark.parametrize("damage", ["no pair", "garbled", "gone"])
def test_a_pair_that_cannot_be_used_leaves_the_old_one(
    files: Files, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, as an error that names the files; a pair that is right later is taken up."""
    live = _live(files)
    if damage == "no pair":
        files.key_file.write_bytes(_pair("new.example", is_rsa=False)[1])
    elif damage == "garbled":
        files.certificate_file.write_text("no certificate")
    else:
        files.certificate_file.unlink()
    assert [live.refresh() for _ in range(5)] == [False] * 5
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "stays in use" in errors[0]
    assert "mine." in errors[0]
    assert _shown(live.context) == "old.example"
    files.write("new.example")
    assert any([live.refresh(), live.refresh()])
    assert _shown(live.context) == "new.example"


def test_the_services_own_certificate_is_renewed_while_it_runs(tmp_path: Path) -> None:
    """A service that runs for more than a year does not end with a certificate that no client accepts."""
    clock = FixedClock()
    live = LiveCertificate(lambda: ensure_server_certificate(tmp_path, [], clock=clock), clock=clock)
    ca_file = live.certificate.ca_file
    assert ca_file is not None
    ca_before = ca_file.read_bytes()
    assert not any([live.refresh(), live.refresh()])
    clock.now += timedelta(days=380)
    assert any([live.refresh(), live.refresh()])
    assert not live.certificate.is_ending(clock.now)
    assert ca_file.read_bytes() == ca_before


@pytest.mark.slow
async def test_every_port_shows_the_new_certificate_and_open_connections_stay(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMQP and HTTP over TLS; what is connected is not disturbed."""
    monkeypatch.setattr(live_certificate, "CHECK_INTERVAL_S", 0.01)
    files.write("localhost")
    server = TidegateServer(
        ServerSettings(
            data_dir=tmp_path / "data",
            amqp_port=None,
            amqps_port=0,
            http_port=None,
            https_port=0,
            tls_certificate=files.certificate_file,
            tls_key=files.key_file,
        )
    )
    ready = await server.start()
    try:
        ports = [int(str(address).rpartition(":")[2]) for address in (ready.amqps, ready.https)]
        assert {await asyncio.to_thread(_shown_at, port) for port in ports} == {"localhost"}
        reader, writer = await _connect(ports[1])
        files.write("new.example")
        async with asyncio.timeout(_DEADLINE_S):
            for port in ports:
                while await asyncio.to_thread(_shown_at, port) != "new.example":
                    pass
        assert "new.example" in server.ready.connection_string
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(_DEADLINE_S):
            assert b" 200 " in await reader.readline()
        writer.close()
    finally:
        await server.close()


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def _shown_at(port: int) -> str:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return _host(connection.getpeercert(binary_form=True))
