"""No event is missing from the files and none is in two, whatever step Capture is ended at."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct
from tests.capture.support import START, append_bodies, capture_files, captured_numbers, read_capture_file
from tests.support.clocks import SetClock

from tidegate.broker import Broker, ControlLog, Partition
from tidegate.capture.destination import CaptureDestinationError, Destination, DirectoryDestination
from tidegate.capture.file_journal import FileJournal
from tidegate.capture.partition_capture import CaptureContext, PartitionCapture
from tidegate.capture.state import PartitionState, StateStore
from tidegate.capture.turns import EncodingShare, EncodingTurns
from tidegate.capture.window import WindowLimits
from tidegate.model.capture import CapturedFile, WindowEnd
from tidegate.server.opening import open_broker
from tidegate.storage.options import LogOptions
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads
from tidegate.wire.capture import SYNC_MARKER_BYTES, guessable_marker

T = TypeVar("T")

_LIMITS = WindowLimits(size_bytes=400, time_ms=60_000, is_empty_skipped=True, event_overhead_bytes=0)
_OPTIONS = LogOptions(journal_bytes=100_000)
"""The usual 16 MB are allocated in each of hundreds of lives."""
_DEADLINE_S = 60.0


class Crash(BaseException):
    """The process ends here: nothing that would handle an error may run."""


class Steps:
    """Counts what reaches the world, and ends it before or after one of them is done."""

    def __init__(self, crash_at: int | None, *, is_done: bool, error: type[BaseException] = Crash) -> None:
        """crash_at: which step, from 0 on; None: none. is_done: the step itself happens first."""
        self.count = 0
        self._crash_at = crash_at
        self._is_done = is_done
        self._error = error

    @contextmanager
    def step(self) -> Iterator[None]:
        is_crash = self.count == self._crash_at
        self.count += 1
        if is_crash and not self._is_done:
            raise self._error("before")
        yield
        if is_crash:
            raise self._error("after")

    def take(self, call: Callable[[], T]) -> T:
        with self.step():
            return call()


class SteppedState(StateStore):
    """A store whose every use is a step; tells when everything is captured."""

    def __init__(self, control: ControlLog, steps: Steps, partition: Partition) -> None:
        super().__init__(control, "hub", "0")
        self._steps = steps
        self._partition = partition
        self.all_captured = asyncio.Event()

    async def load(self) -> PartitionState | None:
        with self._steps.step():
            state = await super().load()
        self._look(state)
        return state

    async def save(self, state: PartitionState) -> None:
        with self._steps.step():
            await super().save(state)
        self._look(state)

    def _look(self, state: PartitionState | None) -> None:
        done = state.next_sequence_number if state is not None and state.planned is None else 0
        if done == self._partition.next_sequence_number:
            self.all_captured.set()


class SteppedDestination(DirectoryDestination):
    """A directory whose every use is a step."""

    def __init__(self, root: Path, steps: Steps) -> None:
        super().__init__(root)
        self._steps = steps

    def spool(self, token: str) -> Path:
        return self._steps.take(partial(super().spool, token))

    def exists(self, name: str) -> bool:
        return self._steps.take(partial(super().exists, name))

    def publish(self, spool: Path, name: str) -> None:
        if (self.root / name).exists():
            assert spool.read_bytes() == (self.root / name).read_bytes()
        self._steps.take(partial(super().publish, spool, name))

    def discard(self, token_prefix: str) -> None:
        self._steps.take(partial(super().discard, token_prefix))


class SteppedJournal(FileJournal):
    """A journal of files where adding one is a step. It fails as a disk does."""

    def __init__(self, directory: Path, steps: Steps) -> None:
        super().__init__(directory)
        self._steps = steps

    def append(self, file: CapturedFile, *, is_again: bool) -> None:
        try:
            self._steps.take(lambda: super(SteppedJournal, self).append(file, is_again=is_again))
        except CaptureDestinationError as error:
            raise OSError("no space left") from error


def _check_listed(work: Path, *, is_whole: bool) -> None:
    """The journal has each file once, in order; is_whole: and none is missing, else one may be."""
    listed, total = FileJournal(work / "state" / "hub").newest(start=0, count=1000)
    names = [file.name for file in reversed(listed)]
    written = [path.relative_to(work / "files").as_posix() for path in capture_files(work / "files")]
    assert total == len(names) == len(set(names))
    assert names == [name for name in written if name in names]
    assert len(names) >= len(written) - (not is_whole)
    for file in listed:
        assert file.file_bytes is None or file.file_bytes == (work / "files" / file.name).stat().st_size
        numbers = [record["SequenceNumber"] for record in read_capture_file(work / "files" / file.name)]
        assert numbers == list(range(file.start_sequence_number, file.until_sequence_number))
        assert file.event_count in (None, len(numbers))


async def _capture_all(
    broker: Broker, work: Path, clock: SetClock, steps: Steps, limits: WindowLimits = _LIMITS
) -> None:
    """One life of the capture of the hub's partition: until everything is captured, or the crash."""
    partition = broker.event_hub("hub").partition("0")
    state = SteppedState(broker.control, steps, partition)
    opened: asyncio.Future[Destination] = asyncio.get_running_loop().create_future()
    opened.set_result(SteppedDestination(work / "files", steps))
    context = CaptureContext(
        destination=opened,
        destination_name=str(work / "files"),
        file_name=lambda partition_id, time_s: f"{partition_id}/{time_s:012}.avro",
        limits=limits,
        clock=clock,
        threads=Threads(2, name="test"),
        encoding=EncodingShare(EncodingTurns()),
        file_turns=asyncio.Semaphore(1),
        journal=SteppedJournal(work / "state" / "hub", steps),
        directory=work / "state",
        retry_s_min=0.001,
        pace_s=0.0,
    )
    capture = PartitionCapture(partition, context, state_store=state, token="hub-0")
    async with TaskOwner("test") as tasks:
        running = tasks.start(capture.run(), name="capture")
        captured = tasks.start(state.all_captured.wait(), name="all captured")
        async with asyncio.timeout(_DEADLINE_S):
            await asyncio.wait([running, captured], return_when=asyncio.FIRST_COMPLETED)
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error


async def _fill(partition: Partition, clock: SetClock, batches: list[tuple[int, int, float]]) -> None:
    for count, size, pause_s in batches:
        clock.advance(pause_s)
        await append_bodies(partition, [b"x" * size for _ in range(count)])
    clock.advance(1000)


_BATCHES = [(3, 90, 0.0), (2, 10, 10.0), (1, 10, 70.0), (9, 100, 0.0), (1, 1, 300.0)]


async def _run_with_crash(
    work: Path, crash_at: int | None, *, is_done: bool, error: type[BaseException]
) -> int:
    """Capture a fixed log with one crash or failure; check the files; returns the steps that it took."""
    clock = SetClock(START)
    broker = await open_broker(work / "data", clock=clock, options=_OPTIONS)
    try:
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        await _fill(partition, clock, _BATCHES)
        steps = Steps(crash_at, is_done=is_done, error=error)
        try:
            await _capture_all(broker, work, clock, steps)
        except Crash:
            await _capture_all(broker, work, clock, Steps(None, is_done=False))
        assert captured_numbers(work / "files") == list(range(partition.next_sequence_number))
        _check_listed(work, is_whole=crash_at is None or error is Crash)
        return steps.count
    finally:
        await broker.close()


@pytest.mark.parametrize("error", [Crash, CaptureDestinationError, OSError])
@pytest.mark.slow
async def test_any_step_may_be_the_last_one(tmp_path: Path, error: type[BaseException]) -> None:
    """A crash before and after each step, and a failure that is not one: the same files each time."""
    steps = await _run_with_crash(tmp_path / "none", None, is_done=False, error=error)
    expected = _contents(tmp_path / "none")
    assert len(expected) >= 4
    assert steps > 4 * len(expected)
    for crash_at in range(steps):
        for is_done in (False, True):
            work = tmp_path / f"{crash_at}-{is_done}"
            await _run_with_crash(work, crash_at, is_done=is_done, error=error)
            assert _contents(work / "files") == expected


def _contents(root: Path) -> dict[str, bytes]:
    """The files' bytes by name, without the markers, which are random."""
    found = {path.name: path.read_bytes() for path in capture_files(root)}
    return {name: data.replace(_marker(data), b"") for name, data in found.items()}


def _marker(data: bytes) -> bytes:
    return data[-SYNC_MARKER_BYTES:]


async def test_a_file_that_cannot_be_listed_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Capture continues: nothing depends on the list."""
    (tmp_path / "state" / "hub" / "files.jsonl").mkdir(parents=True)
    clock = SetClock(START)
    broker = await open_broker(tmp_path / "data", clock=clock)
    try:
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        await _fill(partition, clock, _BATCHES)
        await _capture_all(broker, tmp_path, clock, Steps(None, is_done=False))
        assert captured_numbers(tmp_path / "files") == list(range(partition.next_sequence_number))
        assert ".avro was captured, but cannot be added to the list of files" in caplog.text
    finally:
        await broker.close()


_FIRST_PUBLISH = 5
"""Steps before it: load, discard, exists, save, spool."""


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
async def test_a_file_has_the_marker_that_was_planned(tmp_path: Path, is_of_earlier_version: bool) -> None:
    """A sender that knows it could put a block of its own into an event: it is random, and is saved for when
    the file is written again. A plan of an earlier version gets the marker that a complete file then has."""
    clock = SetClock(START)
    broker = await open_broker(tmp_path / "data", clock=clock)
    try:
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        await append_bodies(partition, [b"x" * 400])
        with pytest.raises(Crash):
            await _capture_all(broker, tmp_path, clock, Steps(_FIRST_PUBLISH, is_done=True))
        (path,) = capture_files(tmp_path / "files")
        before, guessed = path.read_bytes(), guessable_marker(f"0/{path.name}")
        assert guessed not in before
        if is_of_earlier_version:
            store = StateStore(broker.control, "hub", "0")
            state = await store.load()
            assert state is not None
            assert state.planned is not None
            await store.save(replace_struct(state, planned=replace_struct(state.planned, sync_marker=None)))
            before = before.replace(_marker(before), guessed)
            path.write_bytes(before)
        await _capture_all(broker, tmp_path, clock, Steps(None, is_done=False))
        assert path.read_bytes() == before
    finally:
        await broker.close()


async def test_a_complete_file_stays_when_retention_took_its_events(tmp_path: Path) -> None:
    """The crash came between the file and the word that it is complete; the log cannot make it again."""
    clock = SetClock(START)
    broker = await open_broker(tmp_path / "data", clock=clock)
    try:
        hub = await broker.create_event_hub("hub", partition_count=1, retention_hours=1)
        partition = hub.partition("0")
        await append_bodies(partition, [b"x" * 200, b"y" * 200, b"z"])
        with pytest.raises(Crash):
            await _capture_all(broker, tmp_path, clock, Steps(_FIRST_PUBLISH, is_done=True))
        files = tmp_path / "files"
        assert captured_numbers(files) == [0, 1]
        clock.advance(2 * 3600)
        assert await broker.apply_retention() == 1
        await append_bodies(partition, [b"x" * 400])
        await _capture_all(broker, tmp_path, clock, Steps(None, is_done=False))
        assert captured_numbers(files) == [0, 1, 3]
        listed, _ = FileJournal(tmp_path / "state" / "hub").newest(start=0, count=10)
        assert [file.event_count for file in listed] == [1, None]
    finally:
        await broker.close()


async def test_what_closed_a_window_stays_when_the_limits_change(tmp_path: Path) -> None:
    """The file is written under other limits than those that its window closed by."""
    clock = SetClock(START)
    broker = await open_broker(tmp_path / "data", clock=clock)
    try:
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        await append_bodies(partition, [b"x" * 500])
        with pytest.raises(Crash):
            await _capture_all(broker, tmp_path, clock, Steps(_FIRST_PUBLISH, is_done=False))
        larger = replace(_LIMITS, size_bytes=10_000)
        await _capture_all(broker, tmp_path, clock, Steps(None, is_done=False), larger)
        listed, _ = FileJournal(tmp_path / "state" / "hub").newest(start=0, count=10)
        assert [file.closed_by for file in listed] == [WindowEnd.SIZE]
    finally:
        await broker.close()


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.integers(1, 6), st.integers(0, 300), st.sampled_from([0.0, 1.0, 59.0, 61.0, 500.0])
                ),
                max_size=4,
            ),
            st.integers(0, 30),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
@pytest.mark.slow
def test_many_lives_capture_each_event_once(
    lives: list[tuple[list[tuple[int, int, float]], int, bool]],
) -> None:
    """Events come in between crashes at any step; in the end each is in one file, in order."""

    async def live() -> None:
        with tempfile.TemporaryDirectory() as folder:
            work, clock = Path(folder), SetClock(START)
            broker = await open_broker(work / "data", clock=clock, options=_OPTIONS)
            try:
                partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
                await append_bodies(partition, [b"first"])
                for batches, crash_at, is_done in lives:
                    await _fill(partition, clock, batches)
                    with suppress(Crash):
                        await _capture_all(broker, work, clock, Steps(crash_at, is_done=is_done))
                await _capture_all(broker, work, clock, Steps(None, is_done=False))
                assert captured_numbers(work / "files") == list(range(partition.next_sequence_number))
                _check_listed(work, is_whole=True)
            finally:
                await broker.close()

    asyncio.run(live())
