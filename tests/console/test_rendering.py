"""Text for people: numbers, sizes, times and lines; and what keeps markup out of them."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import nodes

from tidegate.console.frame.forms import FieldError, optional_number, start_of, whole_number
from tidegate.console.frame.live import format_event
from tidegate.console.frame.rendering import (
    ago,
    bytes_text,
    counted,
    duration,
    environment,
    is_personal,
    number,
    rate,
    sparkline,
    visible,
)

NOW = datetime(2026, 11, 22, 7, 25, 1, tzinfo=UTC)

TEMPLATES = environment().list_templates(extensions=["html"])
HTML_MAKERS = {"ago", "utc", "sparkline", "exact", "tojson", "forceescape", "form_token", "caller", "super"}
FIELDS = re.compile(
    r'<input\b(?:(?!<input)[\s\S])*? value="{{ ((?:(?!}})[\s\S])*) }}"|{{ ((?:(?!}})[\s\S])*) }}</textarea>'
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (1234567, "1,234,567"), (0.25, "0.2"), (99.96, "100.0"), (1234.6, "1,235")],
)
def test_numbers(value: float | None, text: str) -> None:
    """Groups of three digits; a digit behind the point only where it says something."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (1048575, "1.0 MB"),
        (150 * 1024**2, "150 MB"),
        (5 * 1024**6, "5,120 PB"),
    ],
)
def test_sizes(value: int | None, text: str) -> None:
    """Powers of 1,024, and no ``1024 KB``."""
    assert bytes_text(value) == text


def test_rates_and_counts() -> None:
    """With their unit; one is not many."""
    assert [rate(1500.0), rate(2048, "bytes"), rate(None)] == ["1,500 /s", "2.0 KB/s", "–"]
    assert [counted(1, "hub"), counted(0, "hub"), counted(1024, "hub")] == ["1 hub", "0 hubs", "1,024 hubs"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.05, "50 ms"), (1, "1 s"), (200, "3 min 20 s"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    """The two largest units that count."""
    assert duration(seconds) == text


def test_times_say_how_long_ago_and_exactly_when() -> None:
    """In the future, too, as with clocks that differ; and nothing where there is no time."""
    assert ">5 s ago<" in ago(NOW - timedelta(seconds=5), NOW)
    assert ">in 2 min<" in ago(NOW + timedelta(minutes=2), NOW)
    assert ">now<" in ago(NOW, NOW)
    assert 'datetime="2026-11-22T07:25:01.000+00:00"' in ago(NOW, NOW)
    assert ago(None, NOW) == "–"


@given(st.lists(st.floats(0, 1e12)), st.text())
def test_a_line_is_well_formed_whatever_the_values(values: list[float], label: str) -> None:
    """And its label cannot leave the attribute that it is in."""
    svg = str(sparkline(values, label))
    assert svg.count("<") == 3
    assert "nan" not in svg
    assert svg.count('"') == 16


@given(st.text())
def test_templates_escape_what_they_are_given(text: str) -> None:
    """Autoescaping is on for every template, whatever its name."""
    shown = environment().from_string("{{ text }}").render(text=text)
    assert "<" not in shown
    assert '"' not in shown


@given(st.text())
def test_events_of_a_stream_keep_their_frame(text: str) -> None:
    """Whatever a fragment holds, it can neither end its event early nor begin another one."""
    event = format_event("name", text)
    assert event.startswith("event: name\ndata: ")
    assert event.endswith("\n\n")
    assert "\r" not in event
    lines = event[:-1].split("\n")[1:-1]
    assert all(line.startswith("data: ") for line in lines)


@pytest.mark.parametrize("text", ["-1", "1.5", "0x10", "1e3", "٣", "9" * 20, "one"])
def test_what_is_no_number_is_told_with_its_field(text: str) -> None:
    """A field's mistake names the field, so that the page can show it there."""
    with pytest.raises(FieldError) as caught:
        optional_number({"size": text}, "size", "The size")
    assert caught.value.field == "size"
    assert start_of(text) == 0


def test_what_an_event_says_is_in_its_order() -> None:
    """Protects a reader from text that looks other than it is: characters that reorder it are escaped."""
    assert visible("pay \u202e001\u202c \u2066x\u2069") == "pay \\u202e001\\u202c \\u2066x\\u2069"
    assert visible("a\tb\r\nשלום \u200f\x1b\x7f\x9b") == "a\tb\r\nשלום \u200f\u241b\u2421\ufffd"


def test_what_is_escaped_costs_no_call_of_ours() -> None:
    """Protects the event loop: a sender may fill bodies and keys with such characters."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    text = "\u202e" * 1_000
    sys.setprofile(count)
    try:
        found = visible(text)
    finally:
        sys.setprofile(None)
    assert found == "\\u202e" * 1_000
    assert calls < 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ text }}",
        "{{ text | truncate(9) }}",
        "{{ error }}",
        '<p title="{{ text }}">',
        "{% macro row(cell) %}{{ cell }}{% endmacro %}{{ row(text) }}",
        "{% set words = 'of ' ~ text %}{{ words }}",
        "{{ [text] | join }}",
    ],
)
def test_no_template_shows_text_in_another_order(source: str) -> None:
    """Not by a filter that its author must remember."""
    text = "a\u202eb\x9bc"
    page = environment().from_string(source).render(text=text, error=ValueError(text))
    assert "a\\u202eb\ufffdc" in page
    field = environment().from_string('<input value="{{ text | exact }}">').render(text=text + "<")
    assert field == f'<input value="{text}&lt;">'


@pytest.mark.slow
def test_what_is_of_one_session_is_known() -> None:
    """Protects a form's token: live parts are drawn for all viewers, unless they, or what they include, have
    something of the session."""
    personal = {name for name in TEMPLATES if is_personal(name)}
    assert personal >= {"jobs/job_actions.html", "explorer/progress.html", "frame/base.html", "hubs/hub.html"}
    assert not personal & {"hubs/hub_figures.html", "hubs/hub_partitions.html", "hubs/table.html"}
    for name in TEMPLATES:
        assert ("form_token" in _source(name)) <= (name in personal)


def _source(name: str) -> str:
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.slow
def test_a_template_does_not_go_around_that(name: str) -> None:
    """Only fields of forms are exact; no text is declared HTML, or joined with HTML and so taken for it."""
    source = _source(name)
    tree = environment().parse(source)
    assert not {each.name for each in tree.find_all(nodes.Filter)} & {"safe", "e", "escape"}
    assert source.count("forceescape") == source.count("tojson | forceescape")
    assert not list(tree.find_all(nodes.EvalContextModifier))
    makers = HTML_MAKERS | {each.name for each in tree.find_all(nodes.Macro)}
    joined = [*tree.find_all(nodes.Concat), *tree.find_all(nodes.Add), *tree.find_all(nodes.Mod)]
    for each in joined:
        assert not {found.name for found in each.find_all(nodes.Filter)} & makers
        assert not {found.name for found in each.find_all(nodes.Name)} & makers
    fields = [first or second for first, second in FIELDS.findall(source)]
    assert source.count("| exact }}") == sum(field.endswith("| exact") for field in fields)
    # What was wrong at a sign-in is shown again: no policy and no hub has such characters in its name.
    assert name.startswith("sign_in/") or all(field.endswith("| exact") for field in fields)


def test_numbers_of_fields() -> None:
    """Digits may be set apart; an empty field is none."""
    assert optional_number({"size": "1,000 000"}, "size", "The size") == 1_000_000
    assert optional_number({"size": ""}, "size", "The size") is None
    with pytest.raises(FieldError, match="missing"):
        whole_number({}, "size", "The size")
