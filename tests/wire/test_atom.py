"""Atom documents of the REST administration: what is read of a client's, and what is refused."""

from __future__ import annotations

import codecs
from contextlib import suppress
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import InvalidArgumentError
from tidegate.wire import atom
from tidegate.wire.atom import AtomEntry, feed_ends, parse_description

SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
KIND = "EventHubDescription"


def _entry(properties: str, *, before: str = "") -> bytes:
    return (
        f'{before}<entry xmlns="http://www.w3.org/2005/Atom"><title/><author><name>x</name></author>'
        f'<content type="application/xml"><{KIND} xmlns="{SERVICE_BUS}">{properties}</{KIND}>'
        "</content></entry>"
    ).encode()


def test_properties_are_read() -> None:
    """Of the description alone, with all text within each; also where it is the whole document."""
    properties = (
        "<PartitionCount> 8 </PartitionCount><Status/><AuthorizationRules><Rule><KeyName>k</KeyName></Rule>"
        "</AuthorizationRules>"
    )
    expected = {"PartitionCount": "8", "Status": "", "AuthorizationRules": "k"}
    assert parse_description(_entry(properties), KIND) == expected
    alone = f'<{KIND} xmlns="{SERVICE_BUS}"><PartitionCount>8</PartitionCount></{KIND}>'.encode()
    assert parse_description(alone, KIND) == {"PartitionCount": "8"}
    assert parse_description(" \n".encode("ascii"), KIND) == {}


def test_no_document_type_is_taken() -> None:
    """Neither entities that would expand to gigabytes nor files of this machine get into a property."""
    bomb = '<!DOCTYPE entry [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    outside = '<!DOCTYPE entry [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    for before, entity in ((bomb, "&b;"), (outside, "&a;"), ('<!DOCTYPE entry SYSTEM "http://x/">', "")):
        with pytest.raises(InvalidArgumentError, match="document type"):
            parse_description(_entry(f"<Status>{entity}</Status>", before=before), KIND)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"]
)
def test_a_document_type_does_not_reach_the_parser(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no encoding: entities in 41 KB of it were expanded for 0.2 s after it had been refused."""
    seen: list[object] = []
    monkeypatch.setattr(atom._Builder, "doctype", lambda _, *names: seen.append(names), raising=False)
    body = '<!DOCTYPE entry [<!ENTITY a "<b/>">]>' + _entry("&a;").decode()
    with pytest.raises(InvalidArgumentError):
        parse_description(body.encode(encoding), KIND)
    assert seen == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<", "not XML"),
        (b"{}", "not XML"),
        (_entry("<Status>&a;</Status>"), "not XML"),
        (b'<?xml version="1.0" encoding="latin-1"?><a>\xe9</a>', "not XML"),
        (_entry("").decode().encode("utf-16"), "not XML in UTF-8"),
        (b"<a/>", "has no EventHubDescription"),
        (_entry("").replace(SERVICE_BUS.encode(), b"elsewhere"), "has no EventHubDescription"),
        (b"<a>" * 40 + b"</a>" * 40, "nests more than 32"),
        (_entry("<a/>" * 1_000), "more than 1,000 elements"),
    ],
)
def test_other_bodies_are_refused(body: bytes, why: str) -> None:
    """As the client's mistake, with what is wrong."""
    with pytest.raises(InvalidArgumentError, match=why):
        parse_description(body, KIND)


def test_no_encoding_is_looked_for() -> None:
    """Python keeps the name of each: with 60 KB in every request, a hub's manager filled the memory."""
    asked: list[str] = []
    search = asked.append
    codecs.register(search)
    try:
        body = b'<?xml version="1.0" encoding="of-a-client"?>' + _entry("<Status/>")
        assert parse_description(body, KIND) == {"Status": ""}
    finally:
        codecs.unregister(search)
    assert asked == []


@given(st.binary(max_size=200))
def test_any_bytes_end_in_properties_or_in_an_error_of_ours(body: bytes) -> None:
    """No body brings the parser down."""
    with suppress(InvalidArgumentError):
        parse_description(body, KIND)


def test_names_cannot_leave_their_place() -> None:
    """What a client has chosen is text in every document, whatever characters it has."""
    name = '<a b="c">&\''
    entry = AtomEntry("/hub/x", name, "RevokedPublisherDescription", {"Name": name}, 0)
    head, tail = feed_ends('h"o<st&', "/hub", name, 0)
    for text in (entry.format('h"o<st&'), head + entry.format('h"o<st&', is_whole=False) + tail):
        root = ElementTree.fromstring(text)
        assert {each.text for each in root.iter(f"{{{SERVICE_BUS}}}Name")} == {name}
