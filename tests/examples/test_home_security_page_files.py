"""The file of a block's pages: merging is what a dictionary does, and nothing else passes for such a file."""

from __future__ import annotations

import json

import orjson
import pytest
from examples.home_security.page_files import (
    MalformedPagesError,
    file_name,
    homes_of,
    merge_pages,
    page_of,
    pages_of,
)
from hypothesis import example, given
from hypothesis import strategies as st

HOSTILE = (
    "",
    '"',
    "\\",
    '":{"activity":',
    '"},\n"',
    "a\0b",
    "\u2028",
    "../x",
    "h1",
    "H1",
    "h1!",
    "é",
    "\U0001f3e0",
)
_NAMES = st.sampled_from(HOSTILE) | st.text(max_size=8)
_PAGES = st.builds(
    lambda level, text: orjson.dumps({"activity": [level], "home": text}), st.integers(0, 3), _NAMES
)
_CHANGES = st.dictionaries(_NAMES, _PAGES, max_size=6)


@pytest.mark.slow
@given(st.lists(_CHANGES, max_size=6))
@example([dict.fromkeys(HOSTILE, b'{"activity":[]}')])
def test_merging_is_what_a_dictionary_does(batches: list[dict[str, bytes]]) -> None:
    """Any names, any order: the file has the newest page of each home, byte for byte, and is JSON; the same
    pages once more change nothing, and neither does in how many steps they came."""
    content, model = merge_pages(None, {}), dict[str, bytes]()
    for changes in batches:
        content = merge_pages(content, changes)
        model |= changes
        assert merge_pages(content, changes) == content
    assert pages_of(content) == model
    assert set(homes_of(content)) == model.keys()
    for home, page in model.items():
        assert page_of(content, home) == page
    assert page_of(content, "no such home") is None
    assert json.loads(content) == {home: json.loads(page) for home, page in model.items()}
    assert content == merge_pages(None, model)
    assert len(content.splitlines()) >= len(model) + 2


def test_a_file_can_be_read_line_by_line() -> None:
    """As grep, jq and people do: a line for each home, in the order of plain names."""
    pages = {home: f'{{"activity":[{home[1:]}]}}'.encode() for home in ("h3", "h1", "h2")}
    assert merge_pages(None, pages).decode() == (
        '{\n"h1":{"activity":[1]},\n"h2":{"activity":[2]},\n"h3":{"activity":[3]}\n}\n'
    )
    assert file_name("7-2") == "7-2.json"


@given(_CHANGES.filter(bool), st.data())
@pytest.mark.slow
def test_a_part_of_a_file_is_none(pages: dict[str, bytes], data: st.DataObject) -> None:
    """Cut anywhere, it is refused, and no page is taken from it."""
    content = merge_pages(None, pages)
    part = content[: data.draw(st.integers(0, len(content) - 1))]
    for read in (homes_of, pages_of, lambda part: merge_pages(part, pages), lambda part: page_of(part, "h1")):
        with pytest.raises(MalformedPagesError):
            read(part)


LINE = b'"h1":{"activity":[]}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"{}\n",
        b"{\n\n}\n",
        b"[\n" + LINE + b"\n]\n",
        b"{\n" + LINE + b",\n}\n",
        b"{\n" + LINE + b"\n" + LINE.replace(b"1", b"2") + b"\n}\n",
        b"{\n" + LINE + b",\n" + LINE + b"\n}\n",
        b'{\n"h1":{"activity":[]},\n"h\\u0031":{"activity":[]}\n}\n',
        b'{\n"h1":{"rooms":{}}\n}\n',
        b'{\n"h1":{"activity":[]\n}\n',
        b'{\n"\xff":{"activity":[]}\n}\n',
        b'{\n"a","b":{"activity":[]}\n}\n',
        b'{\n"\\ud800":{"activity":[]}\n}\n',
        b"\0" * 4096,
    ],
    ids=range(15),
)
def test_anything_else_is_refused_in_one_way(content: bytes) -> None:
    """JSON of another shape, a home twice, names that are no text, what a power failure leaves."""
    for read in (homes_of, pages_of):
        with pytest.raises(MalformedPagesError):
            read(content)


@given(st.binary(max_size=80).map(lambda middle: b"{\n" + middle + b"\n}\n"))
def test_no_bytes_bring_another_error(middle: bytes) -> None:
    """Whatever lies between a whole beginning and a whole end."""
    try:
        pages = pages_of(middle)
    except MalformedPagesError:
        return
    assert pages_of(merge_pages(middle, {})) == pages
