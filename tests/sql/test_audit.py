"""The audit's comparison: against a model that looks at every number by itself, and by example."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql import Audit, DeadLetterStatus, Finding, FindingKind, PartitionAudit, StrayRows
from tidegate.sql.audit.audit import audit_partition as compare

OPEN, REDRIVEN, DISCARDED = DeadLetterStatus
numbers = st.integers(0, 24)


def _naive(
    rows: list[int], letters: dict[int, DeadLetterStatus], start: int, checkpoint: int | None, log_until: int
) -> dict[FindingKind, list[int]]:
    """Which events have which thing wrong, by the words of the table in the module."""
    until = start if checkpoint is None else max(start, checkpoint)
    seen = range(start, 40)
    covering = {number for number, status in letters.items() if status is not REDRIVEN}
    return {
        FindingKind.GAP: [n for n in range(start, until) if n not in rows and n not in covering],
        FindingKind.DUPLICATE: [n for n in seen if rows.count(n) > 1],
        FindingKind.ROW_AND_DEAD_LETTER: [n for n in seen if n in rows and letters.get(n) is OPEN],
        FindingKind.BEYOND_CHECKPOINT: [n for n in seen if n >= until and (n in rows or n in letters)],
        FindingKind.BEYOND_LOG: [n for n in range(start, until) if n >= log_until],
    }


def _joined(kind: FindingKind, wrong: list[int]) -> list[Finding]:
    groups = itertools.groupby(enumerate(wrong), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [Finding(kind, run[0], run[-1] + 1) for run in runs]


@given(
    rows=st.lists(numbers, max_size=40).map(sorted),
    letters=st.dictionaries(numbers, st.sampled_from(DeadLetterStatus), max_size=12),
    start=numbers,
    checkpoint=st.none() | numbers,
    log_until=numbers,
    findings_max=st.integers(0, 4) | st.just(100),
)
@example(rows=[3, 3, 4, 4, 5], letters={3: OPEN}, start=3, checkpoint=5, log_until=9, findings_max=100)
@pytest.mark.slow
def test_the_report_equals_a_naive_model(
    rows: list[int],
    letters: dict[int, DeadLetterStatus],
    start: int,
    checkpoint: int | None,
    log_until: int,
    findings_max: int,
) -> None:
    """Every event that has something wrong is named, in ranges as long as can be; counts never depend on the
    limit of the list."""
    found = compare(
        rows,
        sorted(letters.items()),
        partition_id="0",
        start_sequence_number=start,
        checkpoint_sequence_number=checkpoint,
        log_until_sequence_number=log_until,
        findings_max=findings_max,
    )
    expected = _naive(rows, letters, start, checkpoint, log_until)
    assert {kind: found.count(kind) for kind in FindingKind} == {
        kind: len(wrong) for kind, wrong in expected.items()
    }
    ranges = {kind: _joined(kind, wrong) for kind, wrong in expected.items()}
    assert list(found.findings) == [item for listed in ranges.values() for item in listed[:findings_max]]
    assert found.finding_count == sum(map(len, ranges.values()))
    assert found.rows == len([number for number in rows if number >= start])
    considered = [status for number, status in letters.items() if number >= start]
    assert found.dead_letters_open == considered.count(OPEN)
    assert found.dead_letters_redriven == considered.count(REDRIVEN)
    assert found.dead_letters_discarded == considered.count(DISCARDED)


def _audited(
    rows: list[int], letters: list[tuple[int, DeadLetterStatus]], checkpoint: int = 10
) -> PartitionAudit:
    return compare(
        rows, letters, partition_id="0", start_sequence_number=0, checkpoint_sequence_number=checkpoint
    )


def test_rows_and_dead_letters_that_account_for_all() -> None:
    """A row, an open and a discarded dead letter each account for their event; closed ones may have a row."""
    found = _audited([0, 1, 3, 4, 5, 6, 8, 9], [(2, OPEN), (3, REDRIVEN), (5, DISCARDED), (7, DISCARDED)])
    assert found.events == 10
    assert found.findings == ()
    assert Audit((found,)).is_sound()
    assert not Audit((found,), (StrayRows(None, 1),)).is_sound()


def test_what_is_allowed_is_still_named() -> None:
    """Allowing gaps changes the verdict, not what is listed."""
    audit = Audit((_audited([0, 1, 2, 6, 7, 8, 9], [(4, REDRIVEN)]),))
    assert audit.partitions[0].findings == (Finding(FindingKind.GAP, 3, 6),)
    assert audit.count(FindingKind.GAP) == 3
    assert not audit.is_sound()
    assert audit.is_sound(allowed=frozenset({FindingKind.GAP}))


def test_numbers_that_descend_are_refused() -> None:
    """A reader that forgot the order gets an error, not a wrong report."""
    with pytest.raises(InvalidArgumentError, match="3 comes after 5"):
        _audited([4, 5, 3], [])
    with pytest.raises(InvalidArgumentError, match="2 comes after 2"):
        _audited([], [(2, OPEN), (2, OPEN)])
