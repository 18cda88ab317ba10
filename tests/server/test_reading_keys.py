"""Who can read which keys: every policy, by every door, with tokens for whatever they can be made for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from tests.console.support import PlainBrowser
from tests.gateway.support import HOST, Pair
from tests.needs import PRODUCT

from tidegate.broker import ROOT_POLICY_NAME, Broker, Claim, SharedAccessPolicy
from tidegate.console.app import page_routes
from tidegate.gateway.administration.operations import OPERATIONS, PREFIX
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.server.opening import open_broker
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.wire.administration import AdministrationRequest

pytestmark = pytest.mark.usefixtures("guesses_are_free")

HUBS = ("tenant-a", "tenant-b")
SCOPES = (None, *HUBS)
POLICIES = {"manager": [Claim.MANAGE], "listener": [Claim.LISTEN], "sender": [Claim.SEND]}
ACTORS = [(scope, name) for scope in SCOPES for name in (*POLICIES, ROOT_POLICY_NAME)]
"""Hubs have a policy with the root policy's name, too, and with every right on the hub."""

whole_or_part = pytest.mark.parametrize(
    "is_whole", [pytest.param(False, id="part"), pytest.param(True, id="whole", marks=PRODUCT)]
)
"""Every combination, of which there are some ten thousand; or those in which each two things meet."""


async def _create_policies(broker: Broker) -> None:
    for hub in HUBS:
        await broker.create_event_hub(hub, partition_count=1)
        await broker.create_policy(hub, ROOT_POLICY_NAME, [Claim.MANAGE])
    for scope, (name, claims) in product(SCOPES, POLICIES.items()):
        await broker.create_policy(scope, name, claims)


def _readable(broker: Broker, scope: str | None, name: str) -> set[str]:
    """Keys that an actor may read: those of its own scope and below, and only with Manage."""
    if name not in ("manager", ROOT_POLICY_NAME):
        return set()
    scopes = SCOPES if scope is None else (scope,)
    return {key for below in scopes for policy in broker.policies(below) for key in policy.keys}


def _all_keys(broker: Broker) -> set[str]:
    return {key for scope in SCOPES for policy in broker.policies(scope) for key in policy.keys}


def _keys_in(text: str, keys: set[str]) -> set[str]:
    return {key for key in keys if key in text or json.dumps(key)[1:-1] in text}


def _resources(host: str) -> list[str]:
    return [
        f"sb://{host}/",
        *(
            f"sb://{host}/{path}"
            for path in (*HUBS, "tenant-a/publishers/p", "tenant-a/policies", "policies")
        ),
        *HUBS,
        "tenant%2Da",
        "",
    ]


@pytest.fixture(scope="module")
def service() -> Iterator[HubService]:
    """Two tenants, and policies of each kind above and beside each other."""

    async def create(server: TidegateServer) -> None:
        await _create_policies(server.broker)

    with HubService(is_http_used=True) as service:
        service.call(create)
        yield service


def _of_service(service: HubService, look: Callable[[Broker], set[str]]) -> set[str]:
    async def call(server: TidegateServer) -> set[str]:
        return look(server.broker)

    return service.call(call)


def _policy(service: HubService, scope: str | None, name: str) -> SharedAccessPolicy:
    async def call(server: TidegateServer) -> SharedAccessPolicy:
        return server.broker.policy(scope, name)

    return service.call(call)


@whole_or_part
@pytest.mark.parametrize(("scope", "name"), ACTORS)
@pytest.mark.slow
def test_keys_over_http(service: HubService, scope: str | None, name: str, is_whole: bool) -> None:
    """Every GET of the administration, of every hub, with every token: exactly the keys that may be read."""
    address = service.ready.http
    assert address is not None
    policy, keys = _policy(service, scope, name), _of_service(service, _all_keys)
    paths = {
        operation.path.format(
            hub=hub, policy=other, partition="0", group="$Default", publisher="p", backup="none"
        )
        for operation in OPERATIONS
        if operation.method == "GET"
        for hub in HUBS
        for other in (*POLICIES, ROOT_POLICY_NAME)
    }
    connection = HTTPConnection(address, timeout=60)
    seen: set[str] = set()
    hosts = (address, *HUBS)
    for (row, resource), (column, path) in product(
        enumerate(_resources("127.0.0.1")), enumerate(sorted(paths))
    ):
        token = make_sas_token(audience=resource, key_name=name, key=policy.key, expiry=4_000_000_000)
        for host in hosts if is_whole else (hosts[(row + column) % len(hosts)],):
            connection.request("GET", PREFIX + path, headers={"Authorization": token, "Host": host})
            seen |= _keys_in(connection.getresponse().read().decode(), keys)
    connection.close()
    assert seen == _of_service(service, lambda broker: _readable(broker, scope, name))


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
def test_no_page_of_the_console_shows_a_key(service: HubService, scope: str | None) -> None:
    """Not even to who may read them: no page holds one."""
    assert service.ready.console is not None
    policy, keys = _policy(service, scope, "manager"), _of_service(service, _all_keys)
    browser = PlainBrowser(service.ready.console)
    fields = {"policy": "manager", "key": policy.key, "hub": scope or ""}
    assert browser.post("/console/sign-in", fields).status == 303

    paths = {
        route.path
        for route in page_routes(MagicMock(), MagicMock())
        if "GET" in (route.methods or ())
        and not route.path.startswith("/console/live/")  # the same templates
    }
    shown = 0
    for path, hub in product(sorted(paths), HUBS):
        filled = re.sub(r"\{hub[^}]*\}", hub, path)
        answer = browser.get(re.sub(r"\{[^}]*\}", "0", filled))
        shown += answer.status == 200
        assert not _keys_in(answer.body.decode(errors="replace"), keys), path
    assert shown > 5


@whole_or_part
@pytest.mark.parametrize(("scope", "name"), ACTORS)
@pytest.mark.slow
async def test_keys_over_amqp(tmp_path: Path, scope: str | None, name: str, is_whole: bool) -> None:
    """``$management`` gives exactly the keys that may be read, with a token put before or in the request."""
    broker = await open_broker(tmp_path, clock=SystemClock())
    await _create_policies(broker)
    policy, keys, seen = broker.policy(scope, name), _all_keys(broker), set[str]()
    # A hub beside the operation of the namespace must give nothing, either.
    operations = ("readPolicy", "readEventHubPolicy")
    for (row, resource), is_put in product(enumerate(_resources(HOST)), (True, False)):
        pair = Pair(broker, SystemClock())
        token = make_sas_token(audience=resource, key_name=name, key=policy.key, expiry=4_000_000_000)
        if is_put:
            pair.put_token(broker, resource, key=policy.key, policy_name=name)
        sender, receiver = pair.request_links("$management", pair.client.begin_session())
        targets = ("", *HUBS, "tenant-a/", "tenant-a?", "tenant-a/..", "?", "/")
        for (column, target), other in product(enumerate(targets), (*POLICIES, ROOT_POLICY_NAME)):
            for operation in operations if is_whole else (operations[(row + column + is_put) % 2],):
                parameters = {"hub": target, "policy": other}
                asked = AdministrationRequest(operation, parameters, security_token=None if is_put else token)
                answer = pair.request(sender, receiver, asked.to_message())
                seen |= _keys_in(str(answer.value), keys)
        pair.handler.claims.close()
    assert seen == _readable(broker, scope, name)
    await broker.close()
