"""Tokens of principals at every door: a role on an event hub opens nothing outside it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from tests.access import doors
from tests.access.matrix import ALPHA, BETA, RIGHTS, SCOPES, Endpoint
from tests.access.support import RawHttp

from tidegate.server.development_issuer import DevelopmentIssuer
from tidegate.testing.hub import HubService
from tidegate.wire.cbs import JWT_TOKEN_TYPE

ROLES = {"sender": "Sender", "listener": "Receiver", "manager": "Owner"}
"""By the policy of the matrix that has the same rights."""

_HOSTS = (ALPHA, f"{BETA}:80", "localhost", f"{ALPHA}?x")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """Two event hubs, and trust in the issuer for development."""
    config = tmp_path_factory.mktemp("entra") / "settings.json"
    config.write_text(json.dumps({"is_development_issuer_trusted": True}))
    with HubService(is_http_used=True, config=config) as service:
        for hub in (ALPHA, BETA):
            service.create_hub(hub, partition_count=1)
        yield service


def _token(service: HubService, policy: str, scope: str) -> str:
    role = f"Azure Event Hubs Data {ROLES[policy]}"
    issuer = DevelopmentIssuer.open(service.data_dir)
    now = int(time.time())  # noqa: TID251 - the service's clock is the machine's
    return issuer.token("p", [f"{role}@{scope}" if scope else role], now=now, life_s=3600)


def _is_allowed(endpoint: Endpoint, policy: str, scope: str) -> bool:
    return bool(RIGHTS[policy] & endpoint.rights) and scope in ("", *endpoint.entity[:1])


def _changes(endpoint: Endpoint) -> bool:
    return endpoint.method == "DELETE"


@pytest.mark.slow
def test_http(service: HubService) -> None:
    """Publishing in all forms, every operation of both administrations, and the metrics."""
    assert service.ready.http is not None
    endpoints = [*doors.publishing(), *doors.administration(), *doors.atom(), doors.metrics()]
    wrong = []
    with RawHttp(service.ready.http) as http:
        for scope in SCOPES:
            for policy in RIGHTS:
                token = _token(service, policy, scope)
                for number, endpoint in enumerate(endpoints):
                    is_allowed = _is_allowed(endpoint, policy, scope)
                    if is_allowed and _changes(endpoint):
                        continue
                    headers = [("Host", _HOSTS[number % len(_HOSTS)]), ("Authorization", f"Bearer {token}")]
                    if endpoint.target == "/metrics":
                        headers.append(("X-Forwarded-For", "203.0.113.7"))
                    status, _ = http.ask(endpoint.method, endpoint.target, headers, endpoint.body.encode())
                    if (status not in doors.REFUSED) != is_allowed:
                        wrong.append((scope, policy, endpoint, status))
    assert not wrong, wrong[:10]


@pytest.mark.slow
@pytest.mark.parametrize("audience_of", ["sb://localhost/{hub}", "sb://localhost/", "{hub}"])
def test_amqp(service: HubService, audience_of: str) -> None:
    """Links and requests: a token gives what its roles say on the audience that it was put for, no more."""
    assert service.ready.amqp is not None
    endpoints = [each for each in doors.links() if each.entity[0] in (ALPHA, BETA, "$management")]
    wrong: list[tuple[object, ...]] = []
    for scope in SCOPES:
        for policy in RIGHTS:
            for hub in (ALPHA, BETA):
                audience = audience_of.format(hub=hub)
                covered = (hub,) if "{hub}" in audience_of else ()
                token = _token(service, policy, scope)
                is_put = scope in ("", *covered)
                with doors.AmqpClient(doors.TcpWire(service.ready.amqp)) as client:
                    status = client.put_token(token, audience, token_type=JWT_TOKEN_TYPE)
                    if (status == 202) != is_put:
                        wrong.append((scope, policy, audience, status))
                    for endpoint in endpoints[:: 3 if not is_put else 1][:8]:
                        is_allowed = (
                            is_put
                            and endpoint.entity[: len(covered)] == covered
                            and _is_allowed(endpoint, policy, scope)
                        )
                        if client.is_let_through(endpoint) != is_allowed:
                            wrong.append((scope, policy, audience, endpoint))
    assert not wrong, wrong[:10]


def test_a_bearer_is_not_a_signature(service: HubService) -> None:
    """A proxy that lets Bearer pass has checked a JSON Web Token, not this."""
    assert service.ready.http is not None
    with RawHttp(service.ready.http) as http:
        for scheme in (
            "Bearer SharedAccessSignature sr=x&sig=x&se=1&skn=x",
            "Bearer ",
            "Bearer",
            "Basic e30=",
        ):
            status, body = http.ask("GET", "/api/v1/event-hubs", [("Host", "h"), ("Authorization", scheme)])
            assert (status, b"InvalidToken" in body or b"MalformedToken" in body) == (401, True), body
