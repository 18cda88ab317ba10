"""The administration with Atom documents, as Event Hubs' REST interface and old SDKs have it."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from tests.server.test_http_admin import KEYS, Client
from tests.support.partition_turns import partition_turns

from tidegate.broker import Claim
from tidegate.client import EventHubAdministrator, run_blocking
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.atom import AtomEntry

NAMES = {
    "atom": "http://www.w3.org/2005/Atom",
    "sb": "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect",
    "a": "http://schemas.microsoft.com/2003/10/Serialization/Arrays",
}
EVENT_HUB = "EventHubDescription"


class Atom:
    """Somebody with a token; the methods give status and document."""

    def __init__(self, service: HubService, token: str | None = None) -> None:
        """token: None is one of the root policy."""
        self._token = Client(service).token if token is None else token
        assert service.ready.http is not None
        self._address = service.ready.http

    def ask(
        self, method: str, path: str, body: bytes = b"", *, if_match: str | None = None, host: str = ""
    ) -> tuple[int, ElementTree.Element | None]:
        """Send a request; None where the answer has no body."""
        headers = {"Content-Type": "application/atom+xml;type=entry;charset=utf-8"}
        headers |= {"Authorization": self._token or ""} | ({"If-Match": if_match} if if_match else {})
        headers |= {"Host": host} if host else {}
        connection = HTTPConnection(self._address, timeout=60)
        try:
            connection.request(method, f"{path}?timeout=60&api-version=2014-05", body, headers)
            with connection.getresponse() as response:
                text = response.read()
                return response.status, ElementTree.fromstring(text) if text else None
        finally:
            connection.close()

    def names(self, path: str) -> list[str]:
        """The titles of a feed's entries."""
        status, feed = self.ask("GET", path)
        assert status == 200
        assert feed is not None
        assert feed.tag == "{http://www.w3.org/2005/Atom}feed"
        return [title.text or "" for title in feed.findall("atom:entry/atom:title", NAMES)]

    def property(self, path: str, name: str) -> str | None:
        """One property of an entity."""
        status, entry = self.ask("GET", path)
        assert status == 200
        assert entry is not None
        return entry.findtext(f"atom:content/*/sb:{name}", namespaces=NAMES)


def _description(kind: str, **properties: object) -> bytes:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in properties.items())
    return (
        f'<entry xmlns="{NAMES["atom"]}"><content type="application/xml">'
        f'<{kind} xmlns="{NAMES["sb"]}">{inner}</{kind}></content></entry>'
    ).encode()


@pytest.fixture(scope="module")
def service() -> Iterator[HubService]:
    """A service of its own: these tests change the namespace."""
    with HubService(is_http_used=True) as service:
        yield service


@pytest.fixture
def atom(service: HubService) -> Atom:
    """Who may do everything."""
    return Atom(service)


@pytest.mark.parametrize("host", ["&" * 15_000, "a" * 256, "a b", "user@host", "host:123456"])
def test_what_names_no_host_is_refused_before_anything_is_done(atom: Atom, host: str) -> None:
    """Each row of a feed repeats it, escaped: 1,024 partitions made 150 MB of a header of 15 KB."""
    description = _description(EVENT_HUB, PartitionCount=2)
    assert atom.ask("PUT", "/atom-host", description, host=host)[0] == 400
    assert "atom-host" not in atom.names("/$Resources/EventHubs")
    assert atom.ask("GET", "/$Resources/EventHubs", host=host)[0] == 400


@pytest.mark.parametrize("host", ["my_hub.example:8080", "[::1]:443", "a" * 255])
def test_the_links_have_the_host_that_the_client_names(atom: Atom, host: str) -> None:
    """Whatever its name is there: a proxy may have another one."""
    status, feed = atom.ask("GET", "/$Resources/EventHubs", host=host)
    assert (status, feed is not None and feed.findtext("atom:id", namespaces=NAMES)) == (
        200,
        f"https://{host}/%24Resources/EventHubs",
    )


def test_an_event_hubs_life(service: HubService, atom: Atom) -> None:
    """Made, read, listed, changed and removed; each change is in the audit trail with who made it."""
    description = _description(EVENT_HUB, MessageRetentionInDays=3, PartitionCount=2)
    status, entry = atom.ask("PUT", "/atom-1", description)
    assert status == 201
    assert entry is not None
    ids = entry.findall("atom:content/sb:EventHubDescription/sb:PartitionIds/a:string", NAMES)
    assert [each.text for each in ids] == ["0", "1"]
    assert atom.ask("PUT", "/ATOM-1", description)[0] == 409
    assert "atom-1" in atom.names("/$Resources/eventhubs")
    assert atom.property("/atom-1", "MessageRetentionInDays") == "3"
    changed = _description(EVENT_HUB, MessageRetentionInDays=5, PartitionCount=2)
    assert atom.ask("PUT", "/atom-1", changed, if_match="*")[0] == 200
    assert atom.property("/atom-1", "MessageRetentionInDays") == "5"
    assert atom.ask("PUT", "/atom-1", _description(EVENT_HUB, PartitionCount=1), if_match="*")[0] == 400
    status, entry = atom.ask("PUT", "/atom-1", _description(EVENT_HUB, PartitionCount=3), if_match="*")
    assert (status, atom.property("/atom-1", "PartitionCount")) == (200, "3")
    assert atom.ask("DELETE", "/atom-1")[0] == 200
    assert [atom.ask(method, "/atom-1")[0] for method in ("GET", "DELETE")] == [404, 404]

    async def actions(server: TidegateServer) -> list[tuple[str, str, str]]:
        records = server.broker.audit.newest_first()
        return [(each.action, each.policy, each.door) for each in records if each.target == "atom-1"]

    recorded = service.call(actions)
    assert [action for action, _, _ in recorded] == [
        "deleteEventHub", "updateEventHub", "updateEventHub", "createEventHub",
    ]  # fmt: skip
    assert {(policy, door) for _, policy, door in recorded} == {("RootManageSharedAccessKey", "http")}


def test_defaults(atom: Atom) -> None:
    """Without a description a hub gets 16 partitions, and an hour's or day's zero is nobody's wish."""
    assert atom.ask("PUT", "/atom-defaults")[0] == 201
    assert atom.property("/atom-defaults", "PartitionCount") == "16"
    assert atom.property("/atom-defaults", "MessageRetentionInDays") == "7"
    zero = _description(EVENT_HUB, MessageRetentionInDays=0, PartitionCount=0)
    assert atom.ask("PUT", "/atom-zero", zero)[0] == 201
    assert atom.property("/atom-zero", "PartitionCount") == "16"


def test_user_metadata_is_kept(service: HubService, atom: Atom) -> None:
    """What a client writes is there at every other door, too; an update that leaves it out keeps it."""
    note = "owner: R&D <ops@example.com>\nsince 2026"
    assert atom.ask("PUT", "/atom-note", _description(EVENT_HUB, UserMetadata=escape(note)))[0] == 201
    assert atom.property("/atom-note", "UserMetadata") == note

    async def read() -> str | None:
        async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
            return (await administrator.get_event_hub("atom-note")).user_metadata

    assert run_blocking(read) == note
    assert atom.ask("PUT", "/atom-note", _description(EVENT_HUB), if_match="*")[0] == 200
    assert atom.property("/atom-note", "UserMetadata") == note
    emptied = _description(EVENT_HUB, UserMetadata="")
    assert atom.ask("PUT", "/atom-note", emptied, if_match="*")[0] == 200
    assert atom.property("/atom-note", "UserMetadata") is None
    too_long = _description(EVENT_HUB, UserMetadata="x" * 1025)
    assert atom.ask("PUT", "/atom-note", too_long, if_match="*")[0] == 400


def test_a_consumer_groups_life(service: HubService, atom: Atom) -> None:
    """Made, read, listed and removed, whatever the letter case of the address."""
    hub = service.create_hub(partition_count=1)
    body = _description("ConsumerGroupDescription")
    assert atom.ask("PUT", f"/{hub}/ConsumerGroups/readers", body)[0] == 201
    assert atom.ask("PUT", f"/{hub}/consumergroups/READERS", body)[0] == 409
    assert atom.names(f"/{hub}/consumergroups") == ["$Default", "readers"]
    assert atom.property(f"/{hub}/CONSUMERGROUPS/Readers", "CreatedAt") is not None
    assert atom.ask("DELETE", f"/{hub}/ConsumerGroups/readers")[0] == 200
    assert atom.ask("GET", f"/{hub}/ConsumerGroups/readers")[0] == 404
    assert atom.ask("DELETE", f"/{hub}/ConsumerGroups/$Default")[0] == 400


def test_partitions(service: HubService, atom: Atom) -> None:
    """Of the hub, and within a consumer group, as the documents have it."""
    hub = service.create_hub(partition_count=2)
    for within in ("", "/ConsumerGroups/$Default"):
        assert atom.names(f"/{hub}{within}/partitions") == ["0", "1"]
        assert atom.property(f"/{hub}{within}/Partitions/1", "EndSequenceNumber") == "-1"
        assert atom.ask("GET", f"/{hub}{within}/partitions/2")[0] == 404
    assert atom.ask("GET", f"/{hub}/consumergroups/nobody/partitions/0")[0] == 404


def test_revoking_a_publisher(service: HubService, atom: Atom) -> None:
    """A revoked publisher may not send until it is resumed; its name may be any text."""
    hub = service.create_hub(partition_count=1)
    for name, address in (("dev-1", "dev-1"), ("<a b>", "%3Ca%20b%3E")):
        at, body = f"/{hub}/revokedpublishers/{address}", b""
        if name == "dev-1":
            body = _description("RevokedPublisherDescription", Name=name)
        messages = f"/{hub}/publishers/{address}/messages"
        assert atom.ask("POST", messages, b"x")[0] == 201
        assert atom.ask("PUT", at, body)[0] == 201
        assert atom.ask("PUT", at, body)[0] == 409
        assert atom.ask("POST", messages, b"x")[0] == 401
        assert atom.names(f"/{hub}/RevokedPublishers") == [name]
        assert atom.property(at, "Name") == name
        assert atom.ask("DELETE", at)[0] == 200
        assert [atom.ask(method, at)[0] for method in ("GET", "DELETE")] == [404, 404]
        assert atom.ask("POST", messages, b"x")[0] == 201
    other = _description("RevokedPublisherDescription", Name="dev-2")
    assert atom.ask("PUT", f"/{hub}/revokedpublishers/dev-1", other)[0] == 400
    assert atom.names(f"/{hub}/RevokedPublishers") == []


@pytest.mark.parametrize(
    "body",
    [
        b"<",
        b'<!DOCTYPE a [<!ENTITY b "c">]>' + _description(EVENT_HUB),
        _description("QueueDescription"),
        _description(EVENT_HUB, PartitionCount="many"),
        _description(EVENT_HUB, PartitionCount="-1"),
        _description(EVENT_HUB, Status="Disabled"),
        _description(
            EVENT_HUB, AuthorizationRules="<AuthorizationRule><KeyName>k</KeyName></AuthorizationRule>"
        ),
    ],
)
def test_bad_descriptions_are_refused(atom: Atom, body: bytes) -> None:
    """With what is wrong, and nothing is made: a policy that is asked for is not left out silently."""
    status, error = atom.ask("PUT", "/atom-bad", body)
    assert status == 400
    assert error is not None
    assert error.findtext("Detail")
    assert atom.ask("GET", "/atom-bad")[0] == 404


def test_large_bodies_are_refused(atom: Atom) -> None:
    """Before they are parsed."""
    assert atom.ask("PUT", "/atom-bad", b"<a>" * 30_000)[0] == 413


def test_a_long_feed_of_partitions_leaves_turns(
    service: HubService, atom: Atom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: a feed of 1,024 partitions has 700 KB, and takes 30 ms."""
    wide = service.create_hub(partition_count=40)
    turns, formatted = partition_turns(monkeypatch), list[int]()
    format_entry = AtomEntry.format

    def noted(entry: AtomEntry, host: str, *, is_whole: bool = True) -> str:
        formatted.append(len(turns))
        return format_entry(entry, host, is_whole=is_whole)

    monkeypatch.setattr(AtomEntry, "format", noted)
    assert atom.names(f"/{wide}/partitions") == [*map(str, range(40))]
    assert len(set(turns)) == 40
    assert formatted == [*range(1, 41)], "each was formatted in its turn"


def test_long_feeds_of_names_leave_turns(
    service: HubService, atom: Atom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: a feed of 10,000 revoked publishers has 5 MB, and takes 0.3 s."""
    hub = service.create_hub(partition_count=1)

    async def fill(server: TidegateServer) -> None:
        for number in range(3):
            await server.broker.event_hub(hub).create_consumer_group(f"g{number}")
            await server.broker.event_hub(hub).revoke_publisher(f"p{number}")

    service.call(fill)
    steps: list[list[object]] = []
    collect = SlicedWork.collect

    async def noted(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        steps.append([])

        def each() -> Iterator[object]:
            for item in items:
                steps[-1].append(item)
                yield item

        return await collect(self, each(), address=address)

    monkeypatch.setattr(SlicedWork, "collect", noted)
    assert atom.names(f"/{hub}/revokedpublishers") == ["p0", "p1", "p2"]
    assert atom.names(f"/{hub}/consumergroups") == ["$Default", "g0", "g1", "g2"]
    hubs = atom.names("/$Resources/EventHubs")
    assert [len(each) for each in steps] == [3, 4, len(hubs)], "each entry is a step"
    assert all(isinstance(item, bytes) for each in steps for item in each), "and is encoded in it"


def test_who_may(service: HubService) -> None:
    """Changes take Manage, reading Manage or Listen, and a hub's policy is for that hub alone."""
    hub, other = service.create_hub(partition_count=1), service.create_hub(partition_count=1)

    async def create(server: TidegateServer) -> None:
        for name, claim in (("lister", Claim.LISTEN), ("sender", Claim.SEND), ("manager", Claim.MANAGE)):
            await server.broker.create_policy(hub, name, [claim], key=KEYS[0])

    service.call(create)

    def asking(policy: str) -> Atom:
        audience = f"sb://127.0.0.1/{hub}"
        return Atom(
            service, make_sas_token(audience=audience, key_name=policy, key=KEYS[0], expiry=4_000_000_000)
        )

    def allowed(policy: str, method: str, path: str) -> bool:
        return asking(policy).ask(method, path, b"<" if method == "PUT" else b"")[0] != 401

    for policy, may_see, may_change in (("lister", True, False), ("sender", False, False)):
        assert allowed(policy, "GET", f"/{hub}") == may_see
        assert allowed(policy, "GET", f"/{hub}/revokedpublishers") == may_see
        for path in (f"/{hub}", f"/{hub}/consumergroups/g", f"/{hub}/revokedpublishers/p"):
            assert allowed(policy, "PUT", path) == may_change
            assert allowed(policy, "DELETE", path) == may_change
    assert allowed("manager", "PUT", f"/{hub}")
    more = _description(EVENT_HUB, PartitionCount=2)
    assert asking("manager").ask("PUT", f"/{hub}", more, if_match="*")[0] == 401
    for path in ("/$Resources/EventHubs", f"/{other}", f"/{other}/consumergroups"):
        assert not allowed("manager", "GET", path)
    assert not allowed("manager", "PUT", "/atom-new")
    assert Atom(service, "").ask("GET", f"/{hub}")[0] == 401


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/hub/RevokedPublishers/{}"), ("POST", "/hub/publishers/{}/messages")]
)
def test_long_names_in_addresses_are_refused_by_their_length(atom: Atom, method: str, path: str) -> None:
    """Each costs its length several times if it is looked for."""
    status, answer = atom.ask(method, path.format("%41" * 1025))
    assert status == 400
    assert answer is not None
    assert "publisher in the address has more than 1024 characters" in (answer.findtext("Detail") or "")
    assert atom.ask(method, path.format("%41" * 1024))[0] != 400
