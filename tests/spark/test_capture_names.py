"""What the name of a capture file says about its events, without opening it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.capture.window import Window, WindowLimits
from tidegate.model.capture import NAME_FIELDS, NAME_FORMAT_DEFAULT
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.capture.names import CaptureFile, NameFormat, check_one_hub, prune
from tidegate.spark.source.pushdown import Bounds
from tidegate.wire.capture import capture_file_name

_EPOCH_S = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
_separators = st.text("abz019._=/-", min_size=1, max_size=4).filter(lambda text: "//" not in text)


@st.composite
def _formats(draw: st.DrawFn) -> str:
    """Each field in any order, some twice, with a text between them that starts and ends with no digit."""
    fields = draw(st.permutations(list(NAME_FIELDS)))
    fields += draw(st.lists(st.sampled_from(list(NAME_FIELDS)), max_size=2))
    parts = [f"{{{field}}}" for field in fields]
    return "".join(part + draw(st.sampled_from(["/", "_/x-", "=/", ".part/"])) for part in parts) + "end"


@pytest.mark.slow
@given(
    name_format=_formats(),
    namespace=st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True),
    event_hub=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True),
    partition_id=st.integers(0, 2000).map(str),
    time_s=st.integers(0, 4_000_000_000),
    is_chosen=st.booleans(),
)
def test_a_name_is_read_back(
    name_format: str, namespace: str, event_hub: str, partition_id: str, time_s: int, is_chosen: bool
) -> None:
    """Whatever the format: what Capture put into a name comes out of it."""
    name = capture_file_name(
        name_format, namespace=namespace, event_hub=event_hub, partition_id=partition_id, time_s=time_s
    )
    chosen = {"namespace": namespace, "event_hub": event_hub} if is_chosen else {}
    names = NameFormat(name_format, **chosen)
    file = CaptureFile(name, namespace, event_hub, partition_id, time_s, 7)
    assert names.parse(name, 7) == file
    assert names.is_wanted(file)
    assert name.startswith(names.folder)
    if is_chosen:
        other = NameFormat(name_format, namespace=namespace + "x", event_hub=event_hub)
        assert not other.is_wanted(other.parse(name, 7))


@st.composite
def _captured_files(draw: st.DrawFn) -> list[tuple[CaptureFile, list[int]]]:
    """Files of a partition as our Capture plans and names them, each with the times of its events."""
    limits = WindowLimits(
        draw(st.integers(1, 50)), draw(st.integers(60, 900)) * 1000, True, event_overhead_bytes=0
    )
    steps = draw(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=40))
    times, time_ms = [], _EPOCH_S * 1000
    for step in steps:
        time_ms += step
        times.append(time_ms)
    files: list[tuple[CaptureFile, list[int]]] = []
    number, start_ms, last_name_s = 0, None, -1
    while number < len(times):
        window = Window(limits, start_sequence_number=number, start_ms=start_ms)
        for later in range(number, len(times)):
            window.add_batch(later, [5], times[later])
        if window.closed is None:
            window.pass_time(times[-1] + 2 * limits.time_ms)
        closed = window.closed
        assert closed is not None
        last_name_s = max(closed.start_ms // 1000, last_name_s + 1)
        file = CaptureFile(f"f{number}", "ns", "hub", "0", last_name_s, 1)
        files.append((file, times[closed.start_sequence_number : closed.until_sequence_number]))
        number, start_ms = closed.until_sequence_number, closed.next_start_ms
    return files


_bounds = st.none() | st.integers(_EPOCH_S * 1000 - 10_000, _EPOCH_S * 1000 + 40_000_000)


@given(files=_captured_files(), start_ms=_bounds, until_ms=_bounds, is_held_up=st.booleans())
@pytest.mark.slow
def test_no_file_with_a_wanted_event_is_left_out(
    files: list[tuple[CaptureFile, list[int]]], start_ms: int | None, until_ms: int | None, is_held_up: bool
) -> None:
    """Against no pruning: files as Capture names them, also up to an hour late, and any bounds."""
    if is_held_up:
        files = [
            (CaptureFile(file.name, "ns", "hub", "0", file.time_s + 3599, 1), times) for file, times in files
        ]
    kept = prune(
        [file for file, _ in files],
        partition_ids=None,
        times_ms=Bounds(start_ms, until_ms),
        retention_hours=1,
    )
    for file, times in files:
        is_wanted = any(
            (start_ms is None or time >= start_ms) and (until_ms is None or time < until_ms) for time in times
        )
        assert file in kept or not is_wanted


def test_names_leave_out_what_they_can() -> None:
    """By partition; by a start after the longest window; by an end more than the retention before."""
    files = [CaptureFile(f"{p}/{h}", "ns", "hub", p, _EPOCH_S + h * 3600, 1) for p in "01" for h in range(24)]
    start_ms = (_EPOCH_S + 10 * 3600) * 1000
    times_ms = Bounds(start_ms, start_ms + 3_600_000)
    kept = prune(files, partition_ids=frozenset({"1"}), times_ms=times_ms, retention_hours=2)
    assert [file.name for file in kept] == ["1/10", "1/11", "1/12"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ns/hub/0/2026/13/01/00/00/00.avro", "does not match Capture's name format"),
        ("ns/hub/0/2026/02/30/00/00/00.avro", "does not match Capture's name format"),
        ("ns/hub/0/2026/11/20/12/00.avro", "does not match Capture's name format"),
        ("ns/hub/zero/2026/11/20/12/00/00.avro", "does not match Capture's name format"),
    ],
)
def test_a_foreign_name_is_refused(name: str, problem: str) -> None:
    """A wrong format would look like an empty table otherwise."""
    with pytest.raises(InvalidArgumentError, match=problem):
        NameFormat(NAME_FORMAT_DEFAULT).parse(name, 0)


@pytest.mark.parametrize("text", ["{Namespace}/{EventHub}", NAME_FORMAT_DEFAULT + "{Shard}", ""])
def test_a_format_that_capture_would_not_take_is_refused(text: str) -> None:
    """Each field is in it, and no other."""
    with pytest.raises(InvalidArgumentError, match="name format"):
        NameFormat(text)


def test_two_hubs_are_not_mixed() -> None:
    """Their partitions and sequence numbers would be taken for the same."""
    files = [CaptureFile("n", "ns", hub, "0", 0, 0) for hub in ("b", "a")]
    check_one_hub(files[:1])
    with pytest.raises(InvalidArgumentError, match="ns/a and ns/b") as caught:
        check_one_hub(files)
    assert re.search("eventHubName", caught.value.next_step or "")
