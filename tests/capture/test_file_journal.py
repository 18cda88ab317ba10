"""The list of written files: the newest first, each once, within its bytes, whatever a crash has left."""

from __future__ import annotations

import json
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.capture.file_journal import FileJournal
from tidegate.model.capture import CapturedFile, WindowEnd

_LINE_BYTES_MAX = 300
_BYTES_MAX = 6 * _LINE_BYTES_MAX


def _file(number: int) -> CapturedFile:
    end = WindowEnd.SIZE if number % 2 else WindowEnd.TIME
    return CapturedFile(
        f"ns/hub/0/{number}.avro", "/files", "0", number, number + 1, 1, 700, 1000, 2000, 3000 + number, end
    )


@given(
    st.lists(
        st.one_of(
            st.just("append"),
            st.just("append"),
            st.tuples(st.just("again"), st.integers(1, 20)),
            st.tuples(st.just("torn"), st.binary(min_size=1, max_size=30)),
        ),
        max_size=60,
    ),
    st.integers(0, 5),
    st.integers(1, 7),
)
@pytest.mark.slow
def test_a_journal_tells_the_latest_files(
    steps: list[str | tuple[str, int | bytes]], start: int, count: int
) -> None:
    """Files are added, added again as after a restart, and lines are cut as by a crash: what is listed is the
    end of what was added, in order; it is never shorter than half of the bytes hold; pages are parts of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        added: list[CapturedFile] = []
        torn_bytes = 0
        for step in steps:
            journal = FileJournal(Path(folder) / "hub", bytes_max=_BYTES_MAX)
            match step:
                case "append":
                    added.append(_file(len(added)))
                    journal.append(added[-1], is_again=False)
                case ("again", int(back)):
                    known, _ = journal.newest(start=0, count=1000)
                    if known:
                        journal.append(known[-1 - back % len(known)], is_again=True)
                case ("torn", bytes(data)) if added:
                    with journal.path.open("ab") as file:
                        torn_bytes += file.write(b'{"name": ' + data.replace(b"\n", b"")) + 1
        journal = FileJournal(Path(folder) / "hub", bytes_max=_BYTES_MAX)
        listed, total = journal.newest(start=0, count=1000)
        assert listed == added[::-1][: len(listed)]
        assert total >= len(listed)
        if not torn_bytes:
            assert len(listed) >= min(len(added), _BYTES_MAX // 2 // _LINE_BYTES_MAX)
        if total == len(listed):
            assert journal.newest(start=start, count=count)[0] == listed[start : start + count]
        kept = sum(path.stat().st_size for path in (Path(folder) / "hub").glob("*"))
        assert kept <= _BYTES_MAX + torn_bytes


def test_the_list_is_read_once_for_all_that_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the disk and the loop: live pages ask every second, and the list may have megabytes."""
    journal = FileJournal(tmp_path)
    read, reads = FileJournal._read, 0

    def counted(self: FileJournal) -> list[bytes]:
        nonlocal reads
        reads += 1
        return read(self)

    monkeypatch.setattr(FileJournal, "_read", counted)
    for number in range(3):
        journal.append(_file(number), is_again=False)
        for _ in range(5):
            assert journal.newest(start=0, count=2)[0][0] == _file(number)
            assert journal.newest(start=1, count=2)[1] == number + 1
    assert reads == 3 * 2
    for start in range(100):
        journal.newest(start=start, count=2)
    assert len(journal._answers) <= 8


@pytest.mark.parametrize(
    "change",
    [
        {"name": 5},
        {"destination": "\ud800"},
        {"event_count": "1"},
        {"written_at_ms": None},
        {"written_at_ms": True},
        {"written_at_ms": 10**15},
        {"window_start_ms": -1},
        {"until_sequence_number": 2**63},
        {"closed_by": "moon"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_line_that_is_not_ours_is_left_out(tmp_path: Path, change: dict[str, object]) -> None:
    """It costs its own line, and not the page."""
    journal = FileJournal(tmp_path)
    journal.append(_file(1), is_again=False)
    with journal.path.open("a") as file:
        file.write(
            json.dumps(json.loads(journal.path.read_text()) | change) + "\n" + "[" * 100_000 + "\n[]\n"
        )
    journal.append(_file(2), is_again=False)
    assert journal.newest(start=0, count=10) == ([_file(2), _file(1)], 5)
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_a_file_is_listed_once_per_destination(tmp_path: Path) -> None:
    """One that was decided before the settings changed may be in the old one and in the new one."""
    journal = FileJournal(tmp_path)
    old, new = _file(1), replace(_file(1), destination="/new")
    journal.append(old, is_again=False)
    journal.append(new, is_again=True)
    journal.append(new, is_again=True)
    assert journal.newest(start=0, count=10) == ([new, old], 2)
