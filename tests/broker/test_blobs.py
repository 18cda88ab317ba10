"""Checkpoints of official processors in the control log: durable, shared by few writes, bounded, leased."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.catalogs import edit_value
from tests.storage.engines import Memory, MemoryEngine
from tests.support.clocks import SetClock

from tidegate.broker import ROOT_POLICY_NAME, UNKNOWN_PEER, Actor, BackupState, Broker, acting_as
from tidegate.broker.blobs import groups, writer
from tidegate.broker.blobs import lease as leases
from tidegate.broker.blobs import store as stores
from tidegate.broker.blobs.accounts import NAMESPACE_ACCOUNT_ID
from tidegate.broker.blobs.blob import NO_CONDITIONS, Blob, Conditions, Container
from tidegate.broker.blobs.contents import Contents, Usage
from tidegate.broker.blobs.groups import GroupIndex, IndexedHub
from tidegate.broker.blobs.lease import INFINITE, Lease, StoredLease
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.broker.blobs.store import BlobStore
from tidegate.model.errors import (
    InvalidArgumentError,
    LogCorruptError,
    LogFailedError,
    LogFullError,
    UnauthorizedError,
)
from tidegate.server.opening import open_broker
from tidegate.storage.engine import ControlChange

A = NAMESPACE_ACCOUNT_ID
ID, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


class _CountingEngine(MemoryEngine):
    """Counts the writes of its control log, which take a turn of the loop, and can fail them."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.writes: list[int] = []
        self.failure: LogFailedError | None = None
        change_all = self.control.change_all

        async def counted(changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
            await asyncio.sleep(0)
            if self.failure is not None:
                raise self.failure
            self.writes.append(len(changes))
            return await change_all(changes, may_borrow=may_borrow)

        self.control.change_all = counted  # type: ignore[method-assign]


class _World:
    """A broker over memory that can be opened again."""

    def __init__(self, clock: SetClock) -> None:
        self.memory, self.clock = Memory(), clock

    async def open(self) -> None:
        self.engine = _CountingEngine(self.memory)
        self.broker = await Broker.open(self.engine, clock=self.clock)

    @property
    def blobs(self) -> BlobStore:
        return self.broker.blobs

    async def reopen(self) -> None:
        await self.broker.close()
        await self.open()

    async def put(
        self,
        name: str,
        conditions: Conditions = NO_CONDITIONS,
        *,
        account: str = A,
        lease_id: str | None = None,
    ) -> Blob:
        return await self.blobs.put(
            account, "store", name, conditions, lease_id=lease_id, content=b"", metadata={"offset": "5"}
        )

    def names(self, account: str = A) -> list[str]:
        page = self.blobs.page(account, "store", prefix="", delimiter="", start="", count=10**6)
        return [each.blob.name for each in page if not isinstance(each, str)]

    def kept(self) -> list[str]:
        return [key for key in self.memory.cells if key.startswith(("blob/", "container/"))]


@pytest.fixture
async def world() -> AsyncIterator[_World]:
    """With one container in the namespace's account."""
    world = _World(SetClock())
    await world.open()
    await world.blobs.create_container(A, "store", {})
    yield world
    await world.broker.close()


async def _refused(refusal: Refusal, call: Callable[[], object]) -> None:
    async def result() -> None:
        found = call()
        if asyncio.iscoroutine(found):
            await found

    with pytest.raises(BlobRefusedError) as caught:
        await result()
    assert caught.value.refusal is refusal


async def test_what_was_answered_is_there_after_a_restart(world: _World) -> None:
    """Names, metadata, ETags and times; what was deleted is not."""
    first = await world.put("b/2")
    await world.put("b/1")
    await world.put("gone")
    await world.blobs.delete(A, "store", "gone", NO_CONDITIONS, lease_id=None)
    world.clock.advance(60)
    second = await world.blobs.set_metadata(
        A, "store", "b/1", NO_CONDITIONS, lease_id=None, metadata={"Offset": "6"}
    )
    for _ in range(2):
        assert world.names() == ["b/1", "b/2"]
        assert world.blobs.read(A, "store", "b/2", NO_CONDITIONS, lease_id=None).blob == first
        assert world.blobs.read(A, "store", "b/1", NO_CONDITIONS, lease_id=None).blob == second
        await world.reopen()


async def test_changes_that_come_together_are_written_together(world: _World) -> None:
    """A hub's partitions checkpoint at once: the first is written alone, all others in one write."""
    world.engine.writes.clear()
    await asyncio.gather(*(world.put(f"checkpoint/{number}") for number in range(200)))
    assert world.engine.writes == [200] or world.engine.writes == [1, 199]
    assert len(world.names()) == 200


async def test_changes_of_one_write_are_taken_in_with_pauses(world: _World) -> None:
    """Each may displace a group of the index: 256 of them were a step of 45 ms, in which nothing else ran."""
    passes, taken_in = 0, list[int]()

    async def put(number: int) -> None:
        await world.put(f"n{number}/hub/g/ownership/0")
        taken_in.append(passes)

    async def count() -> None:
        nonlocal passes
        while len(taken_in) < 100:
            passes += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(put(number))
        tasks.create_task(count())
    assert max(Counter(taken_in).values()) <= 10


async def test_too_many_waiting_changes_are_refused(world: _World) -> None:
    """As busy, which clients try again; those that waited are made."""
    calls = [world.put(f"{number}") for number in range(stores.WAITING_MAX + 3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in results if isinstance(each, BlobRefusedError)]
    assert [each.refusal for each in refused] == [Refusal.SERVER_BUSY] * 3
    assert len(world.names()) == stores.WAITING_MAX


async def test_one_of_many_creates_a_blob(world: _World) -> None:
    """And one of many replaces it by its ETag: how processors claim a partition."""
    new = Conditions(if_none_match="*")
    results = await asyncio.gather(*(world.put("0", new) for _ in range(9)), return_exceptions=True)
    (created,) = [each for each in results if isinstance(each, Blob)]
    assert {each.refusal for each in results if isinstance(each, BlobRefusedError)} == {Refusal.BLOB_EXISTS}
    same = Conditions(if_match=created.etag)
    results = await asyncio.gather(*(world.put("0", same) for _ in range(9)), return_exceptions=True)
    assert sum(isinstance(each, Blob) for each in results) == 1
    assert sum(isinstance(each, BlobRefusedError) for each in results) == 8


async def test_a_failed_write_changes_nothing(world: _World) -> None:
    """The error reaches each of those that waited; the next change is made."""
    world.engine.failure = LogFailedError("Cannot write.")
    results = await asyncio.gather(world.put("0"), world.put("1"), return_exceptions=True)
    assert [type(each) for each in results] == [LogFailedError, LogFailedError]
    assert world.names() == []
    world.engine.failure = None
    await world.put("0")
    assert world.names() == ["0"]


async def test_a_cancelled_change_is_whole(world: _World) -> None:
    """It is made before its caller learns of the cancellation, so that the next one compares with it."""
    task = asyncio.get_running_loop().create_task(world.put("0"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.names() == ["0"]
    await _refused(Refusal.BLOB_EXISTS, lambda: world.put("0", Conditions(if_none_match="*")))


async def _until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_done():  # noqa: ASYNC110 - what is removed later reports to nobody
            await asyncio.sleep(0)


async def _until_empty(world: _World) -> None:
    await _until(lambda: not world.kept())


async def test_a_deleted_container_takes_its_blobs(world: _World) -> None:
    """At once for its users, in the control log a little later; also if the service stops in between."""
    for number in range(3):
        await world.put(str(number))
    late = asyncio.gather(world.put("late"), return_exceptions=True)
    assert await world.blobs.delete_container(A, "store") == 3
    (refused,) = await late
    assert isinstance(refused, BlobRefusedError)
    await _refused(Refusal.CONTAINER_NOT_FOUND, lambda: world.put("0"))
    await _until_empty(world)
    await world.blobs.create_container(A, "store", {})
    assert world.names() == []
    await world.put("0")
    # As a kill leaves it: the record of the container is gone, and the blob is not.
    key = next(key for key in world.kept() if key.startswith("container/"))
    await world.broker.close()
    del world.memory.cells[key]
    await world.open()
    await _until_empty(world)


async def test_a_hub_created_again_has_no_checkpoints(world: _World) -> None:
    """They are of another log, and may be of another tenant."""
    hub = await world.broker.create_event_hub("hub", partition_count=1)
    account = hub.description.hub_id
    await world.blobs.delete_container(A, "store")
    await world.blobs.create_container(account, "store", {})
    await world.put("checkpoint", account=account)
    await world.broker.delete_event_hub("hub")
    await _refused(Refusal.CONTAINER_NOT_FOUND, lambda: world.names(account))
    await _until_empty(world)
    hub = await world.broker.create_event_hub("hub", partition_count=1)
    await _refused(Refusal.CONTAINER_NOT_FOUND, lambda: world.names(hub.description.hub_id))


@pytest.mark.parametrize("name", ["blob", "Blob", "x.blob", "devstoreaccount1", "DevStoreAccount1"])
async def test_hubs_have_no_names_of_accounts(world: _World, name: str) -> None:
    """They are the first part of the same paths."""
    with pytest.raises(InvalidArgumentError, match="storage account"):
        await world.broker.create_event_hub(name, partition_count=1)


async def test_accounts_are_bounded(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of blobs and by bytes, each and together; replacing stays possible."""
    for name, value in (("BLOBS_MAX", 2), ("BLOBS_TOTAL_MAX", 3), ("CONTAINERS_MAX", 1)):
        monkeypatch.setattr(stores, name, value)
    await world.put("0")
    await world.put("1")
    await _refused(Refusal.QUOTA_EXCEEDED, lambda: world.put("2"))
    await world.put("1")
    await _refused(Refusal.QUOTA_EXCEEDED, lambda: world.blobs.create_container(A, "more", {}))
    await world.blobs.create_container("development", "store", {})
    await world.put("0", account="development")
    await _refused(Refusal.QUOTA_EXCEEDED, lambda: world.put("1", account="development"))
    await world.blobs.delete(A, "store", "0", NO_CONDITIONS, lease_id=None)
    await world.put("1", account="development")
    monkeypatch.setattr(stores, "BLOBS_MAX", 10)
    monkeypatch.setattr(stores, "BYTES_MAX", 600)
    await _refused(Refusal.QUOTA_EXCEEDED, lambda: world.put("3"))


async def test_containers_count_as_well(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their metadata, in the account and among all; a deleted one no longer does. What waits to be
    written has its room already."""
    total = world.blobs._total
    before = total.held_bytes
    await world.blobs.create_container(A, "first", {"a": "x" * 5000})
    more = total.held_bytes - before
    assert more > 2 * 5000
    monkeypatch.setattr(stores, "BYTES_TOTAL_MAX", total.held_bytes + 2 * more)
    waiting = [
        world.blobs.create_container(account, f"new-{number}", {"a": "x" * 5000})
        for number, account in enumerate((A, A, "development"))
    ]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [each.refusal for each in results if isinstance(each, BlobRefusedError)]
    assert refused == [Refusal.QUOTA_EXCEEDED]
    await world.blobs.delete_container(A, "first")
    await world.put("0")  # after it, the removal was made
    await world.blobs.delete_container(A, "store")
    await _until(lambda: total.held_bytes == 2 * more)
    assert total.waiting_bytes == 0


@pytest.mark.slow
async def test_deleting_a_full_container_holds_nobody_up(world: _World) -> None:
    """What its blobs leave is removed a write at a time, and counts until then; its groups are not shown."""
    names = [f"host/h/g/checkpoint/{number}" for number in range(1000)]
    hub = IndexedHub("h", A, 0, {"g"}, ["0"], ())
    empty = world.blobs._total.held_bytes
    for start in range(0, 1000, 200):
        await asyncio.gather(*map(world.put, names[start : start + 200]))
    steps = [0]
    note = world.blobs.groups.note

    def counted(*given: Any) -> int:
        steps[-1] += 1
        return note(*given)

    world.blobs.groups.note = counted  # type: ignore[method-assign, assignment]
    await world.blobs.delete_container(A, "store")
    assert list(world.blobs.groups.of_hub(hub)) == []
    async with asyncio.timeout(30):
        while world.kept():
            assert world.blobs._total.blobs == len(world.kept())
            steps.append(0)
            await asyncio.sleep(0)
    assert max(steps) <= writer.TOGETHER_MAX
    assert sum(steps) == 1000
    await world.blobs.create_container(A, "store", {})
    assert (world.blobs._total.held_bytes, world.blobs.groups._hubs) == (empty, {})


async def test_removals_that_fail_are_tried_again(world: _World) -> None:
    """With a later change, and fail no other."""
    change_all, is_full = world.engine.control.change_all, True

    async def refusing(changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        if is_full and any(each.value is None for each in changes if each.key.startswith("blob/")):
            raise LogFullError("The disk is full.")
        return await change_all(changes, may_borrow=may_borrow)

    world.engine.control.change_all = refusing  # type: ignore[method-assign]
    await world.put("0")
    await world.blobs.delete_container(A, "store")
    await world.blobs.create_container(A, "store", {})
    for turns in range(4):
        first = asyncio.gather(world.put("1"))
        for _ in range(turns):  # the other one comes before, in and after its write
            await asyncio.sleep(0)
        await asyncio.gather(first, world.put("2"))
    assert len(world.kept()) == 4
    is_full = False
    await world.put("1")
    await _until(lambda: len(world.kept()) == 3)


async def test_removals_that_failed_make_room_for_an_account_that_is_full(
    world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused for want of room tries them again: no other change of the account gets so far."""
    for number in range(3):
        await world.put(str(number))
    monkeypatch.setattr(stores, "BYTES_MAX", 3_000)  # room for a container
    change_all, is_full = world.engine.control.change_all, True

    async def refusing(changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        if is_full and any(each.value is None for each in changes if each.key.startswith("blob/")):
            raise LogFullError("The disk is full.")
        return await change_all(changes, may_borrow=may_borrow)

    world.engine.control.change_all = refusing  # type: ignore[method-assign]
    await world.blobs.delete_container(A, "store")
    await _until(lambda: world.blobs._writer._has_failed)
    is_full = False
    await _refused(Refusal.QUOTA_EXCEEDED, lambda: world.blobs.create_container(A, "store", {}))
    await _until(lambda: not world.kept())
    await world.blobs.create_container(A, "store", {})


async def test_a_change_that_is_cancelled_twice_is_waited_for(world: _World) -> None:
    """Else another of its key could begin, and the two would count as one."""
    change_all, is_open = world.engine.control.change_all, asyncio.Event()

    async def gated(changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        await is_open.wait()
        return await change_all(changes, may_borrow=may_borrow)

    world.engine.control.change_all = gated  # type: ignore[method-assign]
    putting = asyncio.gather(world.put("0"))
    for _ in range(3):
        await asyncio.sleep(0.01)
        assert not putting.done()
        putting.cancel()
    is_open.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert world.names() == ["0"]


async def test_leases_outlive_a_restart(world: _World) -> None:
    """As long as when they were new, so that a holder never believes in a lease that is gone. Renewing
    writes nothing."""
    await world.put("0")

    def acquire(lease: Lease | None, now: float) -> Lease:
        return leases.acquired(lease, now, lease_id=ID, duration_s=30)

    await world.blobs.change_lease(A, "store", "0", NO_CONDITIONS, acquire)
    written = len(world.engine.writes)
    world.clock.advance(20)
    await world.blobs.change_lease(
        A, "store", "0", NO_CONDITIONS, lambda lease, now: leases.renewed(lease, now, lease_id=ID)
    )
    assert len(world.engine.writes) == written
    await world.reopen()
    world.clock.advance(29)
    await _refused(Refusal.LEASE_ID_MISSING, lambda: world.put("0"))
    await _refused(Refusal.LEASE_ID_DIFFERS, lambda: world.put("0", lease_id=OTHER))
    await world.put("0", lease_id=ID)
    world.clock.advance(2)
    await _refused(Refusal.LEASE_LOST, lambda: world.put("0", lease_id=ID))
    await world.put("0")
    held = world.blobs.read(A, "store", "0", NO_CONDITIONS, lease_id=None)
    assert held.lease is None


_HELD = StoredLease(ID, 30).lease(0.0)
_INFINITE = StoredLease(ID, INFINITE).lease(0.0)
_BREAKING = leases.broken(_HELD, 0.0, period_s=10)


@pytest.mark.parametrize(
    ("lease", "now", "expected"),
    [
        (None, 0.0, "aDhNDN"),
        (_HELD, 10.0, "leased PrhcsB"),
        (_HELD, 31.0, "expired arhNsB"),
        (_INFINITE, 1e9, "leased PrhcsB"),
        (_BREAKING, 5.0, "breaking PKCCsB"),
        (_BREAKING, 11.0, "broken aKhNsB"),
    ],
    ids=["available", "leased", "expired", "infinite", "breaking", "broken"],
)
def test_every_action_in_every_state(lease: Lease | None, now: float, expected: str) -> None:
    """As the table of Azure's "Lease Blob" has it: acquire by another, renew, acquire by the holder, change,
    release and break are done (a, r, h, c, s, B), or refused: P: already present, D: another id, N: absent,
    K: broken, C: being broken."""
    outcomes = {
        Refusal.LEASE_PRESENT: "P", Refusal.LEASE_DIFFERS: "D", Refusal.LEASE_ABSENT: "N",
        Refusal.LEASE_BROKEN: "K", Refusal.LEASE_BREAKING: "C", Refusal.LEASE_BREAKING_UNCHANGED: "C",
    }  # fmt: skip
    actions: tuple[tuple[str, Callable[[], object]], ...] = (
        ("a", lambda: leases.acquired(lease, now, lease_id=OTHER, duration_s=15)),
        ("r", lambda: leases.renewed(lease, now, lease_id=ID)),
        ("h", lambda: leases.acquired(lease, now, lease_id=ID, duration_s=15)),
        ("c", lambda: leases.changed(lease, now, lease_id=ID, proposed_id=OTHER)),
        ("s", lambda: leases.released(lease, lease_id=ID)),
        ("B", lambda: leases.broken(lease, now, period_s=None)),
    )
    found = "" if lease is None else f"{lease.state(now)} "
    for done, action in actions:
        try:
            action()
            found += done
        except BlobRefusedError as error:
            found += outcomes[error.refusal]
    assert found == expected


@pytest.mark.parametrize(
    ("lease", "period_s", "left_s"),
    [(_HELD, None, 20.0), (_HELD, 5, 5.0), (_HELD, 60, 20.0), (_INFINITE, None, 0.0), (_INFINITE, 60, 60.0)],
)
def test_a_break_lasts_no_longer_than_the_lease(lease: Lease, period_s: int | None, left_s: float) -> None:
    """The shorter of the period and the rest; an infinite lease ends at once, or after the period."""
    after = leases.broken(lease, 10.0, period_s=period_s)
    assert after.broken_at == 10.0 + left_s


async def test_no_checkpoint_is_beyond_a_restored_log(tmp_path: Path) -> None:
    """Backups while a consumer checkpoints each event after it was stored: each copy's log has them all."""
    directory = tmp_path / "data"
    broker = await open_broker(directory, clock=SetClock())
    hub = await broker.create_event_hub("hub", partition_count=1)
    account = hub.description.hub_id
    await broker.blobs.create_container(account, "store", {})

    async def put(number: int) -> None:
        metadata = {"sequencenumber": str(number)}
        await broker.blobs.put(
            account, "store", "0", NO_CONDITIONS, lease_id=None, content=b"", metadata=metadata
        )

    is_over, kept = False, 0

    async def load() -> None:
        nonlocal kept
        while not is_over:
            appended = await hub.partition("0").append_nowait(b"x", [1])
            await put(appended.start_sequence_number)
            kept = appended.start_sequence_number

    places: list[Path] = []
    loading = asyncio.get_running_loop().create_task(load())
    async with asyncio.timeout(60):
        for number in range(5):
            while kept <= number:  # noqa: ASYNC110 - reports to nobody
                await asyncio.sleep(0)
            backup = await broker.backups.create()
            while backup.state is BackupState.COPYING:
                await asyncio.sleep(0)
                backup = await broker.backups.read(backup.name)
            places.append(Path(backup.place))
    is_over = True
    await loading
    await broker.close()
    numbers = []
    for place in places:
        restored = await open_broker(place, clock=SetClock())
        blob = restored.blobs.read(account, "store", "0", NO_CONDITIONS, lease_id=None).blob
        numbers.append(int(blob.metadata["sequencenumber"]))
        assert numbers[-1] < restored.event_hub("hub").partition("0").next_sequence_number
        await restored.close()
    assert numbers == sorted(numbers)
    assert numbers[-1] >= 5


def test_pages_and_common_parts() -> None:
    """Of names in order, with a prefix and a delimiter, from where the page before ended."""

    async def check() -> None:
        world = _World(SetClock())
        await world.open()
        await world.blobs.create_container(A, "store", {})
        for name in ("a/1", "a/2", "b", "c/x/1", "c/y", "d"):
            await world.put(name)

        def listed(**given: str) -> list[str]:
            found, start, wanted = [], "", {"prefix": "", "delimiter": "", **given}
            while True:
                page = world.blobs.page(A, "store", start=start, count=2, **wanted)
                found += [each if isinstance(each, str) else each.blob.name for each in page]
                if page.following is None:
                    return found
                start = page.following

        assert listed() == ["a/1", "a/2", "b", "c/x/1", "c/y", "d"]
        assert listed(delimiter="/") == ["a/", "b", "c/", "d"]
        assert listed(prefix="c/") == ["c/x/1", "c/y"]
        assert listed(prefix="c/", delimiter="/") == ["c/x/", "c/y"]
        assert listed(prefix="e") == []
        await world.broker.close()

    asyncio.run(check())


async def test_a_container_that_goes_with_its_hub_holds_up_no_other_account(world: _World) -> None:
    """Its deletion waits for the control log while the hub is deleted; a checkpoint of another is written."""
    world.blobs.add_account("hub-1")
    await world.blobs.create_container("hub-1", "store", {})
    async with asyncio.timeout(60):
        gone = asyncio.ensure_future(world.blobs.delete_container("hub-1", "store"))  # noqa: TID251
        kept = asyncio.ensure_future(world.put("b"))  # noqa: TID251 - both awaited below
        await asyncio.sleep(0)
        world.blobs.forget_account("hub-1")
        await asyncio.gather(gone, kept)
    assert world.names() == ["b"]
    await world.put("b")


async def test_a_hub_that_is_deleted_meanwhile_gets_no_container(world: _World) -> None:
    """A request with a slow body, or one that waits for the control log: nothing stays behind."""
    await world.broker.create_event_hub("h", partition_count=1)
    account = world.broker.event_hub("h").description.hub_id
    waiting = asyncio.ensure_future(world.blobs.create_container(account, "first", {}))  # noqa: TID251
    await asyncio.sleep(0)
    await world.broker.delete_event_hub("h")
    await waiting
    await _refused(Refusal.RESOURCE_NOT_FOUND, lambda: world.blobs.create_container(account, "second", {}))
    await world.put("b")  # after it, nothing of before waits
    assert await world.engine.control.read_all(f"container/{account}/") == {}
    await _refused(Refusal.CONTAINER_NOT_FOUND, lambda: world.blobs.container(account, "first"))


async def test_a_page_of_a_list_is_bounded_in_bytes(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long names and metadata are; the pages together have every blob once."""
    monkeypatch.setattr(stores, "LIST_BYTES_MAX", 2000)
    for number in range(7):
        await world.blobs.put(
            A, "store", f"{number}", NO_CONDITIONS, lease_id=None, content=b"", metadata={"m": "&" * 900}
        )
    sizes, names, start = [], [], ""
    while True:
        page = world.blobs.page(A, "store", prefix="", delimiter="", start=start, count=100)
        found = list(page)
        sizes.append(len(found))
        names += [each.blob.name for each in found if not isinstance(each, str)]
        if page.following is None:
            break
        start = page.following
    assert (sizes, names) == ([2, 2, 2, 1], [f"{number}" for number in range(7)])
    monkeypatch.setattr(stores, "LIST_BYTES_MAX", 1)
    page = world.blobs.page(A, "store", prefix="", delimiter="", start="", count=100)
    assert (len(list(page)), page.following) == (1, "1")


async def test_a_page_is_found_an_entry_at_a_time(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the loop: what a page has is not even looked at before its slice. What is created, deleted or
    written meanwhile moves no other blob, and of a container that is deleted no part is a page."""
    for name in ("a/1", "a/2", "b", "c", "d", "e"):
        await world.put(name)
    looked_at: list[str] = []

    def listed_bytes(blob: Blob) -> int:
        looked_at.append(blob.name)
        return 1

    monkeypatch.setattr(Blob, "listed_bytes", property(listed_bytes))
    page = world.blobs.page(A, "store", prefix="", delimiter="/", start="", count=4)
    entries = iter(page)
    assert looked_at == []
    assert next(entries) == "a/"
    assert looked_at == ["a/1"]
    await world.put("a")
    await world.put("a/3")
    await world.blobs.delete(A, "store", "b", NO_CONDITIONS, lease_id=None)
    await world.put("bb")
    written = await world.put("c")
    left = [each.blob for each in entries if not isinstance(each, str)]
    assert [each.name for each in left] == ["bb", "c", "d"]
    assert left[1].etag == written.etag
    assert page.following == "e"
    entries = iter(world.blobs.page(A, "store", prefix="", delimiter="", start="", count=9))
    next(entries)
    await world.blobs.delete_container(A, "store")
    await _refused(Refusal.CONTAINER_NOT_FOUND, lambda: next(entries))


def _contents(account_id: str, name: str = "c") -> Contents:
    return Contents(account_id, Container(name, name, "0x1", 0), Usage())


def _checkpoint(modified_at_ms: int = 5) -> Blob:
    return Blob("", "0x1", 5, modified_at_ms, {"sequencenumber": "3"})


def test_the_groups_of_an_account_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is written makes the one leave that was written longest ago, so that made-up names hide no
    group that is used; another account is not affected. What is gone takes no memory."""
    monkeypatch.setattr(groups, "GROUPS_MAX", 2)
    index, own, shared = GroupIndex(), _contents("a"), _contents("shared")
    hub = IndexedHub("h", "a", 0, {"g"}, ["0"], ["shared"])
    held_bytes = 0

    def note(contents: Contents, host: str, blob: Blob | None) -> None:
        nonlocal held_bytes
        held_bytes += index.note(contents, f"{host}/h/g/checkpoint/0", blob)

    def places() -> list[tuple[str, str]]:
        return [(each.account_id, each.namespace) for each in index.of_hub(hub)]

    note(shared, "four", _checkpoint(0))
    for time_ms, host in enumerate(("one", "two", "one", "three")):
        note(own, host, _checkpoint(time_ms))
    assert places() == [("a", "one"), ("a", "three"), ("shared", "four")]
    note(own, "two", None)
    note(own, "three", None)
    note(own, "two", _checkpoint(9))
    assert places() == [("a", "one"), ("a", "two"), ("shared", "four")]
    assert held_bytes > 3 * groups._GROUP_BYTES
    own.is_deleted = True
    assert places() == [("shared", "four")]
    for host, contents in (("one", own), ("two", own), ("four", shared)):
        note(contents, host, None)
    assert (index._hubs, held_bytes) == ({}, 0)


def test_the_key_that_is_trusted_most_says_where_a_group_is() -> None:
    """Of a group in several accounts the hub's own counts, however new the others are: the key of the
    development account is public. Within an account, the newest counts."""
    index, accounts = GroupIndex(), ("hub", "namespace", "development")
    hub = IndexedHub("h", "hub", 0, {"g"}, ["0"], accounts[1:])
    for time_ms, account in enumerate(accounts):
        for container, later_ms in (("old", 0), ("new", 20), ("older", 10)):
            contents = _contents(account, container)
            index.note(contents, "host/h/g/checkpoint/0", _checkpoint(1 + time_ms + later_ms))
    for rank in range(3):
        shown = IndexedHub("h", accounts[rank], 0, {"g"}, ["0"], accounts[rank + 1 :])
        (group,) = index.of_hub(shown, is_newest_only=True)
        assert (group.account_id, group.container) == (accounts[rank], "new")
    assert len(list(index.of_hub(hub))) == 9


def test_partitions_that_go_do_not_cost_one_another() -> None:
    """Protects neighbours: a container with 10,000 checkpoints of one group, deleted, took 4 s of the event
    loop, 0.1 to 0.2 s at a time: each built a new table of the others."""
    index, contents, count = GroupIndex(), _contents("a"), 1_000
    for number in range(count):
        index.note(contents, f"host/h/g/checkpoint/{number}", _checkpoint(1))
    ((records,),) = [[*places.values()] for places in index._hubs["h"].values()]
    tables = [records.partitions]
    for number in range(count):
        index.note(contents, f"host/h/g/checkpoint/{number}", None)
        if records.partitions is not tables[-1]:
            tables.append(records.partitions)
    assert 2 < len(tables) < 20  # it shrinks, but not each time
    assert index._hubs == {}


async def test_a_change_that_waits_needs_a_key_that_is_still_in_force(world: _World) -> None:
    """For its turn at a blob, or for the write before it: the policy lost its keys meanwhile."""
    policy = world.broker.authorizer.policy(ROOT_POLICY_NAME)
    assert policy is not None
    grants = world.broker.authorize_key(policy.name, policy.key, UNKNOWN_PEER)
    change_all, is_open = world.engine.control.change_all, asyncio.Event()

    async def gated(changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        await is_open.wait()
        return await change_all(changes, may_borrow=may_borrow)

    world.engine.control.change_all = gated  # type: ignore[method-assign]
    with acting_as(Actor.of(grants, UNKNOWN_PEER)):
        first = asyncio.gather(world.put("written"))
        await asyncio.sleep(0.01)  # its write has begun
        others = asyncio.gather(world.put("written"), world.put("waiting"), return_exceptions=True)
        await asyncio.sleep(0.01)
    world.broker.authorizer.set_policies([])
    is_open.set()
    await first
    assert [type(each) for each in await others] == [UnauthorizedError, UnauthorizedError]
    assert world.names() == ["written"]


@pytest.mark.parametrize(
    ("prefix", "path"), [("container/", ()), ("blob/", ()), ("blob/", ("stored_lease",))]
)
@pytest.mark.slow
async def test_a_field_of_a_later_version_is_refused_by_name(
    tmp_path: Path, clock: SetClock, prefix: str, path: tuple[str, ...]
) -> None:
    """The next change of the blob would drop it."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.blobs.create_container(A, "checkpoints", {})
    await broker.blobs.put(A, "checkpoints", "blob", NO_CONDITIONS, lease_id=None, content=b"", metadata={})
    await broker.blobs.change_lease(
        A,
        "checkpoints",
        "blob",
        NO_CONDITIONS,
        lambda lease, now: leases.acquired(lease, now, lease_id=ID, duration_s=INFINITE),
    )
    await broker.close()

    def edit(document: dict[str, Any]) -> None:
        for part in path:
            document = document[part]
        document["snapshot"] = 1

    await edit_value(tmp_path, prefix, edit)
    with pytest.raises(LogCorruptError, match=r"unknown field `snapshot`.*a later one"):
        await open_broker(tmp_path, clock=clock)
