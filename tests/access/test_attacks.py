"""The attacks of issue 18: a key of one hub, a deleted hub's name, and headers that say what suits them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.access.support import RawHttp, token_for

from tidegate.broker import ROOT_POLICY_NAME, Claim
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import NotFoundError
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService


@dataclass(frozen=True)
class Tenants:
    """A service with two tenants, each of whom has a hub and a policy of it."""

    service: HubService
    key: str
    """Of tenant-a's policy ``manage``."""


@pytest.fixture(scope="module")
def tenants(guesses_are_free: None) -> Iterator[Tenants]:
    """``tenant-a``, ``tenant-b``; ``gone`` was deleted."""
    with HubService(is_http_used=True) as service:
        for name in ("tenant-a", "tenant-b", "gone"):
            service.create_hub(name, partition_count=1)

        async def prepare(server: TidegateServer) -> str:
            await server.broker.delete_event_hub("gone")
            return (await server.broker.create_policy("tenant-a", "manage", list(Claim))).key

        yield Tenants(service, service.call(prepare))


REQUESTS = (
    ("POST", "/tenant-b/messages", b"x"),
    ("GET", "/api/v1/event-hubs", b""),
    ("GET", f"/api/v1/policies/{ROOT_POLICY_NAME}", b""),
    ("GET", "/api/v1/event-hubs/tenant-b", b""),
    ("DELETE", "/api/v1/event-hubs/tenant-b", b""),
    (
        "PUT",
        "/api/v1/event-hubs/tenant-a/capture",
        json.dumps({"destination": "/tmp/elsewhere", "interval_s": 60}).encode(),
    ),
)

DISGUISES = (
    ("tenant-a?x", "tenant-a?x"),
    ("tenant-%61", "tenant-%61"),
    ("tenant-a#x", "tenant-a#x"),
    ("tenant-a\\x", "tenant-a\\x"),
    ("tenant-a", "tenant-a"),
    ("tenant-a:80", "tenant-a"),
    ("TENANT-A", "tenant-a"),
    ("tenant-a", "TENANT-A/tenant-b"),
    ("tenant-a", "tenant-a/../tenant-b"),
    ("tenant-a", "tenant-a/%2e%2e/tenant-b"),
    ("x", "sb://x/tenant-a?/../tenant-b"),
    ("tenant-a", "sb://tenant-a/"),
    ("tenant-a?x", "sb://tenant-a?x/"),
    ("tenant-a/api/v1/event-hubs/tenant-a/x?", "tenant-a"),
    ("localhost", "localhost/tenant-a"),
    ("localhost", "localhost"),
    ("gone", "gone"),
    ("never-there", "never-there"),
)
"""What the Host header says, and the token's audience after ``sr`` is decoded once."""


@pytest.mark.parametrize(("method", "target", "body"), REQUESTS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize(("host", "audience"), DISGUISES)
@pytest.mark.slow
def test_a_key_of_a_hub_opens_nothing_else(
    tenants: Tenants, host: str, audience: str, method: str, target: str, body: bytes
) -> None:
    """Whatever Host and audience say, and however they agree: 401, and nothing is changed."""
    token = token_for(audience, "manage", tenants.key)
    assert tenants.service.ready.http is not None
    with RawHttp(tenants.service.ready.http) as http:
        status, answer = http.ask(method, target, [("Host", host), ("Authorization", token)], body)
    assert status == 401, answer
    assert b"primary_key" not in answer

    async def names(server: TidegateServer) -> list[str]:
        return [hub.name for hub in server.broker.list_event_hubs()]

    assert tenants.service.call(names) == ["tenant-a", "tenant-b"]


@pytest.mark.parametrize("host", ["gone", "GONE:80", "never-there", "localhost"])
@pytest.mark.parametrize("audience", ["gone", "gone/", "never-there", "gone/tenant-b"])
@pytest.mark.slow
def test_a_token_for_a_hub_that_is_gone_is_no_token_for_the_namespace(
    tenants: Tenants, host: str, audience: str
) -> None:
    """A token of the root key for one hub was given away for that hub, whether it is still there or not."""
    root = ConnectionString.parse(tenants.service.connection_string)
    assert root.shared_access_key is not None
    token = token_for(audience, ROOT_POLICY_NAME, root.shared_access_key)
    assert tenants.service.ready.http is not None
    with RawHttp(tenants.service.ready.http) as http:
        for method, target, body in REQUESTS:
            status, answer = http.ask(method, target, [("Host", host), ("Authorization", token)], body)
            assert status == 401, answer


def test_the_same_key_works_for_its_hub_whatever_the_host_header_says(tenants: Tenants) -> None:
    """Host has no part in it: neither for nor against."""
    assert tenants.service.ready.http is not None
    with RawHttp(tenants.service.ready.http) as http:
        for host in ("127.0.0.1", "tenant-b", "tenant-a?x", "evil.example", "localhost/tenant-b"):
            for audience in (
                "tenant-a",
                "sb://any.example/Tenant-A/",
                "localhost/tenant-a",
                "127.0.0.1:5672/tenant-a",
            ):
                token = token_for(audience, "manage", tenants.key)
                headers = [("Host", host), ("Authorization", token)]
                assert http.ask("POST", "/tenant-a/messages", headers, b"x")[0] == 201, (host, audience)


def test_absolute_targets_are_judged_by_their_path(tenants: Tenants) -> None:
    """``GET http://other/path``: the host of a target has no part in it, either."""
    assert tenants.service.ready.http is not None
    token = token_for("tenant-a", "manage", tenants.key)
    headers = [("Host", "localhost"), ("Authorization", token)]
    with RawHttp(tenants.service.ready.http) as http:
        for authority in ("tenant-a", "localhost", "tenant-a?x"):
            for path in ("/api/v1/event-hubs", "/api/v1/event-hubs/tenant-b", "/api/v1/policies"):
                status, _ = http.ask("GET", f"http://{authority}{path}", headers)
                assert status in (303, 401), (authority, path)
        assert http.ask("GET", "http://tenant-b/api/v1/event-hubs/tenant-a", headers)[0] == 200


def test_no_answer_leads_to_the_host_that_a_header_names(tenants: Tenants) -> None:
    """Behind a proxy that ends TLS, a redirect to ``http://HOST`` would have a token sent in the clear."""
    assert tenants.service.ready.http is not None
    for method, target in (
        ("GET", "/health/"),
        ("POST", "/tenant-a/messages/"),
        ("GET", "/api/v1/event-hubs/"),
        ("GET", "http://evil.example/health/"),
        ("GET", "/console/static"),
        ("GET", "/console/sign-in/"),
    ):
        with RawHttp(tenants.service.ready.http) as http:
            status, answer = http.ask(method, target, [("Host", "evil.example")])
        assert (status in (303, 404), b"evil.example" in answer) == (True, False), (method, target, status)


def test_a_name_in_other_letters_is_another_name(tenants: Tenants) -> None:
    """The small letter of the sign for Kelvin is ``k``: no second name of a hub reaches pages, and headers of
    answers, that are made for names as the naming rules have them.
    """

    async def find(server: TidegateServer) -> str:
        await server.broker.create_event_hub("kilo", partition_count=1)
        assert server.broker.event_hub("KILO").name == "kilo"
        with pytest.raises(NotFoundError):
            server.broker.event_hub("\u212ailo")
        return (await server.broker.create_policy("kilo", "manage", list(Claim))).key

    token = token_for("sb://localhost/kilo", "manage", tenants.service.call(find))
    assert tenants.service.ready.http is not None
    with RawHttp(tenants.service.ready.http) as http:
        headers = [("Host", "localhost"), ("Authorization", token)]
        for path in ("/api/v1/event-hubs/%E2%84%AAilo", "/api/v1/event-hubs/%E2%84%AAilo/policies"):
            assert http.ask("GET", path, headers)[0] == 404


def test_two_tokens_in_a_request_are_refused(tenants: Tenants) -> None:
    """A proxy before the service may have judged by another one."""
    assert tenants.service.ready.http is not None
    token = token_for("tenant-a", "manage", tenants.key)
    with RawHttp(tenants.service.ready.http) as http:
        headers = [("Host", "localhost"), ("Authorization", token), ("authorization", token)]
        status, answer = http.ask("GET", "/api/v1/event-hubs/tenant-a", headers)
        assert (status, b"several Authorization headers" in answer) == (401, True)
