"""What every engine does: the file engine, one in memory, and one that answers late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.engines import Memory, MemoryEngine, SlowEngine

from tidegate.model.errors import (
    ClosedError,
    InvalidArgumentError,
    OutOfOrderSequenceError,
    ProducerEpochStolenError,
    RepeatDiffersError,
)
from tidegate.storage.engine import ControlChange, ControlConflictError, LogEngine, PartitionLog
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch

Open = Callable[[], Awaitable[LogEngine]]
"""Opens the engine on what earlier ones have kept."""

_OPTIONS = LogOptions(segment_bytes_max=2000, index_interval_bytes=200, journal_bytes=20_000)


@pytest.fixture(params=["file", "memory", "slow"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Each engine in turn."""
    memory = Memory()

    async def open_it() -> LogEngine:
        match request.param:
            case "file":
                return await LogManager.open(tmp_path, options=_OPTIONS)
            case "memory":
                return MemoryEngine(memory)
        return SlowEngine(memory)

    return open_it


async def _log(engine: LogEngine) -> PartitionLog:
    await engine.create_logs("hub", 1)
    return engine.log("hub", "0")


def _append(
    log: PartitionLog, *bodies: bytes, time_ms: int = 1, producer: ProducerBatch | None = None
) -> asyncio.Future[AppendResult]:
    lengths = [len(body) for body in bodies]
    return log.append_nowait(b"".join(bodies), lengths, enqueued_time_ms=time_ms, producer=producer)


class _Following:
    """A reader that is taken from when it is woken."""

    def __init__(self, log: PartitionLog, start: int) -> None:
        self.woken = asyncio.Event()
        self.reader = log.open_reader(start, self.woken.set)

    async def take(self, until: int, bytes_max: int = 100) -> list[RecordBatch]:
        """Take until the event before ``until`` is there."""
        batches: list[RecordBatch] = []
        async with asyncio.timeout(20):
            while not batches or batches[-1].until_sequence_number < until:
                if found := self.reader.take(bytes_max):
                    batches += found
                else:
                    await self.woken.wait()
                    self.woken.clear()
        return batches


def _bodies(batches: list[RecordBatch]) -> list[bytes]:
    bodies = []
    for batch in batches:
        at = 0
        for length in batch.lengths:
            bodies.append(bytes(batch.payload[at : at + length]))
            at += length
    return bodies


async def test_what_is_acknowledged_can_be_read_and_is_within_the_bounds(open_engine: Open) -> None:
    """By a new reader, by one that waits, and by a single read; from any number, in order."""
    engine = await open_engine()
    log = await _log(engine)
    bounds = await log.bounds()
    assert (bounds.begin_sequence_number, bounds.next_sequence_number) == (0, 0)
    assert bounds.last_enqueued_time_ms is None
    assert await log.read(0, bytes_max=100) == []
    waiting = _Following(log, 0)
    assert waiting.reader.take(100) == []
    sent = [b"%d" % number for number in range(40)]
    results = await asyncio.gather(*(_append(log, *sent[n : n + 4], time_ms=n) for n in range(0, 40, 4)))
    assert [result.start_sequence_number for result in results] == list(range(0, 40, 4))
    bounds = await log.bounds()
    assert (bounds.begin_sequence_number, bounds.next_sequence_number) == (0, 40)
    assert bounds.last_enqueued_time_ms == 36
    assert log.known_bounds == bounds
    assert _bodies(await waiting.take(40)) == sent
    assert log.appended == (40, sum(map(len, sent)))
    assert log.stored_bytes >= sum(map(len, sent))
    for start in (0, 1, 4, 39):
        following = _Following(log, start)
        batches = await following.take(40)
        assert batches[0].base_sequence_number <= start < batches[0].until_sequence_number
        assert _bodies(batches) == sent[batches[0].base_sequence_number :]
        following.reader.close()
        (first, *_) = await log.read(start, bytes_max=1)
        assert first.base_sequence_number <= start < first.until_sequence_number
    assert await log.read(40, bytes_max=100) == []
    await engine.close()


async def test_a_closed_reader_is_not_woken(open_engine: Open) -> None:
    """Closing twice is harmless; other readers go on."""
    engine = await open_engine()
    log = await _log(engine)
    calls: list[int] = []
    reader = log.open_reader(0, lambda: calls.append(1))
    other = _Following(log, 0)
    reader.close()
    reader.close()
    await _append(log, b"x")
    await other.take(1)
    await asyncio.sleep(0.01)
    assert calls == []
    await engine.close()


async def test_times_never_go_back_and_are_found(open_engine: Open) -> None:
    """A clock that goes back is raised to the last time; each time finds its first event."""
    engine = await open_engine()
    log = await _log(engine)
    stored: list[int] = []
    for time_ms in (10, 10, 30, 20, 40, 40, 90):
        result = await _append(log, b"x" * 300, time_ms=time_ms)
        stored.append(result.enqueued_time_ms)
    assert stored == [10, 10, 30, 30, 40, 40, 90]
    for wanted in range(0, 100, 5):
        expected = next((number for number, time_ms in enumerate(stored) if time_ms >= wanted), 7)
        assert await log.sequence_number_at_time(wanted) == expected
    await engine.close()


async def test_what_is_no_batch_is_refused_at_once(open_engine: Open) -> None:
    """Nothing is queued."""
    engine = await open_engine()
    log = await _log(engine)
    for payload, lengths in ((b"", []), (b"abc", [2])):
        with pytest.raises(InvalidArgumentError):
            log.append_nowait(payload, lengths, enqueued_time_ms=1)
    with pytest.raises(InvalidArgumentError):
        log.append_nowait(b"x", [1], enqueued_time_ms=1, producer=ProducerBatch(-1, 0, 0))
    assert (await log.bounds()).next_sequence_number == 0
    await engine.close()


async def test_producers_are_idempotent(open_engine: Open) -> None:
    """A repeat gets the first place, also of a batch in flight and after a restart; gaps and old epochs are
    refused."""
    engine = await open_engine()
    log = await _log(engine)

    def send(sequence: int, *, epoch: int = 0) -> asyncio.Future[AppendResult]:
        return _append(log, b"x", producer=ProducerBatch(7, epoch, sequence))

    first, again, second = await asyncio.gather(send(0), send(0), send(1))
    assert [each.start_sequence_number for each in (first, again, second)] == [0, 0, 1]
    assert [each.is_duplicate for each in (first, again, second)] == [False, True, False]
    with pytest.raises(OutOfOrderSequenceError):
        await send(5)
    with pytest.raises(RepeatDiffersError):
        await _append(log, b"other", producer=ProducerBatch(7, 0, 1, is_repeatable=True))
    queued = send(2)
    state = await log.producer_state(7)
    assert state is not None
    assert (state.epoch, state.next_sequence) == (0, 3)
    assert (await queued).start_sequence_number == 2
    assert await log.producer_state(8) is None
    await send(0, epoch=1)
    with pytest.raises(ProducerEpochStolenError):
        await send(3)
    await engine.close()
    engine = await open_engine()
    log = engine.log("hub", "0")
    assert (await send(0, epoch=1)).is_duplicate
    assert (await log.bounds()).next_sequence_number == 4
    await engine.close()


async def test_a_cancelled_append_is_wholly_there_or_wholly_absent(open_engine: Open) -> None:
    """The others are not affected."""
    engine = await open_engine()
    log = await _log(engine)
    futures = [log.append_nowait(b"%02d" % number * 2, [2, 2], enqueued_time_ms=1) for number in range(20)]
    for number in (3, 4, 11):
        futures[number].cancel()
    await asyncio.gather(*futures, return_exceptions=True)
    until = (await log.bounds()).next_sequence_number
    bodies = _bodies(await _Following(log, 0).take(until))
    expected = [b"%02d" % number for number in range(20) for _ in range(2)]
    kept = [body for body in expected if body in bodies]
    assert bodies == kept
    assert {b"%02d" % number for number in range(20)} - set(bodies) <= {b"03", b"04", b"11"}
    await engine.close()


async def test_each_opening_after_which_events_are_stored_begins_a_history(open_engine: Open) -> None:
    """The last one is of what is appended; one without an event is forgotten."""
    engine = await open_engine()
    log = await _log(engine)
    (first,) = (await log.bounds()).histories
    await _append(log, b"a", b"b")
    assert (await log.bounds()).histories == (first,)
    await engine.close()
    engine = await open_engine()
    (kept, unused) = (await engine.log("hub", "0").bounds()).histories
    assert kept == first
    await engine.close()
    engine = await open_engine()
    log = engine.log("hub", "0")
    await _append(log, b"c")
    kept, second = (await log.bounds()).histories
    assert (kept, second.first_sequence_number) == (first, 2)
    assert second != unused
    await engine.close()
    engine = await open_engine()
    histories = (await engine.log("hub", "0").bounds()).histories
    assert histories[:2] == (first, second)
    assert histories[2].first_sequence_number == 3
    assert len({history.history_id for history in (*histories, unused)}) == 4
    await engine.close()


async def test_numbers_are_not_used_again_after_retention(open_engine: Open) -> None:
    """By time and by size, the oldest first; a reader goes on with the first event held; restarts keep it."""
    engine = await open_engine()
    log = await _log(engine)
    for number in range(20):
        await _append(log, b"x" * 500, time_ms=number)
    early = _Following(log, 0)
    assert await log.apply_retention(before_ms=0, bytes_max=None) == 0
    assert await log.apply_retention(before_ms=0, bytes_max=6000) > 0
    by_size = (await log.bounds()).begin_sequence_number
    assert 0 < by_size <= 20 - 6000 // 600
    assert await log.apply_retention(before_ms=15, bytes_max=None) > 0
    by_time = (await log.bounds()).begin_sequence_number
    assert by_size < by_time <= 15
    (batch, *_) = await log.read(0, bytes_max=1)
    assert batch.base_sequence_number == by_time
    assert (await early.take(20))[-1].until_sequence_number == 20
    assert await log.apply_retention(before_ms=1000, bytes_max=None) > 0
    bounds = await log.bounds()
    assert (bounds.begin_sequence_number, bounds.next_sequence_number) == (20, 20)
    assert bounds.last_enqueued_time_ms == 19
    await engine.close()
    engine = await open_engine()
    log = engine.log("hub", "0")
    assert replace(await log.bounds(), histories=bounds.histories) == bounds
    assert (await _append(log, b"next", time_ms=3)).start_sequence_number == 20
    await engine.close()


async def test_old_events_go_although_newer_ones_follow(open_engine: Open) -> None:
    """No unit takes events for longer than it is told; none goes too early."""
    engine = await open_engine()
    log = await _log(engine)
    for now_ms in range(50, 3000, 50):
        await _append(log, b"x", time_ms=now_ms)
        await log.apply_retention(before_ms=now_ms - 1000, bytes_max=None, seal_before_ms=now_ms - 200)
        oldest_ms = 50 * ((await log.bounds()).begin_sequence_number + 1)
        assert oldest_ms <= max(50, now_ms - 1000)
        assert oldest_ms >= now_ms - 1000 - 200 - 2 * 50
    await engine.close()


@pytest.mark.parametrize("is_hub_deleted", [False, True])
async def test_after_its_end_a_log_refuses_and_wakes_its_readers(
    open_engine: Open, is_hub_deleted: bool
) -> None:
    """When its hub is closed or deleted, and when the engine closes; what was queued is answered."""
    engine = await open_engine()
    log = await _log(engine)
    following = _Following(log, 0)
    queued = [log.append_nowait(b"x", [1], enqueued_time_ms=1) for _ in range(5)]
    ending = engine.delete_logs("hub") if is_hub_deleted else engine.close()
    await ending
    for answer in await asyncio.gather(*queued, return_exceptions=True):
        assert isinstance(answer, AppendResult | ClosedError)
    assert log.is_closed
    async with asyncio.timeout(10):
        await following.woken.wait()
    with pytest.raises(ClosedError):
        log.append_nowait(b"x", [1], enqueued_time_ms=1)
    for work in (log.bounds(), log.producer_state(1)):
        with pytest.raises(ClosedError):
            await work
    await engine.close()
    engine = await open_engine()
    assert engine.unknown_hub_ids([]) == ([] if is_hub_deleted else ["hub"])
    assert engine.unknown_hub_ids(["hub"]) == []
    if not is_hub_deleted:
        answers = [each for each in queued if each.exception() is None]
        assert (await engine.log("hub", "0").bounds()).next_sequence_number == len(answers) == 5
    await engine.close()


async def test_logs_may_be_created_again(open_engine: Open) -> None:
    """After a failure somewhere else, the next try finds what is there; a closed hub's events stay."""
    engine = await open_engine()
    log = await _log(engine)
    await _append(log, b"x")
    await engine.create_logs("hub", 1)
    assert (await engine.log("hub", "0").bounds()).next_sequence_number == 1
    engine.close_logs("hub")
    assert log.is_closed
    await engine.close()
    engine = await open_engine()
    assert _bodies(await engine.log("hub", "0").read(0, bytes_max=100)) == [b"x"]
    await engine.close()


async def test_logs_are_added(open_engine: Open) -> None:
    """A hub gets more logs: they are ready at once, and the others keep events and readers."""
    engine = await open_engine()
    log = await _log(engine)
    await _append(log, b"x")
    following = _Following(log, 0)
    await engine.create_logs("hub", 3)
    added = engine.log("hub", "2")
    assert (await added.bounds()).next_sequence_number == 0
    await asyncio.gather(_append(log, b"y"), _append(added, b"z"))
    assert _bodies(await following.take(2)) == [b"x", b"y"]
    assert engine.unknown_hub_ids(["hub"]) == []
    await engine.close()
    engine = await open_engine()
    for partition_id, bodies in (("0", [b"x", b"y"]), ("1", []), ("2", [b"z"])):
        assert _bodies(await engine.log("hub", partition_id).read(0, bytes_max=10_000)) == bodies
    await engine.close()


async def test_the_control_log_compares_and_sets(open_engine: Open) -> None:
    """One of two changes at a time is made; values outlive the engine."""
    engine = await open_engine()
    control = engine.control
    assert control.failure is None
    assert await control.read("catalog") is None
    version = await control.change("catalog", b"first", expected_version=0)
    outcomes = await asyncio.gather(
        *(control.change("catalog", b"by %d" % n, expected_version=version) for n in range(3)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, ControlConflictError) for outcome in outcomes) == 2
    (winner,) = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, int)]
    cell = await control.read("catalog")
    assert cell is not None
    assert (cell.version, cell.value) == (version + 1, b"by %d" % winner)
    await engine.close()
    engine = await open_engine()
    cell = await engine.control.read("catalog")
    assert cell is not None
    assert cell.value == b"by %d" % winner
    assert await engine.control.change("catalog", b"next", expected_version=cell.version) > cell.version
    await engine.close()


async def test_keys_of_the_control_log_change_together(open_engine: Open) -> None:
    """All of them or none: one that came too late stops the others."""
    engine = await open_engine()
    control = engine.control
    old = await control.change("blob/1", b"first", expected_version=0)
    late = [ControlChange("blob/2", b"new", 0), ControlChange("blob/1", b"late", old + 1)]
    with pytest.raises(ControlConflictError):
        await control.change_all(late)
    assert await control.read("blob/2") is None
    version = await control.change_all(
        [ControlChange("blob/2", b"new", 0), ControlChange("blob/1", None, old), ControlChange("c", b"", 0)],
        may_borrow=False,
    )
    assert version > old
    for _ in range(2):
        assert {key: cell.value for key, cell in (await control.read_all("")).items()} == {
            "blob/2": b"new",
            "c": b"",
        }
        await engine.close()
        engine = await open_engine()
        control = engine.control
    assert await control.change("blob/2", b"next", expected_version=version) > version
    await engine.close()


async def test_the_control_log_has_many_keys(open_engine: Open) -> None:
    """They are read by prefix, in the order of their creation; removed ones are gone, and their versions
    never come back: who read one before cannot mistake a new value for it."""
    engine = await open_engine()
    control = engine.control
    versions = {
        key: await control.change(key, key.encode(), expected_version=0)
        for key in ("hub/b", "other", "hub/a", "hub/c")
    }
    await control.change("hub/b", b"changed", expected_version=versions["hub/b"])
    await control.change("hub/a", None, expected_version=versions["hub/a"])
    assert await control.read("hub/a") is None
    with pytest.raises(ControlConflictError):
        await control.change("hub/a", b"old", expected_version=versions["hub/a"])
    assert await control.change("hub/a", b"new", expected_version=0) > versions["hub/a"]
    with pytest.raises(ControlConflictError):
        await control.change("hub/a", b"late", expected_version=versions["hub/a"])
    with pytest.raises(ControlConflictError):
        await control.change("hub/c", b"created twice", expected_version=0)
    expected = {"hub/b": b"changed", "hub/c": b"hub/c", "hub/a": b"new"}
    for _ in range(2):
        cells = await control.read_all("hub/")
        assert {key: cell.value for key, cell in cells.items()} == expected
        assert list(cells) == list(expected)
        await engine.close()
        engine = await open_engine()
        control = engine.control
    await engine.close()


async def test_lines_are_kept_by_kind(open_engine: Open) -> None:
    """In order, over restarts."""
    for generation in range(2):
        engine = await open_engine()
        lines = engine.open_lines("audit")
        assert lines.read() == [b"a", b"b"] * generation
        for line in (b"a\n", b"b\n"):
            lines.append(line)
        assert engine.open_lines("other").read() == []
        lines.close()
        lines.close()
        await engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_random_histories(open_engine: Open, seed: int) -> None:
    """Appends in flight, readers that come, fall behind and leave, retention and restarts, beside a list of
    what was acknowledged."""
    randomness = random.Random(seed)
    print(f"seed {seed}")
    engine = await open_engine()
    log = await _log(engine)
    sent: dict[int, bytes] = {}
    counter = 0
    for _ in range(30):
        match randomness.choice(["append", "append", "append", "read", "retain", "restart"]):
            case "append":
                pending = []
                for _ in range(randomness.randint(1, 8)):
                    numbers = range(counter, counter + randomness.randint(1, 5))
                    bodies = [b"%d" % number * randomness.randint(1, 60) for number in numbers]
                    counter += len(bodies)
                    pending.append((bodies, _append(log, *bodies, time_ms=counter)))
                for bodies, future in pending:
                    result = await future
                    sent |= dict(enumerate(bodies, result.start_sequence_number))
            case "read":
                bounds = await log.bounds()
                if bounds.begin_sequence_number < bounds.next_sequence_number:
                    start = randomness.randint(0, bounds.next_sequence_number - 1)
                    batches = await _Following(log, start).take(
                        bounds.next_sequence_number, randomness.choice([1, 500, 100_000])
                    )
                    begin = batches[0].base_sequence_number
                    assert begin <= max(start, bounds.begin_sequence_number)
                    assert _bodies(batches) == [sent[n] for n in range(begin, bounds.next_sequence_number)]
            case "retain":
                await log.apply_retention(before_ms=randomness.randint(0, counter + 1), bytes_max=None)
            case "restart":
                await engine.close()
                engine = await open_engine()
                log = engine.log("hub", "0")
        bounds = await log.bounds()
        assert bounds.next_sequence_number == max(sent, default=-1) + 1
    await engine.close()
