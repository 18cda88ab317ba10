"""Issuers of tokens: their keys are found by discovery or in a file, change, and may be away for a while."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.access.support import RawHttp

from tidegate.broker.entra.issuers import TokenIssuer
from tidegate.broker.entra.tokens import EntraTokens
from tidegate.model.errors import InvalidArgumentError, UnauthorizedError
from tidegate.server import issuer_keys
from tidegate.server.app import TidegateServer
from tidegate.server.config_file import load_settings
from tidegate.server.development_issuer import DevelopmentIssuer
from tidegate.server.issuer_keys import IssuerKeys
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner

ROLE = "Azure Event Hubs Data Sender"


class Issuer:
    """An OpenID provider on loopback; what it answers can be changed."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            """Answers as the issuer is told to."""

            def do_GET(self) -> None:
                """JSON, a redirect, or an error."""
                issuer.asked.append(self.path)
                answer = issuer.answers.get(self.path)
                if isinstance(answer, str):
                    self.send_response(302)
                    self.send_header("Location", answer)
                    self.end_headers()
                    return
                body = json.dumps(answer).encode() if not isinstance(answer, bytes) else answer
                self.send_response(200 if answer is not None else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def publish(self, key_set: object) -> None:
        """Serve these keys by discovery."""
        self.answers["/.well-known/openid-configuration"] = {
            "issuer": self.address,
            "jwks_uri": f"{self.address}/keys",
        }
        self.answers["/keys"] = key_set

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer without keys."""
    found = Issuer()
    yield found
    found.close()


def _signed(key: DevelopmentIssuer, issuer: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token of that key, as another issuer's."""
    now = int(time.time())  # noqa: TID251 - the service's clock is the machine's
    with monkeypatch.context() as patch:
        patch.setattr(DevelopmentIssuer, "trusted", TokenIssuer(issuer))
        return key.token("p", [ROLE], now=now, life_s=600)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the issuer runs in a thread
            await asyncio.sleep(0.01)


async def test_discovery_and_new_keys(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An issuer that is away, comes, and changes its key: each token is accepted once its key is known."""
    monkeypatch.setattr(issuer_keys, "RETRY_INTERVAL_S", 0.0)
    old, new = (DevelopmentIssuer.create(tmp_path / name) for name in ("old", "new"))
    trusted = TokenIssuer(issuer.address, are_roles_in_tokens=True)
    tokens = EntraTokens([trusted])
    now = SystemClock().now_utc()
    running = asyncio.ensure_future(IssuerKeys(tokens, [trusted]).run())  # noqa: TID251 - ended below
    await _until(lambda: bool(issuer.asked))  # it answers 503

    async def accepted(key: DevelopmentIssuer) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    tokens.verify(_signed(key, issuer.address, monkeypatch), now_utc=now)
                    return
                except UnauthorizedError:
                    await asyncio.sleep(0.01)

    issuer.publish(old.key_set())
    await accepted(old)
    issuer.publish(new.key_set())
    await accepted(new)
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        tokens.verify(_signed(old, issuer.address, monkeypatch), now_utc=now)
    issuer.publish({"keys": []})  # a mistake of the issuer: the known key stays
    asked = len(issuer.asked)
    while len(issuer.asked) < asked + 2:
        tokens.on_unknown_key()
        await asyncio.sleep(0.01)
    await accepted(new)
    running.cancel()


@pytest.mark.parametrize(
    "answers",
    [
        {"/.well-known/openid-configuration": {"issuer": "https://another.example"}},
        {"/.well-known/openid-configuration": "/elsewhere", "/elsewhere": {}},
        {"/.well-known/openid-configuration": b"[" * 100_000},
        {"/.well-known/openid-configuration": b"[]"},
        {"/.well-known/openid-configuration": b" " * (1024 * 1024 + 1)},
        {"/.well-known/openid-configuration": {"issuer": None}},
        {},
    ],
)
@pytest.mark.slow
async def test_what_an_issuer_may_not_answer(
    issuer: Issuer, answers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Another issuer's configuration, a redirect, too much: no key is taken, and the log says so."""
    issuer.answers = answers
    trusted = TokenIssuer(issuer.address, are_roles_in_tokens=True)
    running = asyncio.ensure_future(IssuerKeys(EntraTokens([trusted]), [trusted]).run())  # noqa: TID251
    await _until(lambda: "could not be fetched" in caplog.text)
    running.cancel()
    assert f"the keys of the token issuer {issuer.address} could not be fetched" in caplog.text
    assert issuer.asked == ["/.well-known/openid-configuration"]


@pytest.mark.parametrize("address", ["https://[", "https://a\u2100b/keys"])
@pytest.mark.slow
async def test_one_issuers_document_does_not_end_the_renewal_for_the_others(
    issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    """An address that no parser takes is that issuer's mistake; another's new key is known nevertheless."""
    key = DevelopmentIssuer.create(tmp_path)
    issuer.publish(key.key_set())
    issuer.answers["/odd/.well-known/openid-configuration"] = {
        "issuer": f"{issuer.address}/odd",
        "jwks_uri": address,
    }
    odd, sound = (
        TokenIssuer(each, are_roles_in_tokens=True) for each in (f"{issuer.address}/odd", issuer.address)
    )
    tokens = EntraTokens([odd, sound])
    async with TaskOwner("test") as tasks:
        running = tasks.start(IssuerKeys(tokens, [odd, sound]).run(), name="keys")
        await _until(lambda: "could not be fetched" in caplog.text and sound.issuer in tokens._keys)
        assert not running.done()
    assert f"{odd.issuer} could not be fetched: The address {address!r}" in caplog.text


async def test_an_issuer_that_does_not_answer_holds_up_nothing(
    issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the others are known meanwhile, it is waited for no longer than agreed, and not twice at
    once; a stop does not wait for it at all."""
    issuer.publish(DevelopmentIssuer.create(tmp_path).key_set())
    silent = TokenIssuer(f"{issuer.address}/silent", are_roles_in_tokens=True)
    sound = TokenIssuer(issuer.address, are_roles_in_tokens=True)
    is_over, fetched, real = threading.Event(), list[str](), issuer_keys._key_set

    def key_set(wanted: TokenIssuer) -> Mapping[str, Any]:
        fetched.append(wanted.issuer)
        if wanted is silent:
            is_over.wait()
        return real(wanted)

    monkeypatch.setattr(issuer_keys, "_key_set", key_set)
    monkeypatch.setattr(issuer_keys, "RETRY_INTERVAL_S", 0.0)
    tokens = EntraTokens([silent, sound])
    try:
        async with TaskOwner("test") as tasks:
            tasks.start(IssuerKeys(tokens, [silent, sound]).run(), name="keys")
            await _until(lambda: sound.issuer in tokens._keys)
            monkeypatch.setattr(issuer_keys, "FETCH_TIMEOUT_S", 0.05)
            tasks.start(IssuerKeys(tokens, [silent, sound]).run(), name="keys, impatient")
            await _until(lambda: caplog.text.count("has not answered within 0.05 s") >= 3)
        assert fetched.count(silent.issuer) == 2
    finally:
        is_over.set()


def test_a_remote_issuer_names_no_address_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are at HTTPS as it is: the service asks no program on its own machine for it."""
    asked: list[str] = []

    class Opener:
        """Answers for a remote issuer."""

        def open(self, address: str, timeout: float) -> io.BytesIO:
            """The configuration of any address."""
            asked.append(address)
            answer = {"issuer": "https://sts.example", "jwks_uri": "http://127.0.0.1:1/admin"}
            return io.BytesIO(json.dumps(answer).encode())

    monkeypatch.setattr(issuer_keys, "_OPENER", Opener())
    with pytest.raises(InvalidArgumentError, match=r"127\.0\.0\.1:1/admin' of a token issuer is not HTTPS"):
        issuer_keys._key_set(TokenIssuer("https://sts.example"))
    assert asked == ["https://sts.example/.well-known/openid-configuration"]


def test_an_issuer_without_keys_keeps_no_service_from_starting(issuer: Issuer, tmp_path: Path) -> None:
    """Its mistake, or its outage, is not the service's."""
    issuer.publish({"keys": []})
    config = tmp_path / "tidegate.toml"
    config.write_text(
        f'[[token_issuers]]\nissuer = "{issuer.address}"\n'
        'roles = [{role = "Data Owner", principal = "p"}]\n'
    )
    with HubService(is_http_used=True, config=config) as service:
        assert service.create_hub()


@pytest.mark.parametrize("address", ["http://issuer.example", "file:///etc/passwd", "issuer"])
def test_addresses_that_are_not_https(address: str) -> None:
    """A start fails: whoever is in between could trust themselves."""
    trusted = TokenIssuer(address, are_roles_in_tokens=True)
    with pytest.raises(InvalidArgumentError, match=r"is not HTTPS\. Correct"):
        IssuerKeys(EntraTokens([trusted]), [trusted]).load_files()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r": No such file or directory\. Put its"),
        ("[]", r"object\. Put its"),
        ("{}", r"key\. It needs"),
    ],
)
def test_files_of_keys_that_cannot_be_used(tmp_path: Path, text: str | None, message: str) -> None:
    """The error says what belongs there."""
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_text(text)
    trusted = TokenIssuer("https://sts.example/", keys=path, are_roles_in_tokens=True)
    with pytest.raises(InvalidArgumentError, match=message):
        IssuerKeys(EntraTokens([trusted]), [trusted]).load_files()


def test_a_declared_issuer_with_keys_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the configuration; its principal sends to one event hub, and the audit trail names it."""
    key = DevelopmentIssuer.create(tmp_path)
    (tmp_path / "keys.json").write_text(json.dumps(key.key_set()))
    config = tmp_path / "tidegate.toml"
    config.write_text(
        '[[token_issuers]]\nissuer = "https://sts.example/"\nkeys = "keys.json"\n'
        '[[token_issuers.roles]]\nrole = "data owner"\nprincipal = "p"\nevent_hub = "orders"\n'
    )
    token = _signed(key, "https://sts.example/", monkeypatch)
    with HubService(is_http_used=True, config=config) as service:
        for hub in ("orders", "other"):
            service.create_hub(hub, partition_count=1)
        assert service.ready.http is not None
        with RawHttp(service.ready.http) as http:

            def ask(method: str, target: str, body: bytes = b"") -> int:
                headers = [("Host", "h"), ("Authorization", f"Bearer {token}")]
                return http.ask(method, target, headers, body)[0]

            assert ask("POST", "/orders/messages", b"x") == 201
            assert ask("POST", "/other/messages", b"x") == 401
            assert ask("PATCH", "/api/v1/event-hubs/orders", b'{"retention_hours": 5}') == 200
            assert ask("GET", "/api/v1/audit") == 401

        async def actors(server: TidegateServer) -> list[str]:
            return [each.policy for each in server.broker.audit.newest_first()]

        assert "entra:p@https://sts.example/" in service.call(actors)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('issuer = "x"', "No principal"),
        ('issuer = "x"\nroles = [{role = "Reader", principal = "p"}]', "invalid value 'Reader'|Known"),
        ('issuer = "x"\naudiences = []\nare_roles_in_tokens = true', "audiences"),
        ('issuer = "x"\nkeys = "missing.json"\nare_roles_in_tokens = true\nsecret = 1', "unknown field"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file and the place in it."""
    path = tmp_path / "tidegate.toml"
    path.write_text(f"[[token_issuers]]\n{text}\n")
    with pytest.raises(InvalidArgumentError, match=message):
        load_settings(path, data_dir=tmp_path)
