"""Idempotent producers: a repeat is recognised, a gap and an old epoch are refused."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest

from tidegate.model.errors import OutOfOrderSequenceError, ProducerEpochStolenError, RepeatDiffersError
from tidegate.storage.manifest import Manifest, decode_manifest, encode_manifest
from tidegate.storage.producers import SEQUENCE_MODULUS, ProducerState, ProducerTable, StoredBatch
from tidegate.storage.record import AppendResult, ProducerBatch


def _table() -> ProducerTable:
    table = ProducerTable(10)
    table.record(ProducerBatch(1, 3, 0), 4, 100, 5000)
    table.record(ProducerBatch(1, 3, 4), 2, 110, 5001)
    return table


@pytest.mark.parametrize(
    ("batch", "count", "expected"),
    [
        (ProducerBatch(1, 3, 6), 1, None),
        (ProducerBatch(1, 3, 0), 4, AppendResult(100, 104, 5000, True)),
        (ProducerBatch(1, 3, 4), 2, AppendResult(110, 112, 5001, True)),
        (ProducerBatch(1, 3, 1), 2, AppendResult(101, 103, 5000, True)),
        (ProducerBatch(1, 4, 0), 1, None),
        (ProducerBatch(1, 4, 6), 1, None),
        (ProducerBatch(2, 0, 0), 1, None),
        (ProducerBatch(2, 0, 43, is_start=True), 1, None),
        (ProducerBatch(1, 4, 43, is_start=True), 1, None),
    ],
)
def test_the_next_batch_and_repeats(batch: ProducerBatch, count: int, expected: AppendResult | None) -> None:
    """What comes next is let in; what lies in the log is answered with its place; a new epoch begins at 0
    or goes on.
    """
    assert _table().check(batch, count) == expected


@pytest.mark.parametrize(
    ("batch", "count", "error"),
    [
        (ProducerBatch(1, 3, 7), 1, OutOfOrderSequenceError),
        (ProducerBatch(1, 3, 2), 4, OutOfOrderSequenceError),
        (ProducerBatch(1, 4, 3), 1, OutOfOrderSequenceError),
        (ProducerBatch(9, 0, 5), 1, OutOfOrderSequenceError),
        (ProducerBatch(1, 3, 43, is_start=True), 1, OutOfOrderSequenceError),
        (ProducerBatch(1, 2, 6, is_start=True), 1, ProducerEpochStolenError),
        (ProducerBatch(1, 2, 6), 1, ProducerEpochStolenError),
    ],
)
def test_gaps_and_old_epochs(batch: ProducerBatch, count: int, error: type[Exception]) -> None:
    """A gap, a repeat cut differently, an unknown producer in mid-count, and an epoch that was taken over."""
    with pytest.raises(error):
        _table().check(batch, count)


def test_a_repeatable_producer_repeats_the_same_or_is_refused() -> None:
    """Other bytes, or another cut, under a stored number are refused, and never taken for a repeat."""
    table = ProducerTable(10)
    table.record(ProducerBatch(1, 3, 0), 4, 100, 5000, 0xABCD)
    repeat = ProducerBatch(1, 3, 0, is_repeatable=True)
    assert table.check(repeat, 4, lambda: 0xABCD) == AppendResult(100, 104, 5000, True)
    for batch, count, crc in (
        (repeat, 4, 0xABCE),
        (repeat, 3, 0xABCD),
        (ProducerBatch(1, 3, 1, is_repeatable=True), 3, 0xABCD),
    ):
        with pytest.raises(RepeatDiffersError, match="events that differ from those stored"):
            table.check(batch, count, lambda crc=crc: crc)  # type: ignore[misc]


def test_a_repeatable_producer_counts_from_0_in_each_epoch() -> None:
    """A batch behind a refused first one is not taken for the next of the last epoch, though numbers fit."""
    table = ProducerTable(10)
    table.record(ProducerBatch(1, 3, 0), 100, 0, 5000)
    with pytest.raises(OutOfOrderSequenceError):
        table.check(ProducerBatch(1, 4, 100, is_repeatable=True), 100)
    assert table.check(ProducerBatch(1, 4, 0, is_repeatable=True), 100) is None


def test_the_count_wraps() -> None:
    """After 2**31 events a producer's count begins at 0 again, and repeats across the wrap are known."""
    table = ProducerTable(10)
    table.restore(1, ProducerState(0, SEQUENCE_MODULUS - 2))
    table.record(ProducerBatch(1, 0, SEQUENCE_MODULUS - 2), 5, 7, 1)
    assert table.check(ProducerBatch(1, 0, 3), 1) is None
    assert table.check(ProducerBatch(1, 0, 1), 2) == AppendResult(10, 12, 1, True)


def test_the_longest_silent_is_forgotten_first() -> None:
    """The table is bounded, and a busy producer stays in it."""
    table = ProducerTable(2)
    for producer_id in (1, 2, 1, 3):
        table.record(ProducerBatch(producer_id, 0, 0), 1, 0, 0)
        table.trim()
    assert set(table.states) == {1, 3}


def _full_table() -> ProducerTable:
    """Of 1,000 producers with more batches than are remembered."""
    table = ProducerTable(1000)
    number = 10**9
    for sequence in range(20):
        for producer_id in range(10**12, 10**12 + 1000):
            batch = ProducerBatch(producer_id, 0, sequence)
            table.record(batch, 1, number, 1_790_000_000_000 + number % 10**6, 3_000_000_000 + number % 10**8)
            number += 1
    return table


def test_a_full_table_takes_a_megabyte() -> None:
    """No limit but that on producers counts it: anyone who may send can fill the table of each partition."""
    gc.collect()
    tracemalloc.start()
    table = _full_table()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.states) == 1000
    assert held < 1_100_000


def test_the_last_16_batches_are_remembered() -> None:
    """A repeat from before them is refused."""
    table = _full_table()
    state = table.get(10**12)
    assert state is not None
    assert [stored.sequence for stored in state.recent] == list(range(4, 20))
    assert state.recent[0].start_sequence_number == 10**9 + 4000
    repeated = table.check(ProducerBatch(10**12, 0, 4), 1)
    assert repeated is not None
    assert repeated.start_sequence_number == 10**9 + 4000
    with pytest.raises(OutOfOrderSequenceError):
        table.check(ProducerBatch(10**12, 0, 3), 1)


def test_the_manifest_has_batches_as_earlier_versions_wrote_them() -> None:
    """Protects upgrades in both directions: JSON arrays; in the first versions without a checksum."""
    table = ProducerTable(10)
    table.record(ProducerBatch(1, 3, 0), 4, 100, 5000, 0xABCD)
    table.record(ProducerBatch(1, 3, 4), 2, 110, 5001)
    table.restore(2, ProducerState(0, 7, "[6,1,90,4999]"))
    table.restore(3, ProducerState(0, 0))
    manifest = Manifest(1, "hub/0", bytes(16), producers=table.states)
    copy = encode_manifest(manifest)
    text = copy[copy.index(b"{") : copy.rindex(b"}") + 1]
    document = json.loads(text)
    assert text == json.dumps(document, separators=(",", ":")).encode()
    assert document["producers"] == [
        [1, 3, 6, [[0, 4, 100, 5000, 0xABCD], [4, 2, 110, 5001, None]]],
        [2, 0, 7, [[6, 1, 90, 4999]]],
        [3, 0, 0, []],
    ]
    read = decode_manifest(bytes(4096) + copy, Path("data/logs/hub/0"))
    assert read is not None
    assert read.producers == manifest.producers
    assert read.producers is not None
    assert read.producers[2].recent == [StoredBatch(6, 1, 90, 4999, None)]


def test_since_when_all_producers_are_known() -> None:
    """A producer that is unknown has written nothing from there on: it would have been the last forgotten."""
    table = ProducerTable(2)
    known: list[int] = []
    for number, producer_id in enumerate((1, 2, 1, 3, 4)):
        table.record(ProducerBatch(producer_id, 0, 0), 1, 10 * number, 0)
        table.trim()
        known.append(table.known_since)
    assert known == [0, 0, 10, 20, 30]  # a full table knows of no producer before its longest silent


def test_a_batch_that_is_being_recorded_hides_no_forgotten_producer() -> None:
    """The writer's thread takes a producer out of a full table and puts it back, and another one looks."""
    seen: list[int] = []

    class Watched(dict[int, ProducerState]):
        def __setitem__(self, key: int, value: ProducerState) -> None:
            if len(table.states) == 2:  # a full one without the producer that is recorded
                seen.append(table.known_since)
            super().__setitem__(key, value)

    table = ProducerTable(3)
    table._states = Watched()
    for number, producer_id in enumerate((1, 2, 3, 4, 4)):
        table.record(ProducerBatch(producer_id, 0, 0), 1, 10 * number, 0)
        table.trim()
    assert seen[-1] == 10
