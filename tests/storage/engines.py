"""Engines for tests: one in memory, and one that is late with everything that it may be late with."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidegate.model.errors import TidegateError
from tidegate.model.history import History
from tidegate.storage.engine import (
    Bounds,
    Cell,
    ControlChange,
    ControlConflictError,
    LogReader,
    PartitionLog,
    closed_error,
)
from tidegate.storage.producers import ProducerState, ProducerTable
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch, body_crc, encode_lengths

PRODUCERS_MAX = 1000


class Memory:
    """What outlives an engine in memory."""

    def __init__(self) -> None:
        self.logs: dict[str, list[MemoryLog]] = {}
        self.cells: dict[str, Cell] = {}
        self.revision = 0
        self.lines: dict[str, list[bytes]] = {}


class MemoryEngine:
    """A ``LogEngine`` in memory; it answers at once."""

    is_congested = False
    backups = None

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.control = MemoryControlLog(self.memory)
        for log in self._all_logs():
            log.reopen()

    def open_lines(self, name: str) -> MemoryLines:
        return MemoryLines(self.memory.lines.setdefault(name, []))

    async def create_logs(self, hub_id: str, partition_count: int) -> None:
        logs = self.memory.logs.setdefault(hub_id, [])
        logs += [MemoryLog() for _ in range(len(logs), partition_count)]

    def log(self, hub_id: str, partition_id: str) -> PartitionLog:
        return self.memory.logs[hub_id][int(partition_id)]

    def close_logs(self, hub_id: str) -> None:
        for log in self.memory.logs.get(hub_id, ()):
            log.close()

    async def delete_logs(self, hub_id: str) -> None:
        self.close_logs(hub_id)
        self.memory.logs.pop(hub_id, None)

    def unknown_hub_ids(self, known: Iterable[str]) -> list[str]:
        return sorted(set(self.memory.logs) - set(known))

    async def wait_uncongested(self) -> None:
        pass

    async def close(self) -> None:
        for log in self._all_logs():
            log.close()

    def _all_logs(self) -> list[MemoryLog]:
        return [log for logs in self.memory.logs.values() for log in logs]


class MemoryControlLog:
    """A ``ControlLog``."""

    failure: TidegateError | None = None

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def place(self, key: str) -> str:
        return f"memory/{key}"

    async def read(self, key: str) -> Cell | None:
        return self._memory.cells.get(key)

    async def read_all(self, prefix: str) -> dict[str, Cell]:
        return {key: cell for key, cell in self._memory.cells.items() if key.startswith(prefix)}

    async def change(self, key: str, value: bytes | None, *, expected_version: int) -> int:
        return await self.change_all([ControlChange(key, value, expected_version)])

    async def change_all(self, changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        memory = self._memory
        for each in changes:
            cell = memory.cells.get(each.key)
            version = 0 if cell is None else cell.version
            if version != each.expected_version:
                raise ControlConflictError(f"Version {version} of the {each.key} came before this change.")
        memory.revision += 1
        for each in changes:
            if each.value is None:
                memory.cells.pop(each.key, None)
            else:
                memory.cells[each.key] = Cell(memory.revision, each.value)
        return memory.revision


class MemoryLines:
    """A ``LineLog``."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def read(self) -> list[bytes]:
        return [line.removesuffix(b"\n") for line in self._lines]

    def append(self, line: bytes) -> None:
        self._lines.append(line)

    def close(self) -> None:
        pass


class MemoryLog:
    """A ``PartitionLog``; every batch is a unit of retention."""

    failure: TidegateError | None = None

    def __init__(self) -> None:
        self.is_closed = False
        self.appended = (0, 0)
        self.readers: dict[MemoryReader, Callable[[], None]] = {}
        self._batches: list[RecordBatch] = []
        self._next = 0
        self._last_ms: int | None = None
        self._producers = ProducerTable(PRODUCERS_MAX)
        self._histories: tuple[History, ...] = (History(secrets.token_hex(16), 0),)

    def reopen(self) -> None:
        self.is_closed, self.appended = False, (0, 0)
        kept = tuple(each for each in self._histories if each.first_sequence_number < self._next)
        self._histories = (*kept, History(secrets.token_hex(16), self._next))

    @property
    def known_bounds(self) -> Bounds:
        begin = self._batches[0].base_sequence_number if self._batches else self._next
        return Bounds(begin, self._next, self._last_ms, self._histories)

    @property
    def stored_bytes(self) -> int:
        return sum(len(batch.payload) for batch in self._batches)

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        table = encode_lengths(len(payload), lengths)
        if producer is not None:
            producer.validate()
        if self.is_closed:
            raise closed_error()
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.store(future, bytes(payload), table, lengths, enqueued_time_ms, producer)
        return future

    def store(
        self,
        future: asyncio.Future[AppendResult],
        payload: bytes,
        table: bytes,
        lengths: Sequence[int],
        time_ms: int,
        producer: ProducerBatch | None,
    ) -> None:
        """Store a batch whose form was checked, unless its future was cancelled."""
        if future.cancelled():
            return
        crc = body_crc(payload, table)
        try:
            repeated = producer and self._producers.check(producer, len(lengths), lambda: crc)
        except TidegateError as error:
            future.set_exception(error)
            return
        if repeated:
            future.set_result(repeated)
            return
        start, self._next = self._next, self._next + len(lengths)
        self._last_ms = time_ms = max(time_ms, self._last_ms or 0)
        if producer is not None:
            self._producers.record(producer, len(lengths), start, time_ms, crc)
            self._producers.trim()
        self._batches.append(RecordBatch(start, time_ms, array("I", lengths), memoryview(payload)))
        self.appended = (self.appended[0] + len(lengths), self.appended[1] + len(payload))
        future.set_result(AppendResult(start, self._next, time_ms))
        self._wake()

    def open_reader(self, start_sequence_number: int, wake: Callable[[], None]) -> LogReader:
        reader = MemoryReader(self, start_sequence_number)
        self.readers[reader] = wake
        return reader

    async def read(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        return self.batches_from(start_sequence_number, bytes_max)

    def batches_from(self, start: int, bytes_max: int) -> list[RecordBatch]:
        index = bisect_left(self._batches, start + 1, key=lambda batch: batch.until_sequence_number)
        found: list[RecordBatch] = []
        size = 0
        for batch in self._batches[index:]:
            if found and size + len(batch.payload) > bytes_max:
                break
            found.append(batch)
            size += len(batch.payload)
        return found

    async def bounds(self) -> Bounds:
        if self.is_closed:
            raise closed_error()
        return self.known_bounds

    async def sequence_number_at_time(self, time_ms: int) -> int:
        index = bisect_left(self._batches, time_ms, key=lambda batch: batch.enqueued_time_ms)
        return self._batches[index].base_sequence_number if index < len(self._batches) else self._next

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        if self.is_closed:
            raise closed_error()
        return self._producers.get(producer_id)

    @property
    def producers_known_since(self) -> int:
        return self._producers.known_since

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None, seal_before_ms: int = 0) -> int:
        if self.is_closed:
            raise closed_error()
        count, left = 0, self.stored_bytes
        for batch in self._batches:
            left -= len(batch.payload)
            if batch.enqueued_time_ms >= before_ms and (bytes_max is None or left < bytes_max):
                break
            count += 1
        del self._batches[:count]
        return count

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._wake()

    def _wake(self) -> None:
        for wake in list(self.readers.values()):
            wake()


class MemoryReader:
    """A ``LogReader``."""

    def __init__(self, log: MemoryLog, start_sequence_number: int) -> None:
        self._log = log
        self._next = start_sequence_number

    def take(self, bytes_max: int) -> list[RecordBatch]:
        batches = self._log.batches_from(self._next, bytes_max)
        if batches:
            self._next = batches[-1].until_sequence_number
        return batches

    def close(self) -> None:
        self._log.readers.pop(self, None)


class SlowEngine(MemoryEngine):
    """Another machine, ``delay_s`` away: it answers late, and its bounds are known as they were last seen."""

    def __init__(self, memory: Memory | None = None, *, delay_s: float = 0.002) -> None:
        super().__init__(memory)
        self._delay_s = delay_s
        self._logs: dict[tuple[str, str], SlowLog] = {}
        self.control = SlowControlLog(self.memory, delay_s)

    async def create_logs(self, hub_id: str, partition_count: int) -> None:
        await asyncio.sleep(self._delay_s)
        await super().create_logs(hub_id, partition_count)

    def log(self, hub_id: str, partition_id: str) -> PartitionLog:
        key = (hub_id, partition_id)
        if key not in self._logs:
            self._logs[key] = SlowLog(self.memory.logs[hub_id][int(partition_id)], self._delay_s)
        return self._logs[key]

    async def delete_logs(self, hub_id: str) -> None:
        self.close_logs(hub_id)
        await asyncio.sleep(self._delay_s)
        await super().delete_logs(hub_id)

    async def close(self) -> None:
        for log in self._logs.values():
            await log.finish()
        await super().close()


class SlowControlLog(MemoryControlLog):
    """A ``ControlLog`` that is far away."""

    def __init__(self, memory: Memory, delay_s: float) -> None:
        super().__init__(memory)
        self._delay_s = delay_s

    async def read(self, key: str) -> Cell | None:
        await asyncio.sleep(self._delay_s)
        return await super().read(key)

    async def read_all(self, prefix: str) -> dict[str, Cell]:
        await asyncio.sleep(self._delay_s)
        return await super().read_all(prefix)

    async def change_all(self, changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        await asyncio.sleep(self._delay_s)
        version = await super().change_all(changes, may_borrow=may_borrow)
        await asyncio.sleep(self._delay_s)
        return version


class SlowLog:
    """A ``PartitionLog`` that is far away."""

    failure: TidegateError | None = None

    def __init__(self, log: MemoryLog, delay_s: float) -> None:
        self.inner = log
        self.delay_s = delay_s
        self.known_bounds = log.known_bounds
        self._sent: deque[Callable[[], None]] = deque()

    @property
    def is_closed(self) -> bool:
        return self.inner.is_closed

    @property
    def appended(self) -> tuple[int, int]:
        return self.inner.appended

    @property
    def stored_bytes(self) -> int:
        return self.inner.stored_bytes

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        table = encode_lengths(len(payload), lengths)
        if producer is not None:
            producer.validate()
        if self.is_closed:
            raise closed_error()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AppendResult] = loop.create_future()
        stored: asyncio.Future[AppendResult] = loop.create_future()
        data, counted = bytes(payload), list(lengths)

        def pass_on(_: object) -> None:
            loop.call_later(self.delay_s, self._answer, answer, stored)

        def store() -> None:
            if answer.cancelled():
                stored.cancel()
            self.inner.store(stored, data, table, counted, enqueued_time_ms, producer)

        stored.add_done_callback(pass_on)
        self._sent.append(store)
        loop.call_later(self.delay_s, self._arrive)
        return answer

    def _arrive(self) -> None:
        if self._sent:  # in the order of the calls, whatever the timers do
            self._sent.popleft()()

    def _answer(self, answer: asyncio.Future[AppendResult], stored: asyncio.Future[AppendResult]) -> None:
        self.known_bounds = self.inner.known_bounds
        if answer.done() or stored.cancelled():
            return
        error = stored.exception()
        if error is None:
            answer.set_result(stored.result())
        else:
            answer.set_exception(error)

    async def finish(self) -> None:
        """Let everything that was sent arrive, and be answered."""
        while self._sent:
            self._sent.popleft()()
        await asyncio.sleep(2 * self.delay_s)

    def open_reader(self, start_sequence_number: int, wake: Callable[[], None]) -> LogReader:
        return SlowReader(self, start_sequence_number, wake)

    async def read(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        await asyncio.sleep(self.delay_s)
        return await self.inner.read(start_sequence_number, bytes_max=bytes_max)

    async def bounds(self) -> Bounds:
        await asyncio.sleep(self.delay_s)
        self.known_bounds = await self.inner.bounds()
        return self.known_bounds

    async def sequence_number_at_time(self, time_ms: int) -> int:
        await asyncio.sleep(self.delay_s)
        return await self.inner.sequence_number_at_time(time_ms)

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        if self.is_closed:
            raise closed_error()
        await asyncio.sleep(self.delay_s)
        while self._sent:
            self._sent.popleft()()
        return await self.inner.producer_state(producer_id)

    @property
    def producers_known_since(self) -> int:
        return self.inner.producers_known_since

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None, seal_before_ms: int = 0) -> int:
        await asyncio.sleep(self.delay_s)
        removed = await self.inner.apply_retention(before_ms=before_ms, bytes_max=bytes_max)
        self.known_bounds = self.inner.known_bounds
        return removed


class SlowReader:
    """A ``LogReader`` whose events are fetched ahead of what is taken."""

    _BYTES_AHEAD = 10_000

    def __init__(self, log: SlowLog, start_sequence_number: int, wake: Callable[[], None]) -> None:
        self._log = log
        self._wake = wake
        self._inner = log.inner.open_reader(start_sequence_number, self._on_more)
        self._arrived: deque[RecordBatch] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._is_end_told = False
        self._on_more()

    def take(self, bytes_max: int) -> list[RecordBatch]:
        taken: list[RecordBatch] = []
        size = 0
        while self._arrived and (not taken or size + len(self._arrived[0].payload) <= bytes_max):
            size += len(self._arrived[0].payload)
            taken.append(self._arrived.popleft())
        self._on_more()
        return taken

    def close(self) -> None:
        self._is_ended = True
        self._inner.close()
        if self._timer is not None:
            self._timer.cancel()

    def _on_more(self) -> None:
        if self._timer is None and not self._is_ended:
            self._timer = asyncio.get_running_loop().call_later(self._log.delay_s, self._fetch)

    def _fetch(self) -> None:
        self._timer = None
        if sum(len(batch.payload) for batch in self._arrived) < self._BYTES_AHEAD:
            self._arrived.extend(self._inner.take(1000))
            self._log.known_bounds = self._log.inner.known_bounds
        is_end_news = self._log.is_closed and not self._is_end_told
        self._is_end_told = self._log.is_closed
        if self._arrived or is_end_news:
            self._wake()
