"""Rights that end while an answer is made: it is not given, whatever it waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.access.support import RawHttp, token_for
from tests.gateway.blob_client import BlobClient

from tidegate.broker import Broker, Claim
from tidegate.broker.blobs.accounts import account_key, account_name
from tidegate.broker.blobs.blob import NO_CONDITIONS
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.sliced_work import SlicedWork


@pytest.fixture(scope="module")
def service() -> Iterator[HubService]:
    """The hub ``hub``, with a checkpoint in its account."""
    with HubService(is_http_used=True) as service:

        async def prepare(server: TidegateServer) -> None:
            broker = server.broker
            account_id = (await broker.create_event_hub("hub", partition_count=1)).description.hub_id
            await broker.blobs.create_container(account_id, "store", {})
            name = "ns/hub/$default/checkpoint/0"
            await broker.blobs.put(
                account_id, "store", name, NO_CONDITIONS, lease_id=None, content=b"", metadata={"offset": "1"}
            )

        service.call(prepare)
        yield service


@pytest.fixture
def key(service: HubService) -> Iterator[str]:
    """Of the namespace's policy ``reader``, which is deleted while a list is made."""

    async def create(server: TidegateServer) -> tuple[Broker, str]:
        return server.broker, (await server.broker.create_policy(None, "reader", [Claim.MANAGE])).key

    broker, key = service.call(create)
    collect = SlicedWork.collect

    async def delete(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        made = await collect(self, items, address=address)
        await broker.delete_policy(None, "reader")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlicedWork, "collect", delete)
        yield key


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/event-hubs/hub/partitions",
        "/api/v1/event-hubs/hub/consumers",
        "/hub/consumergroups/$Default/partitions",
        "/metrics",
    ],
)
def test_no_list_is_given_without_its_right(service: HubService, key: str, path: str) -> None:
    """Hundreds of lists of one policy wait for each other: the last ones were read, and given, 4 to 23
    seconds after the policy had been deleted."""
    # The header is of a proxy: this machine needs no token for metrics.
    headers = [("Host", "h"), ("Authorization", token_for("sb://h/", "reader", key)), ("Via", "1.1 proxy")]
    assert service.ready.http is not None
    with RawHttp(service.ready.http) as http:
        status, answer = http.ask("GET", path, headers)
    assert (status, b"its policy was deleted" in answer) == (401, True)


def test_no_blobs_are_listed_without_their_right(service: HubService, key: str) -> None:
    """As above; a Listen key is enough for them."""
    assert service.ready.http is not None
    client = BlobClient(service.ready.http, account_name("hub"), account_key(key))
    answer = client.ask("GET", "/store", {"restype": "container", "comp": "list"})
    assert (answer.status, answer.code) == (403, "AuthenticationFailed")
