"""What was acknowledged is there after a power loss, once, in order and unaltered; nothing else is made
up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.needs import MORE_SEEDS
from tests.storage.simulated_files import SimulatedFiles

from tidegate.model.errors import LogCorruptError, LogFailedError, LogFullError
from tidegate.storage.check import check_log_directory
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.record import AppendResult, RecordBatch

_OPTIONS = LogOptions(
    segment_bytes_max=6000,
    index_interval_bytes=1000,
    save_interval_bytes=3000,
    journal_bytes=100_000,  # the usual 16 MB of zeros would be a fifth of the time
)
_DATA = Path("/data")
LOSSES = 4


class _History:
    """What one partition was asked and what it promised."""

    def __init__(self) -> None:
        self.sent: dict[bytes, list[int]] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.sequence = 0
        self.acknowledged_count = 0

    def new_batch(self, randomness: random.Random) -> tuple[bytes, list[int]]:
        lengths = [randomness.randrange(0, 900) for _ in range(randomness.randint(1, 4))]
        self.sequence += 1
        payload = self.sequence.to_bytes(8, "big") + randomness.randbytes(sum(lengths))
        lengths[0] += 8
        self.sent[payload] = lengths
        return payload, lengths

    async def check(self, log: FilePartitionLog) -> None:
        """Compare with the recovered log, and adopt what it holds beyond what was promised."""
        batches = await read_all(log)
        expected = log.view.begin_sequence_number
        seen: dict[int, bytes] = {}
        payloads: set[bytes] = set()
        for batch in batches:
            payload = bytes(batch.payload)
            assert batch.base_sequence_number == expected
            assert self.sent[payload] == list(batch.lengths)
            assert payload not in payloads
            payloads.add(payload)
            seen[batch.base_sequence_number] = payload
            expected = batch.until_sequence_number
        assert expected == log.view.next_sequence_number
        held = {
            start: payload
            for start, payload in self.acknowledged.items()
            if start >= log.view.begin_sequence_number
        }
        assert held.items() <= seen.items()
        self.acknowledged = seen


async def read_all(log: FilePartitionLog) -> list[RecordBatch]:
    """Every batch that the log holds."""
    batches: list[RecordBatch] = []
    start = log.view.begin_sequence_number
    while read := await log.read(start, bytes_max=2000):
        batches += read
        start = batches[-1].until_sequence_number
    return batches


async def _work(
    manager: LogManager, files: SimulatedFiles, histories: list[_History], randomness: random.Random
) -> None:
    logs = [manager.open_log("hub", str(number)) for number in range(len(histories))]
    for log, history in zip(logs, histories, strict=True):
        await history.check(log)
    for _ in range(30):
        pending: list[tuple[_History, bytes, asyncio.Future[AppendResult]]] = []
        if randomness.random() < 0.15:
            files.space_left = randomness.randrange(3000)
        files.write_bytes_max = randomness.choice((None, None, None, 700))
        for _ in range(randomness.randint(1, 8)):
            number = randomness.randrange(len(logs))
            payload, lengths = histories[number].new_batch(randomness)
            future = logs[number].append_nowait(
                payload, lengths, enqueued_time_ms=randomness.randrange(10**6)
            )
            if randomness.random() < 0.1:
                future.cancel()
            pending.append((histories[number], payload, future))
        if randomness.random() < 0.06:
            files.sync_error = errno.EIO
            files.sync_error_name = randomness.choice(("/journal.", "/journal.", "hub/0/", "hub/1/0"))
            files.is_failed_sync_forgotten = randomness.random() < 0.5
        manager.commit_queued()
        files.space_left = files.sync_error = None
        for history, payload, future in pending:
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                history.acknowledged[future.result().start_sequence_number] = payload
                history.acknowledged_count += 1
            else:
                assert isinstance(error, LogFullError | LogFailedError)
        if randomness.random() < 0.1:
            log = randomness.choice(logs)
            await _apply_retention(manager, log)


async def _apply_retention(manager: LogManager, log: FilePartitionLog) -> None:
    async def drive() -> None:
        await asyncio.sleep(0)
        manager.commit_queued()

    await asyncio.gather(log.apply_retention(before_ms=0, bytes_max=7000), drive(), return_exceptions=True)


@pytest.fixture(autouse=True)
def _unlogged() -> Iterator[None]:
    """Disks fail by the hundred: what the logs say of it would be a fifth of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


_SEEDS = [seed if seed < 60 else pytest.param(seed, marks=MORE_SEEDS) for seed in range(200)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", _SEEDS)
async def test_acknowledged_events_survive_power_losses(seed: int) -> None:
    """Random appends, cancellations, full disks, short writes, failing syncs and retention, and 4 power
    losses at random moments.

    Unsynced sectors are lost in any combination, as are unsynced creations, renames and removals of files and
    directories. A check finds no damage.
    """
    print(f"seed {seed}")
    await simulate(seed)


@pytest.mark.slow
async def test_the_simulation_notices_a_disk_that_lies_about_syncs() -> None:
    """The canary: on a disk whose sync does nothing, the checks above must fail for some seed."""
    failures = 0
    for seed in range(10):
        try:
            await simulate(seed, is_sync_a_lie=True)
        except (AssertionError, LogCorruptError):
            failures += 1
    assert failures > 5


async def simulate(seed: int, *, is_sync_a_lie: bool = False) -> int:
    """Lose power ``LOSSES`` times; returns how many batches were acknowledged. Raises AssertionError and
    LogCorruptError."""
    randomness = random.Random(seed)
    files = SimulatedFiles()
    histories = [_History() for _ in range(4)]
    # Small files begin again often; some rounds are too large for them.
    options = replace(
        _OPTIONS,
        journal_bytes=randomness.choice((12_000, 20_000, 60_000)),
        journal_part_bytes=randomness.choice((2000, 50_000)),
    )
    manager = await LogManager.open(_DATA, options=options, files=files, is_threaded=False)
    await manager.create_logs("hub", len(histories))
    await manager.close()
    for _ in range(LOSSES):
        files.operations_left = randomness.randrange(5, 250)
        files.is_sync_a_lie = is_sync_a_lie
        try:
            manager = await LogManager.open(_DATA, options=options, files=files, is_threaded=False)
            await _work(manager, files, histories, randomness)
        except LogFailedError as error:
            if "the power is gone" not in str(error):  # while a log was being opened
                raise
        files = files.lose_power(randomness)
        assert check_log_directory(_DATA, files=files).damages == []
    manager = await LogManager.open(_DATA, options=_OPTIONS, files=files, is_threaded=False)
    for number, history in enumerate(histories):
        await history.check(manager.open_log("hub", str(number)))
    await manager.close()
    return sum(history.acknowledged_count for history in histories)
