"""The file of a block of homes: the pages of all of them, which the pipeline keeps in blob storage.

    <place>/7-2.json

    {
    "h000042":{"activity":[0,0,1],"alarms":[], … },
    "h000057":{"activity":[2,0,0],"alarms":[], … }
    }

It is one JSON object, home → page (``summary``), with a line for each home, so that a home's page can be
replaced or read without parsing any page. Paths never contain home names, which are arbitrary: the events'
partition keys.

The lines are in the order of their names as JSON writes them, byte by byte: the order of the names, except
for those with a character that JSON escapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from tidegate import Fault, TidegateError

FILE_ENDING: Final = ".json"

_PAGE_BEGIN: Final = b'{"activity":'
_NAME_END: Final = b'":' + _PAGE_BEGIN
"""The name ends where this first occurs in a line: inside a name JSON writes a quote as ``\\"``, so a name
with these characters has a backslash before the second quote."""


class MalformedPagesError(TidegateError):
    """A file that does not contain homes' pages, or is incomplete."""

    fault = Fault.WORLD


def file_name(block: str) -> str:
    """The name of a block's file. block: as the pipeline names it, ``7-2``."""
    return f"{block}{FILE_ENDING}"


def merge_pages(content: bytes | None, pages: Mapping[str, bytes]) -> bytes:
    """The file with ``pages`` in place of the present pages of their homes; the others are unchanged.

    content: the file; None if there is none yet. pages: home → its page, JSON on one line with ``activity``
    first. Merging the same pages again gives the same bytes. Raises MalformedPagesError.
    """
    lines = {} if content is None else _lines_of(content)
    for home, page in pages.items():
        assert page.startswith(_PAGE_BEGIN), page
        name = orjson.dumps(home)
        lines[name[:-1]] = b"%s:%s," % (name, page)
    assert not any(b"\n" in page for page in pages.values())
    in_order = [lines[name] for name in sorted(lines)]
    in_order[-1:] = [line[:-1] for line in in_order[-1:]]  # JSON allows no comma after the last one
    return b"\n".join([b"{", *in_order, b"}", b""])


def pages_of(content: bytes) -> dict[str, bytes]:
    """All pages of a file, by home. Raises MalformedPagesError."""
    lines = _lines_of(content)
    pages = [line[len(name) + 2 : -1] for name, line in lines.items()]
    return dict(zip(_texts_of(list(lines)), pages, strict=True))


def homes_of(content: bytes) -> list[str]:
    """The homes of a file, in its order. Raises MalformedPagesError."""
    return _texts_of(list(_lines_of(content)))


def page_of(content: bytes, home: str) -> bytes | None:
    """The page of a home; None if the file has none. The others are not parsed.

    Raises MalformedPagesError if the file is incomplete.
    """
    if not _is_whole(content):
        raise _malformed()
    name = orjson.dumps(home)
    found = content.find(b"\n" + name + b":" + _PAGE_BEGIN)
    if found < 0:
        return None
    line = content[found + 1 : content.index(b"\n", found + 1)]
    return line[len(name) + 1 :].removesuffix(b",")


def _is_whole(content: bytes) -> bool:
    return content.startswith(b"{\n") and content.endswith(b"\n}\n")


def _lines_of(content: bytes) -> dict[bytes, bytes]:
    """The lines of a file, each with a comma at its end, by their names. A key includes the name's first
    quote, but not the second, so keys sort as names do."""
    if not _is_whole(content):
        raise _malformed()
    lines = content.split(b"\n")[1:-2]
    lines[-1:] = [line + b"," for line in lines[-1:]]
    found = {line.partition(_NAME_END)[0]: line for line in lines}
    is_each_a_page = all(
        line.startswith(b'"') and line.endswith(b"},") and len(name) < len(line)
        for name, line in found.items()
    )
    if not is_each_a_page or len(found) < len(lines):  # fewer, if a home is there twice
        raise _malformed()
    return found


def _texts_of(names: list[bytes]) -> list[str]:
    if not names:
        return []
    try:
        texts: list[str] = orjson.loads(b"[" + b'",'.join(names) + b'"]')
    except orjson.JSONDecodeError as error:
        raise _malformed() from error
    if len(set(texts)) != len(names):
        raise _malformed()
    return texts


def _malformed() -> MalformedPagesError:
    return MalformedPagesError("This is not a complete file of homes' pages.")
