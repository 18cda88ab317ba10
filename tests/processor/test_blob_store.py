"""The blob store on Azurite: the suite of all stores, and the layout of official processors."""

from __future__ import annotations

import re
import traceback
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob import ContainerClient, ContainerSasPermissions, generate_container_sas
from azure.storage.blob.aio import ContainerClient as AsyncContainerClient
from tests.support.blob_storage import BlobStorage

from tidegate.model.errors import ClosedError, InvalidArgumentError, StoreError, StoreUnavailableError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey
from tidegate.processor.store import ProcessorStore
from tidegate.processor.stores.blob import BlobStore
from tidegate.testing.leases import acquire
from tidegate.testing.proxy import CuttingProxy
from tidegate.testing.stores import ProcessorStoreConformance
from tidegate.transport.clock import SystemClock

GROUP = GroupKey("Name.servicebus.windows.net", "Flights", "$Default")
OFFICIAL = ("Name.servicebus.windows.net", "Flights", "$Default")
"""The same group as an official processor was given it."""
PREFIX = "name.servicebus.windows.net/flights/$default"


@pytest.fixture
def container(blob_storage: BlobStorage) -> str:
    """The name of an empty container."""
    return blob_storage.create_container()


@pytest.fixture
async def store(blob_storage: BlobStorage, container: str) -> AsyncIterator[BlobStore]:
    """Our store in the container."""
    store = BlobStore.from_connection_string(blob_storage.connection_string(), container)
    yield store
    await store.close()


@pytest.fixture
async def official(blob_storage: BlobStorage, container: str) -> AsyncIterator[BlobCheckpointStore]:
    """The official Python processor's store in the same container."""
    async with BlobCheckpointStore.from_connection_string(
        blob_storage.connection_string(), container
    ) as store:
        yield store


async def test_hosts_agree_on_the_name_of_a_namespace(blob_storage: BlobStorage, container: str) -> None:
    """By whatever names hosts reach a service, they use one: that of the first, with its port, as the
    official Python package names it; a later service on that address has names of its own."""
    stores = [BlobStore.from_connection_string(blob_storage.connection_string(), container) for _ in range(3)]
    by_port = GroupKey("0123abcd", "Flights", "$Default", "localhost:5672")
    by_name = GroupKey("0123abcd", "Flights", "$Default", "127.0.0.1:5671")
    lease = await acquire(stores[0], by_port, "0", "host-a")
    assert dict((await stores[1].list_leases(by_name)).leases) == {"0": lease}
    async with AsyncContainerClient.from_connection_string(
        blob_storage.connection_string(), container
    ) as client:
        names = [blob.name async for blob in client.list_blobs()]
    assert names == [
        "localhost:5672/flights/$default/ownership/0",
        "tidegate.names/0123abcd/flights/$default",
    ]
    other = GroupKey("4567cdef", "Flights", "$Default", "127.0.0.1:5671")
    assert not (await stores[2].list_leases(other)).leases
    for store in stores:
        await store.close()


async def test_an_agreement_without_a_name_is_named(blob_storage: BlobStorage, container: str) -> None:
    """Others may write into the container as well: the blob at fault, and what to do with it."""
    place = "tidegate.names/0123abcd/flights/$default"
    async with AsyncContainerClient.from_connection_string(
        blob_storage.connection_string(), container
    ) as client:
        await client.upload_blob(place, b"")
    store = BlobStore.from_connection_string(blob_storage.connection_string(), container)
    with pytest.raises(StoreError, match=re.escape(f"The blob {place}")):
        await store.list_leases(GroupKey("0123abcd", "Flights", "$Default", "localhost:5672"))
    await store.close()


@pytest.mark.parametrize("name", ["localhost:5672", "localhost", "localhost:35481", "127.0.0.1:9"])
@pytest.mark.slow
async def test_the_name_that_official_processors_use_is_found(
    blob_storage: BlobStorage, container: str, official: BlobCheckpointStore, name: str
) -> None:
    """With any port, as Python and Go, or without, as JavaScript: who came first decides."""
    claim = official_claim("0", "theirs") | {"fully_qualified_namespace": name}
    assert len(list(await official.claim_ownership([claim]))) == 1
    store = BlobStore.from_connection_string(blob_storage.connection_string(), container)
    group = GroupKey("0123abcd", "Flights", "$Default", "LocalHost:5672")
    assert [lease.owner for lease in (await store.list_leases(group)).leases.values()] == ["theirs"]
    await acquire(store, group, "1", "ours")
    names = (name, *OFFICIAL[1:])
    assert {each["owner_id"] for each in await official.list_ownership(*names)} == {"theirs", "ours"}
    await store.close()


async def test_official_processors_that_come_later_under_another_name_are_warned_of(
    blob_storage: BlobStorage,
    container: str,
    official: BlobCheckpointStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They cannot find the hosts' blobs, so each side would process everything; the next start says it."""
    group = GroupKey("0123abcd", "Flights", "$Default", "localhost:5672")
    for name in ("localhost:5672", "localhost:5671"):
        store = BlobStore.from_connection_string(blob_storage.connection_string(), container)
        await acquire(store, group, name[-1], "ours")
        await store.close()
        assert not caplog.records
        claim = official_claim("0", "theirs") | {"fully_qualified_namespace": name}
        assert len(list(await official.claim_ownership([claim]))) == 1
    store = BlobStore.from_connection_string(blob_storage.connection_string(), container)
    owners = [lease.owner for lease in (await store.list_leases(group)).leases.values()]
    assert sorted(owners) == ["ours", "ours", "theirs"]
    (record,) = caplog.records
    assert "under the name localhost:5671" in record.getMessage()
    await store.close()


class TestBlobStore(ProcessorStoreConformance):
    """All that a host relies on, without epochs."""

    walk_steps = 80
    has_checkpoint_epochs = False

    @pytest.fixture(autouse=True)
    def _place(self, blob_storage: BlobStorage, container: str) -> None:
        self.place = (blob_storage.connection_string(), container)

    async def make_store(self) -> ProcessorStore:
        """A store with connections of its own."""
        return BlobStore.from_connection_string(*self.place)


def official_claim(partition_id: str, owner: str, etag: str | None = None) -> dict[str, Any]:
    """An ownership as an official processor asks for it."""
    names = dict(zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), OFFICIAL, strict=True))
    return {**names, "partition_id": partition_id, "owner_id": owner, "etag": etag}


async def test_blobs_are_named_and_marked_as_the_official_ones(
    blob_storage: BlobStorage, container: str, store: BlobStore, official: BlobCheckpointStore
) -> None:
    """Byte for byte the names and metadata that the official store writes for the same group; a lease has one
    name more, by which our hosts know that its owner hands it over when asked."""
    await acquire(store, GROUP, "0", "Host-A")
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 41, "4100", 1, 2), lease=None)
    await official.claim_ownership([official_claim("1", "Host-A")])
    names = official_claim("1", "")
    await official.update_checkpoint({**names, "offset": "4100", "sequence_number": 41})
    with ContainerClient.from_connection_string(blob_storage.connection_string(), container) as client:
        blobs = {
            blob.name: (blob.metadata, blob.size, blob.blob_type)
            for blob in client.list_blobs(include=["metadata"])
        }
    assert sorted(blobs) == [
        f"{PREFIX}/{kind}/{partition}" for kind in ("checkpoint", "ownership") for partition in "01"
    ]
    ours = blobs[f"{PREFIX}/ownership/0"][0]
    assert not ours.pop("requestedby")
    for kind in ("checkpoint", "ownership"):
        assert blobs[f"{PREFIX}/{kind}/0"] == blobs[f"{PREFIX}/{kind}/1"]


async def test_official_processors_are_not_asked(
    blob_storage: BlobStorage, container: str, store: BlobStore, official: BlobCheckpointStore
) -> None:
    """They know no requests, as is seen in what they write even over a lease of ours; and a request of ours
    does not keep them from stealing."""
    lease = await acquire(store, GROUP, "0", "ours")
    await store.request(GROUP, lease, "another of ours")
    (seen,) = await official.list_ownership(*OFFICIAL)
    assert (seen["owner_id"], seen["etag"].strip('"')) == ("ours", lease.version)
    assert list(await official.claim_ownership([dict(seen, owner_id="theirs")]))
    theirs = (await store.list_leases(GROUP)).leases["0"]
    assert (theirs.owner, theirs.requested_by) == ("theirs", None)
    await store.request(GROUP, theirs, "ours")
    assert (await store.list_leases(GROUP)).leases["0"] == theirs
    back = await acquire(store, GROUP, "0", "ours", expected=theirs)
    assert (await store.list_leases(GROUP)).leases["0"] == back


async def test_official_processors_read_what_we_write(
    store: BlobStore, official: BlobCheckpointStore
) -> None:
    """Owner, ETag, time and position; a released lease is free to them."""
    leases = [await acquire(store, GROUP, partition, "host-a") for partition in "01"]
    await store.release(GROUP, leases[1:])
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("1", 41, "4100"), lease=leases[1])
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", -1), lease=leases[0])
    owned = {one["partition_id"]: one for one in await official.list_ownership(*OFFICIAL)}
    assert (owned["0"]["owner_id"], owned["0"]["last_modified_time"]) == (
        "host-a",
        leases[0].renewed_at.timestamp(),
    )
    assert not owned["1"]["owner_id"]
    checkpoints = {one["partition_id"]: one for one in await official.list_checkpoints(*OFFICIAL)}
    assert {one: (each["offset"], each["sequence_number"]) for one, each in checkpoints.items()} == {
        "0": ("-1", -1),
        "1": ("4100", 41),
    }
    won = list(
        await official.claim_ownership([dict(owned["0"], owner_id="b"), dict(owned["1"], owner_id="b")])
    )
    assert sorted(one["partition_id"] for one in won) == ["0", "1"]
    assert dict(await store.renew(GROUP, leases)) == {}


async def test_we_read_what_official_processors_write(
    store: BlobStore, official: BlobCheckpointStore
) -> None:
    """Their leases can be stolen by us, and not with a stale version; their checkpoints are ours to go on."""
    won = list(await official.claim_ownership([official_claim("0", "theirs"), official_claim("1", "theirs")]))
    seen = (await store.list_leases(GROUP)).leases
    assert {lease.owner for lease in seen.values()} == {"theirs"}
    renewed = list(await official.claim_ownership([dict(one) for one in won[:1]]))
    assert await store.acquire(GROUP, "0", "ours", expected=seen["0"]) is None
    ours = await acquire(store, GROUP, "1", "ours", expected=seen["1"])
    assert not list(await official.claim_ownership([dict(won[1])]))
    await official.claim_ownership([dict(renewed[0], owner_id="")])
    snapshot = await store.list_leases(GROUP)
    assert snapshot.leases["0"].is_expired(snapshot.now, 3600)
    assert snapshot.leases["1"] == ours
    await official.update_checkpoint({**official_claim("0", ""), "offset": "900", "sequence_number": 9})
    assert dict(await store.list_checkpoints(GROUP)) == {"0": ProcessorCheckpoint("0", 9, "900")}


async def test_a_checkpoint_that_an_official_processor_moved_is_seen(
    store: BlobStore, official: BlobCheckpointStore
) -> None:
    """What we wrote last is not taken for what is there: ours moves forward from theirs, back or forth."""
    names = official_claim("0", "")
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5, "500"), lease=None)
    await official.update_checkpoint({**names, "offset": "900", "sequence_number": 9})
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 7, "700"), lease=None)
    assert (await store.list_checkpoints(GROUP))["0"].sequence_number == 9
    await official.update_checkpoint({**names, "offset": "100", "sequence_number": 1})
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 3, "300"), lease=None)
    assert (await store.list_checkpoints(GROUP))["0"].sequence_number == 3


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"offset": "900"}, ProcessorCheckpoint("0", None, "900")),
        ({"offset": "", "sequencenumber": "9"}, ProcessorCheckpoint("0", 9)),
        (
            {"Offset": "9:1:x", "SequenceNumber": "9", "clientidentifier": "n"},
            ProcessorCheckpoint("0", 9, "9:1:x"),
        ),
    ],
)
async def test_checkpoints_of_other_languages_are_read(
    blob_storage: BlobStorage,
    container: str,
    store: BlobStore,
    metadata: dict[str, str],
    expected: ProcessorCheckpoint,
) -> None:
    """.NET may leave out a position, and adds the name of its client."""
    async with AsyncContainerClient.from_connection_string(
        blob_storage.connection_string(), container
    ) as client:
        await client.upload_blob(f"{PREFIX}/checkpoint/0", b"", metadata=metadata)
    assert dict(await store.list_checkpoints(GROUP)) == {"0": expected}


@pytest.mark.parametrize("metadata", [{}, {"offset": "9", "sequencenumber": "nine"}, {"offset": ""}])
async def test_a_blob_without_position_is_named(
    blob_storage: BlobStorage, container: str, store: BlobStore, metadata: dict[str, str]
) -> None:
    """A garbled checkpoint is never taken for none: its partition would start over without a word."""
    async with AsyncContainerClient.from_connection_string(
        blob_storage.connection_string(), container
    ) as client:
        await client.upload_blob(f"{PREFIX}/checkpoint/0", b"", metadata=metadata)
    with pytest.raises(StoreError, match=r"checkpoint/0 in the blob container .* holds no checkpoint"):
        await store.list_checkpoints(GROUP)
    with pytest.raises(StoreError, match="holds no checkpoint"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5, "5"), lease=None)


@pytest.mark.parametrize("checkpoint", [ProcessorCheckpoint("0", 5), ProcessorCheckpoint("0", None, "5")])
async def test_half_a_position_is_refused(store: BlobStore, checkpoint: ProcessorCheckpoint) -> None:
    """The official Python processor fails on a checkpoint that lacks one of the two."""
    with pytest.raises(InvalidArgumentError, match="needs an offset and a sequence number"):
        await store.update_checkpoint(GROUP, checkpoint, lease=None)


async def test_the_namespace_may_be_spelled_as_theirs(
    blob_storage: BlobStorage, container: str, official: BlobCheckpointStore
) -> None:
    """The official Python package has a local service's port in the name; a store can be told."""
    claim = official_claim("0", "theirs") | {"fully_qualified_namespace": "localhost:5672"}
    await official.claim_ownership([claim])
    store = BlobStore.from_connection_string(
        blob_storage.connection_string(), container, fully_qualified_namespace="localhost:5672"
    )
    leases = (await store.list_leases(GroupKey("localhost", *OFFICIAL[1:]))).leases
    assert [lease.owner for lease in leases.values()] == ["theirs"]
    await store.close()


async def test_a_container_that_is_missing_is_named(blob_storage: BlobStorage) -> None:
    """For each operation: the error says to create it, and no lease is taken for free."""
    store = BlobStore.from_connection_string(blob_storage.connection_string(), "missing-one")
    with pytest.raises(StoreError, match=f"no blob container missing-one in {blob_storage.account_name}"):
        await store.list_leases(GROUP)
    with pytest.raises(StoreError, match="Create it"):
        await store.acquire(GROUP, "0", "host-a", expected=None)
    with pytest.raises(StoreError, match="Create it"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5, "5"), lease=None)
    await store.close()


async def test_a_wrong_key_is_refused_for_good(blob_storage: BlobStorage, container: str) -> None:
    """Not worth a retry, and the message does not hold the key."""
    key = "d3Jvbmc="
    wrong = blob_storage.connection_string().replace(blob_storage.account_key, key)
    store = BlobStore.from_connection_string(wrong, container)
    with pytest.raises(StoreError, match="403") as caught:
        await store.list_leases(GROUP)
    assert not caught.value.is_transient
    assert key not in str(caught.value)
    await store.close()


async def test_a_service_that_does_not_answer_is_worth_a_retry(
    blob_storage: BlobStorage, container: str
) -> None:
    """A lost line is a StoreUnavailableError; when it is back, so is the store."""
    async with CuttingProxy("127.0.0.1", blob_storage.port, cut_after_bytes=(10, 10)) as proxy:
        client = AsyncContainerClient.from_connection_string(
            blob_storage.connection_string(port=proxy.port), container, retry_total=0
        )
        store = BlobStore(client)
        with pytest.raises(StoreUnavailableError) as caught:
            await store.list_leases(GROUP)
        assert caught.value.is_transient
        await store.close()
        await client.close()


async def test_a_container_url_with_a_signature_is_enough(blob_storage: BlobStorage, container: str) -> None:
    """A host needs no account key: a URL that is good for one container, for a while."""
    account, key = blob_storage.account_name, blob_storage.account_key
    signature = generate_container_sas(
        account,
        container,
        account_key=key,
        permission=ContainerSasPermissions(read=True, write=True, list=True, create=True),
        expiry=SystemClock().now_utc() + timedelta(minutes=10),
    )
    url = f"http://127.0.0.1:{blob_storage.port}/{account}/{container}?{signature}"
    store = BlobStore.from_container_url(url)
    lease = await acquire(store, GROUP, "0", "host-a")
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5, "5"), lease=lease)
    assert dict((await store.list_leases(GROUP)).leases) == {"0": lease}
    assert signature not in repr(store)
    await store.close()


def test_a_container_url_that_is_wrong_is_not_told() -> None:
    """A signature is as good as a key: neither the error nor what is behind it shows it."""
    url = "https:///checkpoints?sv=2024&sig=SECRET"
    with pytest.raises(InvalidArgumentError) as caught:
        BlobStore.from_container_url(url)
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


async def test_a_closed_store_says_so(store: BlobStore) -> None:
    """Using it afterwards is the caller's mistake, and told as that."""
    lease = await acquire(store, GROUP, "0", "host-a")
    await store.close()
    with pytest.raises(ClosedError):
        await store.list_leases(GROUP)
    with pytest.raises(ClosedError):
        await store.renew(GROUP, [lease])
    with pytest.raises(ClosedError):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5, "5"), lease=None)


async def test_odd_connection_strings_are_refused() -> None:
    """A typing error is the caller's, at once."""
    with pytest.raises(InvalidArgumentError, match="Invalid connection string of a storage account"):
        BlobStore.from_connection_string("nonsense", "container")
    with pytest.raises(InvalidArgumentError, match="Invalid URL of a blob container"):
        BlobStore.from_container_url("nonsense")
