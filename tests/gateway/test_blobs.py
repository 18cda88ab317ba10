"""Blob Storage over HTTP, as official processors and the older hosts ask for it, and what is refused.

.NET and Azure Functions cannot run here. ``test_requests_of_…`` replay the requests that their sources and
Azure's documentation of the REST calls say they make.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from itertools import count, repeat
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import pytest
from starlette.requests import Request
from tests.gateway.blob_client import Answer, BlobClient
from tests.storage.engines import Memory, MemoryEngine
from tests.support.clocks import SetClock
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from tidegate.broker import ROOT_POLICY_NAME, Broker, Claim, Door, Peer, acting_as, attempts
from tidegate.broker.blobs.accounts import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    DevelopmentAccount,
    account_key,
    account_name,
)
from tidegate.broker.blobs.refusals import BlobRefusedError
from tidegate.broker.blobs.store import BlobStore
from tidegate.gateway.http import long_answers
from tidegate.gateway.http.blobs import door, operations
from tidegate.gateway.http.blobs.access import BlobAccess
from tidegate.gateway.http.blobs.signatures import BlobRequest, signed_by
from tidegate.model.errors import UnauthorizedError
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.peers import TrustedProxies

LEASE, STOLEN = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
_numbers = count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, guesses_are_free: None) -> Iterator[HubService]:
    """With two event hubs, each with a policy for each right, whose keys are in base64 and not."""
    with HubService(is_http_used=True) as service:

        async def prepare(server: TidegateServer) -> None:
            for hub in ("alpha", "beta"):
                await server.broker.create_event_hub(hub, partition_count=2)
                for claim in Claim:
                    await server.broker.create_policy(hub, claim.value, [claim])
            await server.broker.create_policy("alpha", "plain", [Claim.LISTEN], key="not_base64!")

        service.call(prepare)
        yield service


def client_of(service: HubService, hub: str | None = "alpha", policy: str = "Manage") -> BlobClient:
    """A client with the key of a policy of the hub, or (None) of the root policy."""
    name = "RootManageSharedAccessKey" if hub is None else policy
    key = service.ask(lambda server: server.broker.policy(hub, name)).key
    assert service.ready.http is not None
    return BlobClient(service.ready.http, account_name(hub), account_key(key))


@pytest.fixture
def client(service: HubService) -> BlobClient:
    """With Manage on alpha."""
    return client_of(service)


@pytest.fixture
def container(client: BlobClient) -> str:
    """A path."""
    path = f"/test-{next(_numbers)}"
    assert client.ask("PUT", path, {"restype": "container"}).status == 201
    return path


Row = tuple[str, str, dict[str, str], dict[str, str], bytes, int, str]
"""Method, path below the container, query, headers, body, status, error code. ``{etag}`` is the last ETag."""

_NEW = {"x-ms-blob-type": "BlockBlob"}


def _replay(client: BlobClient, container: str, rows: list[Row]) -> list[Answer]:
    answers: list[Answer] = []
    etag = ""
    for method, path, query, headers, body, status, code in rows:
        sent = {name: value.replace("{etag}", etag) for name, value in headers.items()}
        answer = client.ask(method, container + path, query, sent, body)
        assert (answer.status, answer.code) == (status, code), (method, path, query, sent, answer)
        etag = answer.headers.get("etag", etag)
        answers.append(answer)
    return answers


def test_requests_of_the_dotnet_event_processor_host(client: BlobClient, container: str) -> None:
    """Microsoft.Azure.EventHubs.Processor 4: JSON leases in blobs with leases of their own, stolen by Change.
    Source: AzureStorageCheckpointLeaseManager in azure-sdk-for-net, and "Lease Blob"."""
    blob = "/$Default/0"
    lease = {"comp": "lease"}
    state = json.dumps({"PartitionId": "0", "Owner": "", "Token": "", "Epoch": 0, "Offset": ""}).encode()

    def act(action: str, **headers: str) -> dict[str, str]:
        return {"x-ms-lease-action": action} | {f"x-ms-{n.replace('_', '-')}": v for n, v in headers.items()}

    answers = _replay(
        client,
        container,
        [
            ("PUT", "", {"restype": "container"}, {}, b"", 409, "ContainerAlreadyExists"),
            ("HEAD", blob, {}, {}, b"", 404, "BlobNotFound"),
            ("PUT", blob, {}, {**_NEW, "If-None-Match": "*"}, state, 201, ""),
            ("PUT", blob, {}, {**_NEW, "If-None-Match": "*"}, state, 409, "BlobAlreadyExists"),
            ("HEAD", blob, {}, {}, b"", 200, ""),
            ("PUT", blob, lease, act("acquire", lease_duration="30", proposed_lease_id=LEASE), b"", 201, ""),
            ("PUT", blob, {"comp": "metadata"},
             {"x-ms-meta-OWNINGHOST": "host-1", "x-ms-lease-id": LEASE}, b"", 200, ""),
            ("PUT", blob, {}, {**_NEW, "x-ms-lease-id": LEASE, "x-ms-meta-OWNINGHOST": "host-1"},
             state.replace(b'""', b'"host-1"', 1), 201, ""),
            ("PUT", blob, lease, act("renew", lease_id=LEASE), b"", 200, ""),
            # Another host steals it: the first then fails to renew and to write.
            ("PUT", blob, lease, act("acquire", lease_duration="30", proposed_lease_id=STOLEN), b"",
             409, "LeaseAlreadyPresent"),
            ("PUT", blob, lease, act("change", lease_id=LEASE, proposed_lease_id=STOLEN), b"", 200, ""),
            ("PUT", blob, lease, act("renew", lease_id=LEASE), b"", 409, "LeaseIdMismatchWithLeaseOperation"),
            ("PUT", blob, {}, {**_NEW, "x-ms-lease-id": LEASE}, state, 412,
             "LeaseIdMismatchWithBlobOperation"),
            ("PUT", blob, {}, _NEW, state, 412, "LeaseIdMissing"),
            ("GET", blob, {}, {}, b"", 200, ""),
            ("PUT", blob, lease, act("release", lease_id=STOLEN), b"", 200, ""),
            ("PUT", blob, {}, {**_NEW, "x-ms-lease-id": STOLEN}, state, 412,
             "LeaseNotPresentWithBlobOperation"),
            ("PUT", blob, lease, act("acquire", lease_duration="-1", proposed_lease_id=LEASE), b"", 201, ""),
            ("DELETE", blob, {}, {}, b"", 412, "LeaseIdMissing"),
            ("PUT", blob, lease, act("break", lease_break_period="0"), b"", 202, ""),
            ("DELETE", blob, {}, {"x-ms-delete-snapshots": "include"}, b"", 202, ""),
        ],
    )  # fmt: skip
    assert answers[5].headers["x-ms-lease-id"] == LEASE
    assert answers[14].body == state.replace(b'""', b'"host-1"', 1)
    assert answers[14].headers["x-ms-meta-owninghost"] == "host-1"
    assert answers[14].headers["x-ms-lease-state"] == "leased"
    assert answers[19].headers["x-ms-lease-time"] == "0"


def test_requests_of_the_functions_trigger(client: BlobClient, container: str) -> None:
    """Microsoft.Azure.WebJobs.Extensions.EventHubs 6 and Azure.Messaging.EventHubs.Processor 5: ownership and
    checkpoints as metadata, and the scale controller's list. Source: BlobCheckpointStoreInternal in
    azure-sdk-for-net; "List Blobs"."""
    own = "/ns.servicebus.windows.net/alpha/$default/ownership/0"
    checkpoint = "/ns.servicebus.windows.net/alpha/$default/checkpoint/0"
    query = {"restype": "container", "comp": "list", "prefix": own[1:-1], "include": "metadata"}
    answers = _replay(
        client,
        container,
        [
            ("GET", "", {"restype": "container"}, {}, b"", 200, ""),
            ("GET", "", query, {}, b"", 200, ""),
            ("PUT", own, {}, {**_NEW, "If-None-Match": "*", "x-ms-meta-ownerid": "one"}, b"", 201, ""),
            ("PUT", own, {}, {**_NEW, "If-None-Match": "*", "x-ms-meta-ownerid": "two"}, b"", 409,
             "BlobAlreadyExists"),
            ("PUT", own, {"comp": "metadata"}, {"If-Match": '"0x0"', "x-ms-meta-ownerid": "two"}, b"", 412,
             "ConditionNotMet"),
            ("HEAD", own, {}, {}, b"", 200, ""),
            ("PUT", own, {"comp": "metadata"}, {"If-Match": "{etag}", "x-ms-meta-ownerid": "two"}, b"", 200,
             ""),
            ("PUT", checkpoint, {"comp": "metadata"}, {"x-ms-meta-offset": "1"}, b"", 404, "BlobNotFound"),
            ("PUT", checkpoint, {},
             {**_NEW, "x-ms-meta-offset": "7", "x-ms-meta-sequencenumber": "7",
              "x-ms-meta-clientidentifier": "two"}, b"", 201, ""),
            ("HEAD", checkpoint, {}, {"If-None-Match": "{etag}"}, b"", 304, "ConditionNotMet"),
            ("GET", checkpoint, {"comp": "metadata"}, {}, b"", 200, ""),
            ("GET", "", query, {}, b"", 200, ""),
        ],
    )  # fmt: skip
    assert answers[10].headers["x-ms-meta-sequencenumber"] == "7"
    blobs = ElementTree.fromstring(answers[11].body).findall("Blobs/Blob")
    assert [each.findtext("Name") for each in blobs] == [own[1:]]
    assert blobs[0].findtext("Metadata/ownerid") == "two"
    assert f'"{blobs[0].findtext("Properties/Etag")}"' == answers[6].headers["etag"]


def test_names_metadata_and_content_come_back_as_they_were(client: BlobClient, container: str) -> None:
    """Whatever characters they have; names of metadata keep their case in lists; ranges are parts of it."""
    names = ["localhost:5672/a b/c&d/<e>", "é/漢字", "100%", "x?y#z", "a//b", "tail/"]
    for name in names:
        headers = {**_NEW, "x-ms-meta-OwnerId": "a<b>&c", "x-ms-meta-empty": "", "Content-Type": "text/plain"}
        assert client.ask("PUT", f"{container}/{name}", {}, headers, b"0123456789").status == 201
        answer = client.ask("GET", f"{container}/{name}", {}, {"x-ms-range": "bytes=2-4"})
        assert (answer.status, answer.body) == (206, b"234")
        assert answer.headers["content-range"] == "bytes 2-4/10"
        assert client.ask("GET", f"{container}/{name}", {}, {"Range": "bytes=10-"}).code == "InvalidRange"
        answer = client.ask("HEAD", f"{container}/{name}")
        assert (answer.headers["content-length"], answer.body) == ("10", b"")
        assert answer.headers["content-type"] == "text/plain"
    query = {"restype": "container", "comp": "list", "include": "metadata", "maxresults": "4"}
    listed: list[ElementTree.Element] = []
    while True:
        answer = client.ask("GET", container, query)
        document = ElementTree.fromstring(answer.body)
        listed += document.findall("Blobs/Blob")
        if not (marker := document.findtext("NextMarker")):
            break
        query["marker"] = marker
    assert [each.findtext("Name") for each in listed] == sorted(names)
    assert {each.findtext("Metadata/OwnerId") for each in listed} == {"a<b>&c"}


def test_an_account_has_one_list_at_a_time(
    service: HubService, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page takes some megabytes while it is made; other accounts do not wait for it."""
    begun, is_over = list[str](), threading.Event()

    def page(store: BlobStore, account_id: str, *_: object, **__: object) -> _Page:
        begun.append(account_id)
        return _Page(iter(lambda: "end" if is_over.is_set() else "name", "end"))

    monkeypatch.setattr(BlobStore, "page", page)
    monkeypatch.setattr(operations, "list_entry", lambda *_, **__: None)
    query = {"restype": "container", "comp": "list"}
    clients = [client_of(service)] * 3 + [client_of(service, "beta")]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.ask, "GET", container, query) for client in clients]
        try:
            service.call(partial(_until_all_wait, begun))
            assert len(set(begun)) == len(begun) == 2
        finally:
            is_over.set()
        assert [each.result().status for each in asked] == [200] * 4
    assert len(begun) == 4


def test_a_list_is_sent_in_pieces(
    client: BlobClient, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the loop: to join and encode 2 MB of XML took 6 ms."""
    sent: list[int] = []
    send = RequestResponseCycle.send

    async def noted(cycle: RequestResponseCycle, message: Any) -> None:
        sent.append(len(message.get("body", b"")))
        await send(cycle, message)

    for number in range(5):
        headers = {**_NEW, "x-ms-meta-text": "<" * 500}
        assert client.ask("PUT", f"{container}/é{number}", {}, headers).status == 201
    monkeypatch.setattr(RequestResponseCycle, "send", noted)
    monkeypatch.setattr(long_answers, "PIECE_BYTES", 1)
    query = {"restype": "container", "comp": "list", "include": "metadata"}
    answer = client.ask("GET", container, query)
    found = ElementTree.fromstring(answer.body).findall("Blobs/Blob")
    assert [each.findtext("Name") for each in found] == [f"é{number}" for number in range(5)]
    assert {each.findtext("Metadata/text") for each in found} == {"<" * 500}
    assert max(sent) < len(answer.body) / 2
    assert client.ask("HEAD", container, query).headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_list_ends_with_its_client(
    client: BlobClient, container: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Else those of clients that hang up would be made one after the other, and the others wait for them."""
    has_begun = threading.Event()
    monkeypatch.setattr(door, "TIMEOUT_S", 600.0)  # which would end the work of the client that is gone

    def page(*_: object, **__: object) -> _Page:
        is_first = not has_begun.is_set()
        has_begun.set()
        return _Page(repeat(None) if is_first else iter(()))

    def hang_up(_: HTTPConnection) -> None:
        assert has_begun.wait(60)
        raise ConnectionAbortedError

    monkeypatch.setattr(BlobStore, "page", page)
    monkeypatch.setattr(operations, "list_entry", lambda *_, **__: None)
    query = {"restype": "container", "comp": "list"}
    with monkeypatch.context() as patch:
        patch.setattr(HTTPConnection, "getresponse", hang_up)
        with pytest.raises(ConnectionAbortedError):
            client.ask(method, container, query)
    assert client.ask("GET", container, query).status == 200


class _Page:
    """A page, as what answers with it uses it."""

    following = None

    def __init__(self, entries: Iterator[object]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[object]:
        return self._entries


async def _until_all_wait(begun: list[str], server: TidegateServer) -> None:
    """Until four requests are being answered, and a list of each of two accounts has begun."""
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110 - nothing tells of requests
            len(set(begun)) < 2
            or sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks()) < 4
        ):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "body", "status", "code"),
    [
        ("PUT", "/b", {}, {"x-ms-blob-type": "PageBlob"}, b"", 400, "InvalidHeaderValue"),
        ("PUT", "/b", {}, {**_NEW, "x-ms-copy-source": "http://x"}, b"", 400, "UnsupportedHeader"),
        ("PUT", "/b", {}, {**_NEW, "x-ms-tags": "a=b"}, b"", 400, "UnsupportedHeader"),
        ("PUT", "/b", {}, {**_NEW, "x-ms-meta-a-b": "c"}, b"", 400, "InvalidMetadata"),
        ("PUT", "/b", {}, {**_NEW, "x-ms-meta-a": "x" * 8200}, b"", 400, "MetadataTooLarge"),
        ("PUT", "/b", {}, {**_NEW, "Content-MD5": "AAAA"}, b"x", 400, "Md5Mismatch"),
        ("PUT", "/b", {}, _NEW, bytes(65_537), 413, "RequestBodyTooLarge"),
        ("PUT", f"/{'b' * 1025}", {}, _NEW, b"", 400, "InvalidResourceName"),
        ("PUT", "/b", {"comp": "block", "blockid": "1"}, {}, b"", 405, "UnsupportedHttpVerb"),
        ("PUT", "/b", {"comp": "lease"}, {"x-ms-lease-action": "take"}, b"", 400, "InvalidHeaderValue"),
        ("GET", "/b", {"snapshot": "1"}, {}, b"", 400, "UnsupportedQueryParameter"),
        ("GET", "/b", {"versionid": "1"}, {}, b"", 400, "UnsupportedQueryParameter"),
        ("GET", "", {"restype": "container", "comp": "list", "maxresults": "0"}, {}, b"", 400,
         "InvalidQueryParameterValue"),
        ("GET", "", {"restype": "container", "comp": "list", "marker": "ÿ"}, {}, b"", 400,
         "InvalidQueryParameterValue"),
        ("PUT", "-X", {"restype": "container"}, {}, b"", 400, "InvalidResourceName"),
        ("PUT", "-x", {"restype": "container"}, {"x-ms-blob-public-access": "blob"}, b"", 400,
         "UnsupportedHeader"),
        ("PUT", "-absent/b", {}, _NEW, b"", 404, "ContainerNotFound"),
        ("POST", "/b", {}, {}, b"", 405, "UnsupportedHttpVerb"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_is_refused(
    client: BlobClient,
    container: str,
    method: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    status: int,
    code: str,
) -> None:
    """With Azure's error code, and a sentence in XML; nothing is done by halves."""
    answer = client.ask(method, container + path, query, headers, body)
    assert (answer.status, answer.code) == (status, code), answer
    error = ElementTree.fromstring(answer.body)
    assert error.findtext("Code") == code
    assert (error.findtext("Message") or "").endswith(".")
    listed = client.ask("GET", container, {"restype": "container", "comp": "list"})
    assert ElementTree.fromstring(listed.body).findall("Blobs/Blob") == []


def _is_open(client: BlobClient, container: str = "/none") -> bool:
    answer = client.ask("GET", container, {"restype": "container"})
    assert answer.code in ("ContainerNotFound", "AuthenticationFailed"), answer
    return answer.code != "AuthenticationFailed"


def test_keys_open_their_own_account(service: HubService) -> None:
    """Those of the namespace open every account, those of a hub its own alone; Listen is enough."""
    root = client_of(service, None)
    address = root.address
    for hub in ("alpha", "beta"):
        assert _is_open(BlobClient(address, account_name(hub), root.key))
        for policy in ("Listen", "Manage"):
            key = client_of(service, hub, policy).key
            assert _is_open(BlobClient(address, account_name(hub), key))
            assert _is_open(BlobClient(address, account_name(hub).upper(), key))
            for other in ("alpha", "beta", None):
                if other != hub:
                    assert not _is_open(BlobClient(address, account_name(other), key))
        assert not _is_open(client_of(service, hub, "Send"))
    assert _is_open(root)
    assert _is_open(client_of(service, "alpha", "plain"))
    gone = BlobClient(address, account_name("gone"), root.key)
    assert gone.ask("GET", "/x", {"restype": "container"}).code == "ResourceNotFound"


def test_a_container_is_deleted_with_manage_alone(service: HubService, container: str) -> None:
    """It holds the checkpoints of all groups. Both acts are in the audit trail."""
    listener, manager = client_of(service, "alpha", "Listen"), client_of(service)
    answer = listener.ask("DELETE", container, {"restype": "container"})
    assert (answer.status, answer.code) == (403, "AuthorizationPermissionMismatch")
    assert manager.ask("DELETE", container, {"restype": "container"}).status == 202
    newest = service.ask(lambda server: server.broker.audit.newest_first()[:2])
    assert [(each.action, each.target, each.policy, each.scope) for each in newest] == [
        ("deleteContainer", f"alpha.blob{container}", "Manage", "alpha"),
        ("createContainer", f"alpha.blob{container}", "Manage", "alpha"),
    ]


def test_a_regenerated_key_is_refused_at_once(service: HubService) -> None:
    """And the new one counts."""

    async def regenerate(server: TidegateServer) -> None:
        await server.broker.regenerate_key("beta", "Listen")

    old = client_of(service, "beta", "Listen")
    assert _is_open(old)
    service.call(regenerate)
    assert not _is_open(old)
    assert _is_open(client_of(service, "beta", "Listen"))


def test_wrong_keys_are_counted(service: HubService) -> None:
    """As those of all doors: see ``KeyGuard``."""

    def failures() -> int:
        return service.ask(lambda server: server.broker.key_guard.failures(Door.HTTP))

    before = failures()
    wrong = BlobClient(client_of(service).address, "alpha.blob", account_key("wrong"))
    assert not _is_open(wrong)
    assert failures() == before + 1


@pytest.mark.slow
def test_wrong_keys_of_one_hub_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one address: a program of alpha with an old key, and made-up names, block alpha and those.

    They are no further chances to guess the keys of the namespace, which open all accounts.
    """
    monkeypatch.setattr(attempts, "FREE_FAILURES", 5)  # whatever other tests of the run have set
    with HubService(is_http_used=True) as service:

        async def prepare(server: TidegateServer) -> None:
            for hub in ("alpha", "beta"):
                await server.broker.create_event_hub(hub, partition_count=1)
                await server.broker.create_policy(hub, "Manage", [Claim.MANAGE])
            guard, peer = server.broker.key_guard, Peer(Door.HTTP, "127.0.0.1")
            for name in ("alpha.blob", "gone.blob"):
                for _ in range(100):
                    guard._attempts.note(peer.address, name, now=guard._clock.monotonic())

        service.call(prepare)
        alpha = client_of(service)
        for account in ("alpha.blob", "Alpha.BLOB", "gone.blob"):
            answer = BlobClient(alpha.address, account, alpha.key).ask("GET", "/x", {"restype": "container"})
            assert (answer.status, answer.code) == (503, "ServerBusy")
        beta, root = client_of(service, "beta"), client_of(service, None)
        assert _is_open(beta)
        assert _is_open(root)
        for number in range(5):
            assert not _is_open(BlobClient(alpha.address, f"made-up-{number}.blob", account_key("wrong")))

        def note(server: TidegateServer) -> list[float]:
            guard = server.broker.key_guard
            return [
                guard._attempts.note("127.0.0.1", "blob", now=guard._clock.monotonic()) for _ in range(100)
            ]

        assert min(service.ask(note)) > 0.0
        for account in ("blob", "beta.blob", "another.blob"):
            answer = BlobClient(alpha.address, account, root.key).ask("GET", "/x", {"restype": "container"})
            assert (answer.status, answer.code) == (503, "ServerBusy")
        assert _is_open(beta)


def test_wrong_signatures_in_urls_hold_up_only_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of another site can have a visitor's browser send them: names of accounts it makes up, too."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 0)
    monkeypatch.setattr(attempts, "DELAY_S_FIRST", 60.0)
    monkeypatch.setattr(attempts, "DELAY_S_MAX", 60.0)
    monkeypatch.setattr(attempts, "WAITING_MAX", 3)
    with HubService(is_http_used=True) as service, ExitStack() as stack:
        service.call(lambda server: server.broker.create_event_hub("alpha", partition_count=1))
        root = client_of(service, None)
        hub_key = service.ask(lambda server: server.broker.policy(None, ROOT_POLICY_NAME)).key
        hub = BlobClient(root.address, "alpha.blob", account_key(hub_key))
        right = _service_sas(hub, "/x")
        assert hub.send("GET", "/alpha.blob/x/b", right).status == 404
        host, _, port = root.address.rpartition(":")
        wrong = urlencode({**right, "sig": "AAAA"})
        for number in range(10):
            page = stack.enter_context(create_connection((host, int(port))))
            account = "alpha.blob" if number < 3 else f"a{number}.blob"
            page.sendall(f"GET /{account}/x/b?{wrong} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            while service.ask(lambda server: server.broker.key_guard.failures(Door.HTTP)) <= number:
                time.sleep(0.01)
        assert hub.send("GET", "/alpha.blob/x/b", right).status == 503
        assert _is_open(root)
        assert _is_open(hub)
        assert not service.ask(lambda server: len(server.broker.key_guard._attempts))
        service.stop()


def test_the_development_account_does_not_fill_the_audit_trail(service: HubService) -> None:
    """Its key is public: whoever has it could displace the records of all hubs' policies."""
    development = BlobClient(client_of(service).address, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)
    before = service.ask(lambda server: server.broker.audit.newest_first()[:1])
    path = f"/test-{next(_numbers)}"
    assert development.ask("PUT", path, {"restype": "container"}).status == 201
    assert development.ask("DELETE", path, {"restype": "container"}).status == 202
    assert service.ask(lambda server: server.broker.audit.newest_first()[:1]) == before


async def test_a_signature_that_expires_while_its_request_waits_is_refused(clock: SetClock) -> None:
    """As a key that is revoked meanwhile: while its body is to come (see ``BlobDoor``), or behind others."""
    broker = await Broker.open(MemoryEngine(Memory()), clock=clock)
    access = BlobAccess(broker, clock, proxies=TrustedProxies.parse([]), development=DevelopmentAccount.OFF)
    key = broker.policy(None, ROOT_POLICY_NAME).key
    client = BlobClient("", "blob", account_key(key))
    expires_at = clock.now_utc() + timedelta(seconds=30)
    sas = _service_sas(client, "/c", sp="w", se=expires_at.isoformat())
    raw_query = urlencode(sas, quote_via=quote)
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "PUT",
        "path": "/blob/c/b",
        "headers": [],
        "client": ("192.0.2.1", 1),
    }
    given = access.require(Request(scope), BlobRequest.parse("PUT", "/blob/c/b", raw_query, []))
    access.require_still(given)
    clock.advance(31)
    with pytest.raises(BlobRefusedError, match="has expired"):
        access.require_still(given)
    with acting_as(given.actor), pytest.raises(UnauthorizedError):
        broker.check_actor()
    await broker.close()


def test_a_blob_is_no_page_of_the_console(client: BlobClient, container: str) -> None:
    """They have one origin: what a sender stores must not run there, nor what an error repeats."""
    html = {"x-ms-blob-type": "BlockBlob", "x-ms-blob-content-type": "text/html"}
    client.ask("PUT", f"{container}/x.html", headers=html, body=b"<script>1</script>")
    for path in (f"{container}/x.html", f"{container}/none"):
        answer = client.ask("GET", path)
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"] == "attachment"


@pytest.mark.slow
def test_without_a_signature_nothing_is_said(service: HubService) -> None:
    """The same answer for every path, method and account, whether there is such a hub or not."""
    client = client_of(service)
    seen = set()
    for account in ("blob", "alpha.blob", "gone.blob", "devstoreaccount1"):
        for path in (
            "",
            "/",
            "/c",
            "/c/b",
            "/c?restype=container",
            "/c/b?comp=lease",
            "/%ff",
            "/c/%0a?x=%00",
        ):
            for method in ("GET", "PUT", "DELETE", "POST", "OPTIONS", "PATCH"):
                answer = client.send(method, f"/{account}{path}", headers={"x-ms-date": "x"})
                seen.add((answer.status, answer.code, answer.body.split(b"</Message>")[0][-90:]))
    assert {(status, code) for status, code, _ in seen} == {(403, "AuthenticationFailed")}
    assert len(seen) <= 3, seen


@pytest.mark.parametrize("minutes", [-16, 16])
def test_an_old_request_is_not_taken_again(client: BlobClient, minutes: int) -> None:
    """A request that was overheard is good for a quarter of an hour."""
    now = datetime.now(UTC)  # noqa: TID251 - the service has the real clock
    query = {"restype": "container"}
    answer = client.ask("GET", "/none", query, now=now + timedelta(minutes=minutes))
    assert (answer.status, answer.code) == (403, "AuthenticationFailed")
    assert b"15 minutes" in answer.body
    near = client.ask("GET", "/none", query, now=now + timedelta(minutes=minutes // 8))
    assert near.code == "ContainerNotFound"


def test_a_date_without_a_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was overheard, with "-0000" (RFC 5322), is not good later where the clocks are ahead."""
    headers = [("authorization", "SharedKey alpha:AAAA"), ("x-ms-date", "Mon, 30 Nov 2026 08:00:00 -0000")]
    request = BlobRequest.parse("GET", "/alpha/c", "", headers)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        now = datetime(2026, 11, 30, 8, 10, tzinfo=UTC)
        assert signed_by(request, now=now, is_https=False).rights is None
        with pytest.raises(BlobRefusedError):
            signed_by(request, now=now - timedelta(hours=9), is_https=False)
    finally:
        monkeypatch.undo()
        time.tzset()


def _service_sas(client: BlobClient, container: str, blob: str = "", **given: str) -> dict[str, str]:
    """A service SAS as "Create a service SAS" has it, for a container or one blob."""
    values = {
        "sp": "rl",
        "se": "2100-01-01T00:00:00Z",
        "sv": "2021-12-02",
        "sr": "b" if blob else "c",
        **given,
    }
    resource = f"/blob/{client.account}{container}{blob}"
    lines = [values["sp"], values.get("st", ""), values["se"], resource]
    lines += [values.get(name, "") for name in ("si", "sip", "spr", "sv", "sr")]
    values["sig"] = client.sign([*lines, "", "", "", "", "", "", ""])
    return values


def test_service_signatures_give_what_they_say(client: BlobClient, container: str) -> None:
    """Permissions, on one container or one blob, until they expire."""
    path = f"/{client.account}{container}"
    assert client.ask("PUT", f"{container}/b", {}, _NEW, b"x").status == 201

    def status(method: str, below: str, sas: Mapping[str, str], **query: str) -> int:
        return client.send(method, path + below, {**sas, **query}, _NEW | {"content-length": "0"}).status

    read = _service_sas(client, container)
    listing = {"restype": "container", "comp": "list"}
    assert (status("GET", "/b", read), status("GET", "", read, **listing)) == (200, 200)
    assert (status("PUT", "/b", read), status("DELETE", "/b", read)) == (403, 403)
    assert status("GET", "", read, restype="container") == 403
    create = _service_sas(client, container, sp="c")
    assert (status("PUT", "/new", create), status("PUT", "/new", create), status("GET", "/new", create)) == (
        201,
        403,
        403,
    )
    assert status("PUT", "", create, restype="container") == 403
    one = _service_sas(client, container, "/b", sp="rwdl")
    assert (status("GET", "/b", one), status("PUT", "/b", one), status("GET", "/new", one)) == (200, 201, 403)
    assert status("GET", "", one, **listing) == 403
    for wrong in (
        {**read, "sp": "rwdl"},
        {**read, "se": "2101-01-01T00:00:00Z"},
        {**read, "sr": "b"},
        _service_sas(client, container, se="2020-01-01"),
        _service_sas(client, container, st="2099-01-01"),
        _service_sas(client, container, spr="https"),
        _service_sas(client, container, sip="127.0.0.1"),
        _service_sas(client, container, si="stored"),
        _service_sas(client, container, sv="2015-04-05"),
        _service_sas(client, container, skoid="x"),
        _service_sas(client, "/other"),
        {**read, "sp": "r\nl"},
    ):
        assert status("GET", "/b", wrong) == 403, wrong
    assert status("GET", "/b", _service_sas(client, container, spr="https,http")) == 200


@pytest.mark.parametrize(
    ("spelled", "account", "hub"), [("ALPHA.Blob", "alpha.blob", "alpha"), ("blob", "blob", "$blob")]
)
def test_a_signature_for_an_account_is_recorded_as_for_that(
    service: HubService, spelled: str, account: str, hub: str
) -> None:
    """Also if a key of the namespace made it: else its holder, by ever new containers, could displace the
    namespace's records of changes. The account is spelled as the service does."""
    root = client_of(service, None)
    signer = BlobClient(root.address, spelled, root.key)
    values = {"sp": "cd", "ss": "b", "srt": "c", "se": "2100-01-01T00:00Z", "sv": "2021-12-02"}
    names = ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv")
    sas = values | {"sig": signer.sign([signer.account, *(values.get(name, "") for name in names), "", ""])}
    path = f"/test-{next(_numbers)}"
    query = {**sas, "restype": "container"}
    assert signer.send("PUT", f"/{signer.account}{path}", query, {"content-length": "0"}).status == 201
    newest = service.ask(lambda server: server.broker.audit.newest_first()[0])
    assert (newest.target, newest.policy) == (f"{account}{path}", "RootManageSharedAccessKey")
    assert (newest.scope, newest.hub) == ("", hub)


def test_account_signatures_give_what_they_say(client: BlobClient, container: str) -> None:
    """For kinds of resources, in the whole account."""

    def sas(**given: str) -> dict[str, str]:
        values = {
            "sp": "rwdlc",
            "ss": "b",
            "srt": "sco",
            "se": "2100-01-01T00:00Z",
            "sv": "2021-12-02",
            **given,
        }
        names = ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv")
        lines = [client.account, *(values.get(name, "") for name in names), "", ""]
        return values | {"sig": client.sign(lines)}

    def status(method: str, path: str, values: Mapping[str, str], **query: str) -> int:
        headers = _NEW | {"content-length": "0"}
        return client.send(method, f"/{client.account}{path}", {**values, **query}, headers).status

    other = f"/test-{next(_numbers)}"
    every = sas()
    assert status("PUT", other, every, restype="container") == 201
    assert status("PUT", f"{container}/b", every) == 201
    assert status("GET", other, sas(srt="o"), restype="container") == 403
    assert status("GET", f"{container}/b", sas(srt="c")) == 403
    assert status("GET", f"{container}/b", sas(sp="w")) == 403
    assert status("GET", f"{container}/b", sas(ss="q")) == 403
    assert status("GET", f"{container}/b", every | {"srt": "o"}) == 403


def test_the_log_and_the_answers_hold_no_key(
    client: BlobClient, container: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of accounts nor of signatures, also of refused requests."""
    sas = _service_sas(client, container, sp="r")
    with caplog.at_level("DEBUG"):
        answer = client.send("PUT", f"/{client.account}{container}/b", sas, {"content-length": "0"})
        client.ask("GET", "/absent/b")
    assert answer.status == 403
    for secret in (client.key, sas["sig"]):
        assert secret not in caplog.text + answer.body.decode()


def test_checkpoints_survive_a_restart(tmp_path: Path) -> None:
    """They are in the data directory, and the public key of the development account opens it again."""
    from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

    for is_first in (True, False):
        with HubService(tmp_path, is_http_used=True) as service:
            assert service.ready.http is not None
            client = BlobClient(service.ready.http, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)
            status = client.ask("PUT", "/store", {"restype": "container"}).status
            assert status == (201 if is_first else 409)
            if is_first:
                headers = {**_NEW, "x-ms-meta-offset": "5"}
                assert client.ask("PUT", "/store/a/b", {}, headers).status == 201
            assert client.ask("HEAD", "/store/a/b").headers["x-ms-meta-offset"] == "5"
