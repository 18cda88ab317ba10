"""The renderer: four formats, one per purpose, and nothing that steers a terminal."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tidegate.cli.shell.render import Output, OutputFormat, cell_text, relative_text
from tidegate.model.times import time_text
from tidegate.transport.clock import SystemClock

COLUMNS = ("name", "events", "share", "is_empty", "at", "properties")
RECORDS = [
    {
        "name": "telemetry",
        "events": 12345,
        "share": 0.25,
        "is_empty": False,
        "at": datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC),
        "properties": {"id": UUID(int=1), "raw": b"\x00\xff"},
        "hidden": "not a column",
    },
    {"name": "empty, with comma", "events": 0, "share": None, "is_empty": True, "at": None},
]


def _written(output_format: OutputFormat) -> str:
    stream = io.StringIO()
    Output(output_format, stream=stream).records(RECORDS, columns=COLUMNS, title="Hubs")
    return stream.getvalue()


def test_json_is_one_array_of_plain_values() -> None:
    """Scripts parse --json whole: one array, ISO times, base64 bytes, null for what is missing."""
    first, second = json.loads(_written(OutputFormat.JSON))
    assert first == {
        "name": "telemetry",
        "events": 12345,
        "share": 0.25,
        "is_empty": False,
        "at": "2026-01-31T12:00:00.250Z",
        "properties": {"id": "00000000-0000-0000-0000-000000000001", "raw": "AP8="},
    }
    assert second["properties"] is None


def test_nl_is_one_object_per_line() -> None:
    """--nl can be cut with head and parsed line by line."""
    lines = _written(OutputFormat.NL).splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["telemetry", "empty, with comma"]


def test_csv_has_a_header_and_quotes() -> None:
    """--csv survives commas, and says nothing as nothing."""
    rows = list(csv.DictReader(io.StringIO(_written(OutputFormat.CSV))))
    assert rows[0]["is_empty"] == "false"
    assert rows[1]["name"] == "empty, with comma"
    assert rows[1]["share"] == ""


def test_plain_table_aligns_and_cuts_nothing() -> None:
    """A piped table holds whole values, numbers to the right, and no drawing."""
    header, first, second = _written(OutputFormat.TABLE).splitlines()
    assert header.startswith("name               events  share")
    assert first.index("12345") + 5 == second.index(" 0 ") + 2
    assert "is empty" in header
    assert "Hubs" not in header


def test_empty_list_still_has_its_shape() -> None:
    """No result is [] for JSON and a header for CSV, so that scripts need no special case."""
    stream = io.StringIO()
    Output(OutputFormat.JSON, stream=stream).records([], columns=("a",))
    Output(OutputFormat.CSV, stream=stream).records([], columns=("a", "b"))
    assert stream.getvalue() == "[]\na,b\n"


@pytest.mark.parametrize("output_format", list(OutputFormat))
def test_single_record_in_every_format(output_format: OutputFormat) -> None:
    """A command that shows one thing shows every field of it, whatever the format."""
    stream = io.StringIO()
    Output(output_format, stream=stream).record({"published": 7, "database": "sqlite:///x.db"})
    text = stream.getvalue()
    assert "published" in text
    assert "7" in text
    assert "sqlite:///x.db" in text


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_must_not_be_cut_is_shown_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers that differ at their end would look the same on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    start = {"key": "partition_id=17, sequence_number=123456789012", "note": None}
    for digits, is_apart in ((8, True), (0, False)):
        record = start | {"live": f"1234567890.{'1' * digits}5", "shadow": f"1234567890.{'1' * digits}6"}
        stream = Terminal()
        columns = ("key", "note", "live", "shadow")
        Output(OutputFormat.TABLE, stream=stream).records([record] * 2, columns=columns, is_whole=True)
        shown = stream.getvalue()
        assert "…" not in shown
        assert all(str(value) in shown for value in record.values() if value)
        assert ("\n\n" in shown, "note" in shown) == (is_apart, not is_apart)


def test_drawn_table_shows_markup_as_it_is() -> None:
    """On a terminal a value in square brackets is data, not markup; a long one is cut unless --wide is given,
    and never in the table of one thing."""
    value = "[red]" + "x" * 300
    for is_wide, count in ((False, 74), (True, 300)):
        stream = Terminal()
        Output(OutputFormat.TABLE, stream=stream, is_wide=is_wide).records(
            [{"a": value}], columns=("a",), title="T"
        )
        assert "[red]" in stream.getvalue()
        assert stream.getvalue().count("x") == count
        assert ("Some values are cut. --wide shows all." in stream.getvalue()) is not is_wide
    stream = Terminal()
    Output(OutputFormat.TABLE, stream=stream).record({"a": value})
    assert value in stream.getvalue()


def test_times_are_ages_on_a_terminal() -> None:
    """In a list instead of the time, for one thing beside it; --wide and programs get the time itself."""
    at = SystemClock().now_utc() - timedelta(minutes=5, seconds=1)
    shown = {}
    for name, stream, is_wide in (("list", Terminal(), False), ("wide", Terminal(), True)):
        Output(OutputFormat.TABLE, stream=stream, is_wide=is_wide).records([{"at": at}], columns=("at",))
        shown[name] = stream.getvalue().split("\n")[2]
    stream = Terminal()
    Output(OutputFormat.TABLE, stream=stream).record({"at": at})
    assert shown == {"list": "5 min ago", "wide": time_text(at)}
    assert stream.getvalue().endswith(f"{time_text(at)} (5 min ago)\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s ago"), (119, "119 s ago"), (120, "2 min ago"), (7199, "119 min ago"), (7200, "2 h ago"),
        (172_799, "47 h ago"), (172_800, "2 d ago"), (-1, "in 1 s"), (-7200, "in 2 h"),
    ],
)  # fmt: skip
def test_an_age_has_one_unit(seconds: int, text: str) -> None:
    """The largest of which there are two."""
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert relative_text(now - timedelta(seconds=seconds), now) == text


def test_what_is_drawn_can_be_written_in_ascii() -> None:
    """A terminal without UTF-8 gets a table, not an error."""
    file = io.BytesIO()
    stream = io.TextIOWrapper(file, "ascii")
    stream.isatty = lambda: True  # type: ignore[method-assign]
    Output(OutputFormat.TABLE, stream=stream).records([{"a": "x" * 300}], columns=("a",))
    stream.flush()
    assert "x" * 79 + "~" in file.getvalue().decode()


def test_a_title_steers_no_terminal() -> None:
    """A service may name a hub as it likes: its name is neither markup nor an escape sequence."""
    stream = Terminal()
    title = "Lag of [blue]\x1b]0;hub\x07"
    Output(OutputFormat.TABLE, stream=stream).records([{"a": "y" * 80}], columns=("a",), title=title)
    assert "Lag of [blue]\\x1b]0;hub\\x07" in stream.getvalue()


def test_control_characters_cannot_reach_a_terminal() -> None:
    """An event's body with escape sequences is shown, not obeyed."""
    assert cell_text("\x1b[2Jhi\n\tthere\x9b") == "\\x1b[2Jhi\\n\\tthere\\x9b"
    assert cell_text("pay \u202e001\u2066\u2069") == "pay \\u202e001\\u2066\\u2069"


def test_lines_stay_lines_and_steer_nothing() -> None:
    """Of a text's control characters only the ends of lines and tabs are obeyed."""
    stream = io.StringIO()
    Output(OutputFormat.TABLE, stream=stream).lines(
        "traceback", "first:\n  in\tit\n\n\x1b[2Jlast\r\x9b\x85\n"
    )
    assert stream.getvalue() == ("traceback\n  first:\n    in\tit\n\n  \\x1b[2Jlast\\r\\x9b\\x85\n")


def test_a_stream_writes_each_record_at_once() -> None:
    """A tail's reader sees a record when it comes, not when the tail ends."""
    stream = io.StringIO()
    records = Output(OutputFormat.NL, stream=stream).record_stream(("a",))
    records.write({"a": 1})
    assert stream.getvalue() == '{"a":1}\n'


def test_a_stream_as_json_is_one_array() -> None:
    """What a tail wrote until it was stopped parses as a whole."""
    stream = io.StringIO()
    records = Output(OutputFormat.JSON, stream=stream).record_stream(("a",))
    for number in range(3):
        records.write({"a": number})
    records.close()
    assert json.loads(stream.getvalue()) == [{"a": 0}, {"a": 1}, {"a": 2}]
