"""Position filters: every client's way of writing them, and back."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp import strategies

from tidegate.amqp.types import Described, Symbol, ULong
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition
from tidegate.wire.selector import (
    COMPARISONS_MAX,
    format_selector,
    honoured_filters,
    parse_selector,
    positions_from_filters,
    selector_filter,
)

TIME = datetime(2026, 9, 1, 12, 0, 0, 5000, tzinfo=UTC)
MS = 1788264000005
SELECTOR = Symbol("apache.org:selector-filter:string")


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", EventPosition.earliest()),
        ("amqp.annotation.x-opt-offset >= '-1'", EventPosition.earliest()),
        ("amqp.annotation.x-opt-offset > '@latest'", EventPosition.latest()),
        ("amqp.annotation.x-opt-offset > @latest", EventPosition.latest()),
        ("amqp.annotation.x-opt-offset > '8448'", EventPosition.from_offset("8448")),
        ("amqp.annotation.x-opt-offset >= '1:2:3'", EventPosition.from_offset("1:2:3", is_inclusive=True)),
        (
            "amqp.annotation.x-opt-sequence-number > '15'",
            EventPosition.from_sequence_number(15, is_inclusive=False),
        ),
        ("amqp.annotation.x-opt-sequence-number >= 15", EventPosition.from_sequence_number(15)),
        (
            "amqp.annotation.x-opt-sequence-number > '-1'",
            EventPosition.from_sequence_number(-1, is_inclusive=False),
        ),
        (
            f"amqp.annotation.x-opt-enqueued-time > '{MS}'",
            EventPosition.from_enqueued_time(TIME, is_inclusive=False),
        ),
        (f"  amqp.annotation.x-opt-enqueued-time>={MS} ", EventPosition.from_enqueued_time(TIME)),
        # What IoT Hub's quickstarts and its diagnostics tool send.
        (
            f"amqp.annotation.x-opt-enqueuedtimeutc > {MS}",
            EventPosition.from_enqueued_time(TIME, is_inclusive=False),
        ),
        ('amqp.annotation.x-opt-offset > "8448"', EventPosition.from_offset("8448")),
        ("AMQP.Annotation.X-OPT-Offset >= 'aBc'", EventPosition.from_offset("aBc", is_inclusive=True)),
        ("amqp.annotation.x-opt-offset > '@LATEST'", EventPosition.latest()),
        ("amqp.annotation.x-opt-offset = '8448'", EventPosition.from_offset("8448", is_inclusive=True)),
        ("amqp.annotation.x-opt-sequence-number=15", EventPosition.from_sequence_number(15)),
        # Java, where it knows of geo-replication and the event's namespace has none.
        (
            "amqp.annotation.x-opt-sequence-number > '-1:15'",
            EventPosition.from_sequence_number(15, is_inclusive=False),
        ),
    ],
)
def test_every_clients_form_is_understood(expression: str, position: EventPosition) -> None:
    """Protects receivers of every client, quoted or not, inclusive or not."""
    assert parse_selector(expression) == (position,)
    assert parse_selector(format_selector(position)) == (position,)


times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(  # noqa: DTZ001  (made aware below)
    lambda value: value.replace(tzinfo=UTC, microsecond=value.microsecond // 1000 * 1000)
)


@settings(derandomize=True, max_examples=50)
@given(
    st.one_of(
        st.builds(EventPosition.from_enqueued_time, times, is_inclusive=st.booleans()),
        st.builds(EventPosition.from_sequence_number, st.integers(-1, 2**63 - 1), is_inclusive=st.booleans()),
    )
)
def test_a_position_comes_back(position: EventPosition) -> None:
    """Protects our own client's positions to the millisecond, far years included."""
    assert positions_from_filters(selector_filter(position)) == (position,)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        "amqp.annotation.x-opt-offset > '5\"",
        "amqp.annotation.x-opt-offset > '5' AND",
        "amqp.annotation.x-opt-offset > '5' AND true",
        "amqp.annotation.x-opt-offset > '5' amqp.annotation.x-opt-offset > '5'",
        "amqp.annotation.x-opt-sequence-number > '7:5'",
        "amqp.annotation.x-opt-sequence-number > '1_0'",
        "amqp.annotation.x-opt-offset < '5'",
        "amqp.annotation.x-opt-offset > ''",
        "amqp.annotation.x-opt-colour > '5'",
        "amqp.annotation.x-opt-sequence-number > 'five'",
        "amqp.annotation.x-opt-enqueued-time > '99999999999999999999999'",
        "amqp.annotation.x-opt-offset > '5' OR 1",
        "amqp.annotation.x-opt-offset > '" + " " * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_what_means_no_position_is_refused(expression: str) -> None:
    """Protects a receiver from starting somewhere that was not asked for, and quickly."""
    with pytest.raises(InvalidArgumentError, match=r"with >, >= or =, and join comparisons with AND"):
        parse_selector(expression)


@pytest.mark.parametrize(
    "text",
    ["amqp.annotation.x-opt-offset>{}'", "{}x", "amqp.annotation.x{}", "amqp.annotation.x-opt-offset>'{}"],
)
@pytest.mark.parametrize("blank", [" ", "'", "a"])
def test_no_expression_takes_long(text: str, blank: str) -> None:
    """Protects the event loop: blanks before a quote once took a second, by the cube of their number."""
    expression = text.format(blank * 980)
    started_s = time.thread_time()
    with pytest.raises(InvalidArgumentError, match=r"with >, >= or =, and join comparisons with AND"):
        parse_selector(expression)
    assert time.thread_time() - started_s < 0.1


def test_and_joins_comparisons() -> None:
    """Protects receivers that name two bounds, in one expression or in two filters."""
    offset, number = EventPosition.from_offset("5"), EventPosition.from_sequence_number(7)
    texts = ("amqp.annotation.x-opt-offset > '5'", 'amqp.annotation.x-opt-sequence-number >= "7"')
    for joint in (" AND ", " and ", "and ", "\tAnd\n"):
        assert parse_selector(joint.join(texts)) == (offset, number)
    filters: dict[object, object] = {
        Symbol("selector"): Described(Symbol("apache.org:selector-filter:string"), texts[0]),
        "another": Described(ULong(0x468C00000004), texts[1]),
    }
    assert positions_from_filters(filters) == (offset, number)


def test_of_several_times_only_the_last_is_looked_up() -> None:
    """Protects the event loop: the log is searched for each time; 280 of them held it for 1.3 s."""
    comparisons = [
        f"amqp.annotation.x-opt-enqueued-time {sign} {MS - less}" for sign in (">=", ">") for less in (0, 9)
    ]
    after = EventPosition.from_enqueued_time(TIME, is_inclusive=False)
    offset = "amqp.annotation.x-opt-offset > '5'"
    for expression in (" AND ".join(comparisons), " AND ".join(reversed(comparisons))):
        filters: dict[object, object] = {SELECTOR: expression, "b": Described(SELECTOR, offset)}
        assert positions_from_filters(filters) == (EventPosition.from_offset("5"), after)


def test_there_are_few_comparisons() -> None:
    """Protects the event loop: each is a look-up. Official clients send one."""
    comparison = "amqp.annotation.x-opt-offset > '5'"
    half = " AND ".join([comparison] * (COMPARISONS_MAX // 2))
    filters: dict[object, object] = {name: Described(SELECTOR, half) for name in "ab"}
    assert len(positions_from_filters(filters)) == COMPARISONS_MAX
    with pytest.raises(InvalidArgumentError, match=r"more than 8 comparisons.*Send only the last position"):
        positions_from_filters(filters | {"c": Described(SELECTOR, comparison)})


def test_only_selectors_are_in_force() -> None:
    """Protects clients from filters that nobody applies: they are not among those that are in force."""
    selector = Described(Symbol("apache.org:selector-filter:string"), "amqp.annotation.x-opt-offset > '5'")
    unknown = Described(Symbol("apache.org:no-local-filter:list"), [])
    filters: dict[object, object] = {"mine": selector, "unknown": unknown, "bare": "colour = 'red'"}
    assert honoured_filters(filters) == {"mine": selector}


_pieces = st.sampled_from(
    [
        "amqp.annotation.", "AMQP.", "x-opt-offset", "x-opt-sequence-number", "x-opt-enqueued-time",
        "x-opt-enqueuedtimeutc", ">", ">=", "=", "<", "'", '"', " ", "AND", "and ", "-1", "-1:", "8448",
        "99999999999999999999", "@latest", "\u0663", "\0", "1e5",
    ]
)  # fmt: skip


@given(st.lists(_pieces | st.text(max_size=5), max_size=14).map("".join) | strategies.values)
@pytest.mark.slow
def test_nothing_but_positions_and_the_one_error(value: object) -> None:
    """Protects the service from what a filter may hold: it means positions, or is refused as an argument."""
    filters: dict[object, object] = {Symbol("apache.org:selector-filter:string"): Described("d", value)}
    with suppress(InvalidArgumentError):
        assert positions_from_filters(filters)


@pytest.mark.parametrize("descriptor", [Symbol("x"), ULong(0x468C00000004), ULong(0x1370000000A), "text"])
def test_the_filters_descriptor_does_not_matter(descriptor: object) -> None:
    """Protects clients, each of which has a descriptor of its own."""
    key = Symbol("apache.org:selector-filter:string")
    filters: dict[object, object] = {key: Described(descriptor, "amqp.annotation.x-opt-offset > '5'"), "x": 1}
    assert positions_from_filters(filters) == (EventPosition.from_offset("5"),)


@pytest.mark.slow
def test_no_filter_is_the_start_and_a_strange_one_is_refused() -> None:
    """Protects receivers without a filter, and from one that is no text."""
    assert positions_from_filters({}) == (EventPosition.earliest(),)
    with pytest.raises(InvalidArgumentError):
        positions_from_filters({Symbol("apache.org:selector-filter:string"): Described("d", 5)})
    assert timedelta(0) == TIME.utcoffset()
