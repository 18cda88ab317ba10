"""The access matrix: who signed what for which entity, at every door, and whether that was let through.

Some ten thousand cases against one real service. To see one again, give what a failure printed:

    TIDEGATE_ACCESS_CASE='…' pytest tests/access/test_matrix.py

``TIDEGATE_SEED`` draws other cases than the usual ones.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice, product

import pytest
from tests.access import doors
from tests.access.matrix import (
    ALPHA,
    BETA,
    GONE,
    OWN_NAME,
    RIGHTS,
    SCOPES,
    SIGNERS,
    Audience,
    Case,
    Endpoint,
    Signer,
    cases_of_tokens,
    disguised_cases,
    drawn_cases,
    plain_cases,
)
from tests.access.support import RawHttp
from tests.console.support import PlainBrowser
from tests.gateway.blob_client import BlobClient
from tests.needs import PRODUCT

from tidegate.broker import Claim
from tidegate.gateway.administration.operations import PREFIX
from tidegate.gateway.http.blobs.operations import OPERATIONS as BLOB_OPERATIONS
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

SEED = int(os.environ.get("TIDEGATE_SEED", "18"))
HTTP_DRAWN, HTTP_DISGUISED, AMQP_TOKENS, WEBSOCKET_TOKENS = 4000, 3000, 120, 30
LINKS_MAX = 8
_HOSTS = (ALPHA, f"{ALPHA}:80", BETA, GONE, "elsewhere.example", "127.0.0.1:5300", "[::1]:80")
SHOWN_MAX = 10
SCOPES_AND_GONE = (*SCOPES, GONE)

pytestmark = pytest.mark.usefixtures("guesses_are_free")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """Two event hubs, one that is gone, and the policies of all scopes."""
    config = tmp_path_factory.mktemp("matrix") / "settings.json"
    config.write_text(json.dumps({"host_names": [OWN_NAME]}))
    with HubService(is_http_used=True, config=config) as service:
        _repair(service)
        service.create_hub(GONE, partition_count=1)

        async def delete(server: TidegateServer) -> None:
            await server.broker.delete_event_hub(GONE)

        service.call(delete)
        yield service


@pytest.mark.slow
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=PRODUCT)])
def test_http(service: HubService, share: int) -> None:
    """Publishing in all forms, every operation of both administrations, and the metrics."""
    endpoints = [*doors.publishing(), *doors.administration(), *doors.atom(), doors.metrics()]
    assert service.ready.http is not None
    with RawHttp(service.ready.http) as http:

        def judge(case: Case) -> bool:
            status = doors.ask_http(http, case)
            if not case.is_allowed and status not in doors.REFUSED:
                _repair(service)  # so that the next cases are judged for themselves
            assert status < 500, _shown(case)
            return status not in doors.REFUSED

        # What would remove an event hub is asked only by who may not; the rest changes nothing.
        draw = random.Random(f"http {SEED}")
        chosen = [
            *plain_cases("http", endpoints, draw),
            *drawn_cases("http", endpoints, draw, HTTP_DRAWN // share),
            *disguised_cases("http", endpoints, draw, HTTP_DISGUISED // share),
        ]
        safe = [case for case in chosen if not (case.is_allowed and _removes(case.endpoint))]
        _check(safe if (given := _given("http")) is None else given, judge)


@pytest.mark.slow
def test_amqp(service: HubService) -> None:
    """Links and requests on connections of their own per token, over plain AMQP."""
    assert service.ready.amqp is not None
    address = service.ready.amqp
    given = _given("amqp")
    tokens = cases_of_tokens("amqp", [*doors.links()], random.Random(f"amqp {SEED}"), AMQP_TOKENS)
    _check_connections(
        tokens if given is None else [given] if given else [], lambda _: doors.TcpWire(address)
    )


@pytest.mark.slow
def test_websocket(service: HubService) -> None:
    """The same in WebSockets, whose requests have a Host header."""
    assert service.ready.http is not None
    address = service.ready.http
    given = _given("websocket")
    draw = random.Random(f"websocket {SEED}")
    tokens = cases_of_tokens("websocket", [*doors.links()], draw, WEBSOCKET_TOKENS)
    _check_connections(
        tokens if given is None else [given],
        # A library makes the request, and refuses what is no host.
        lambda case: doors.WebSocketWire(address, case.host if case.host in _HOSTS else "localhost"),
    )


@pytest.mark.slow
def test_blobs(service: HubService) -> None:
    """Every operation of Blob Storage in every account, with the key of every policy: signed for the account
    that is asked for, or for another one; with a Host header that repeats it."""
    assert service.ready.http is not None
    found: list[str] = []
    count = 0
    draw = random.Random(f"blobs {SEED}")
    for signer in SIGNERS:
        key = base64.b64encode(signer.key.encode()).decode()
        for signed, asked, operation in product(SCOPES_AND_GONE, SCOPES_AND_GONE, BLOB_OPERATIONS):
            rights = RIGHTS[signer.policy] if signer.is_genuine else frozenset[str]()
            # That there is no such hub is told to whoever may listen to all.
            needed = "Manage" if operation.needs_manage and asked != GONE else "Listen"
            is_allowed = signed == asked and signer.scope in ("", asked) and needed in rights
            client = BlobClient(service.ready.http, doors.account_of(signed), key)
            path = "/store-x" if operation.resource == "c" else "/store-x/b"
            query = {name: value for name in ("restype", "comp") if (value := getattr(operation, name))}
            headers = {"Host": draw.choice([doors.account_of(signed), signed or "localhost", "localhost"])}
            answer = client.ask(operation.method, path, query, headers, at=doors.account_of(asked))
            count += 1
            if (answer.status != 403) != is_allowed:
                found.append(f"{signer} {signed} {asked} {operation.method} {query}: {answer}")
            elif not is_allowed:
                # What does not exist is refused alike.
                assert b"hub" not in answer.body
                assert answer.code in ("AuthenticationFailed", "AuthorizationPermissionMismatch")
    assert not found, f"{len(found)} of {count}: {found[:SHOWN_MAX]}"


@pytest.mark.slow
def test_console(service: HubService) -> None:
    """Pages and forms, to who signed in with the key of a policy."""
    assert service.ready.console is not None
    found: list[str] = []
    count = 0
    for scope in SCOPES:
        for policy, rights in RIGHTS.items():
            browser = PlainBrowser(service.ready.console)
            signer = Signer(scope, policy)
            fields = {"policy": policy, "key": signer.key, "hub": "", "next": "/"}
            assert browser.post("/console/sign-in", fields).status == 303
            # Every page has the form to sign out, with the token of this session.
            browser.get("/console/jobs")
            for endpoint in _pages():
                is_allowed = bool(rights & endpoint.rights) and scope in ("", *endpoint.entity[:1])
                count += 1
                if endpoint.method == "GET":
                    status = browser.get(endpoint.target).status
                    is_let_through = status in (200, 404)
                else:
                    status = browser.post(endpoint.target, {"name": ""}).status
                    is_let_through = status not in doors.REFUSED
                if is_let_through != is_allowed:
                    found.append(f"{signer} {endpoint.method} {endpoint.target}: {status}")
    assert not found, f"{len(found)} of {count}: {found[:SHOWN_MAX]}"


def _pages() -> Iterator[Endpoint]:
    manage, listen = doors.MANAGE, doors.LISTEN
    yield Endpoint("GET", "/", (), listen)
    yield Endpoint("POST", "/hubs/-/create", (), manage)
    for hub in (ALPHA, BETA, GONE, ALPHA.upper(), f"{BETA}%3F"):
        entity = (hub.lower(),)
        for page in ("groups", "capture", "publishers", "settings", "delete", "explorer"):
            yield Endpoint("GET", f"/hubs/{hub}/{page}", entity, listen)
        yield Endpoint("GET", f"/hubs/{hub}/explorer/send", entity, listen | doors.SEND)
        yield Endpoint("POST", f"/hubs/{hub}/explorer/send", entity, doors.SEND)
        for page in ("groups", "publishers", "settings", "delete"):
            yield Endpoint("POST", f"/hubs/{hub}/{page}", entity, manage)
        yield Endpoint("POST", f"/hubs/{hub}/capture", (), manage)


def _given(door: str) -> list[Case] | None:
    """The one case that is to be seen again, where it is of this door; None: there is none."""
    given = os.environ.get("TIDEGATE_ACCESS_CASE")
    if given is None:
        return None
    case = _parsed(given)
    return [case] if case.door == door else []


def _check_connections(tokens: Iterable[list[Case]], wire: Callable[[Case], doors.Wire]) -> None:
    """Connections for the cases with the same token, few each: strangers may not begin many links."""
    found: list[Case] = []
    count = 0
    for same in tokens:
        for start in range(0, len(same), LINKS_MAX):
            few = same[start : start + LINKS_MAX]
            with doors.AmqpClient(wire(few[0])) as client:
                token = doors.token_of(few[0].signer, few[0].encoded)
                client.put_token(token, few[0].audience.text)
                for case in few:
                    # There is no link, and no token is taken, for an event hub that does not exist.
                    is_there = case.endpoint.entity[0] in (ALPHA, BETA, "$management")
                    if is_there or case.endpoint.method != "manage":
                        count += 1
                        if client.is_let_through(case.endpoint) != (case.is_allowed and is_there):
                            found.append(case)
    _report(found, count)


def _check(chosen: list[Case], judge: Callable[[Case], bool]) -> None:
    _report([case for case in chosen if judge(case) != case.is_allowed], len(chosen))


def _report(wrong: list[Case], count: int) -> None:
    kinds = sum(not case.is_allowed for case in wrong)
    shown = "\n".join(f"TIDEGATE_ACCESS_CASE={_shown(case)!r}" for case in islice(wrong, SHOWN_MAX))
    assert not wrong, (
        f"{len(wrong)} of {count} cases (seed {SEED}): {kinds} let through that must not be, "
        f"{len(wrong) - kinds} refused that must not be:\n{shown}"
    )


def _removes(endpoint: Endpoint) -> bool:
    is_atom = not endpoint.target.startswith(PREFIX)
    return endpoint.method == "DELETE" and endpoint.target.count("/") == (1 if is_atom else 4)


def _repair(service: HubService) -> None:
    """Make what a case may have removed."""

    async def repair(server: TidegateServer) -> None:
        broker = server.broker
        there = {hub.name for hub in broker.list_event_hubs()}
        for scope in SCOPES:
            hub = scope or None
            if hub is not None and hub not in there:
                await broker.create_event_hub(hub, partition_count=1)
            known = {policy.name for policy in broker.policies(hub)}
            for policy, rights in RIGHTS.items():
                if policy not in known:
                    claims = [claim for claim in Claim if claim.value in rights]
                    await broker.create_policy(hub, policy, claims, key=Signer(scope, policy).key)

    service.call(repair)


def _shown(case: Case) -> str:
    return json.dumps(asdict(case), default=sorted)


def _parsed(text: str) -> Case:
    given = json.loads(text)
    audience, endpoint = given["audience"], given["endpoint"]
    meaning = audience["meaning"]
    return Case(
        given["door"],
        Signer(**given["signer"]),
        Audience(audience["text"], None if meaning is None else tuple(meaning)),
        given["encoded"],
        Endpoint(
            **{**endpoint, "entity": tuple(endpoint["entity"]), "rights": frozenset(endpoint["rights"])}
        ),
        given["host"],
    )
