"""What the tests of consumers and dead letters share: events in the log, policies, jobs that end."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from tests.console.support import Answer, PlainBrowser
from tests.gateway.blob_client import BlobClient
from tests.support.blob_storage import OwnStorage

from tidegate.broker import Claim
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event

DEADLINE_S = 90.0


def append(service: HubService, hub: str, bodies: Sequence[bytes], *, partition_id: str = "0") -> int:
    """Put events into a partition as one batch; returns the first one's sequence number."""
    sections = [wrap_event(encode_event(EventData(body))) for body in bodies]

    async def append_all(server: TidegateServer) -> int:
        partition = server.broker.event_hub(hub).partition(partition_id)
        result = await partition.append(b"".join(sections), [len(each) for each in sections])
        return result.start_sequence_number

    return service.call(append_all)


def recreate_hub(service: HubService, hub: str) -> None:
    """Delete a hub and create one of the same name, as for another tenant."""

    async def recreate(server: TidegateServer) -> None:
        partition_count = len(server.broker.event_hub(hub).partitions)
        await server.broker.delete_event_hub(hub)
        await server.broker.create_event_hub(hub, partition_count=partition_count)

    service.call(recreate)


def signed_in(service: HubService, hub: str | None, *claims: Claim) -> PlainBrowser:
    """A browser that has signed in with a new policy of the namespace (None) or of a hub."""
    name = f"policy-{time.monotonic_ns()}"

    async def create(server: TidegateServer) -> str:
        key = (await server.broker.create_policy(hub, name, claims)).key
        assert key is not None
        return key

    key = service.call(create)
    assert service.ready.console is not None
    browser = PlainBrowser(service.ready.console)
    assert browser.post("/console/sign-in", {"policy": name, "key": key, "hub": hub or ""}).status == 303
    assert "form_token" in browser.get("/consumers").text  # its forms have another token than before
    return browser


def ended_job(browser: PlainBrowser, answer: Answer) -> str:
    """The page of the job that a form has started, once the job has ended."""
    assert answer.status == 303, (answer.status, answer.text)
    address = answer.headers["location"]
    assert re.fullmatch(r"/console/jobs/[0-9a-f]+", address)
    deadline = time.monotonic() + DEADLINE_S
    while 'class="state ">running' in (page := browser.get(address).text):
        assert time.monotonic() < deadline, page
        time.sleep(0.05)
    return page


def hidden_fields(page: str) -> dict[str, str]:
    """What the hidden fields of a page hold, but for the form's token."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page)
    return {name: value for name, value in found if name != "form_token"}


def text_of(page: str) -> str:
    """A page's words in one line, without its tags."""
    content = page[page.index("<main") :]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", content))


def keep_official_group(service: HubService, hub: str) -> BlobClient:
    """An official processor's claim and checkpoint of partition 0, of the new group ``official``, in the
    service's own account; returns a client of that, to delete its container ``consumers``."""

    async def create_group(server: TidegateServer) -> None:
        await server.broker.event_hub(hub).create_consumer_group("official")

    service.call(create_group)
    storage = OwnStorage(service)
    client = BlobClient(f"{storage.host}:{storage.port}", storage.account_name, storage.account_key)
    assert client.ask("PUT", "/consumers", {"restype": "container"}).status == 201
    for kind, metadata in (("ownership", {"ownerid": "official-1"}), ("checkpoint", {"sequencenumber": "3"})):
        headers = {f"x-ms-meta-{name}": value for name, value in metadata.items()}
        path = f"/consumers/localhost/{hub}/official/{kind}/0"
        assert client.ask("PUT", path, {}, headers | {"x-ms-blob-type": "BlockBlob"}).status == 201
    return client
