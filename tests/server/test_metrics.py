"""Metrics for Prometheus: the numbers are those of what happened, and only who may sees them."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from array import array
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.eventhub import EventData
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from tests.console.support import console_service
from tests.docs_support import ROOT
from tests.interop.support import Reader, target_of
from tests.support.clocks import SetClock

from tidegate import __version__
from tidegate.broker import Claim
from tidegate.console.consumers.groups import Consumers, CountedLetters
from tidegate.gateway.counts import ConnectionCounts
from tidegate.gateway.metrics import (
    METRICS,
    PREFIX,
    MetricsPage,
    Sources,
    StoredGroup,
    StoredGroups,
    StoredPartition,
)
from tidegate.model.capture import CaptureStatistics
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ServerBusyError
from tidegate.model.events import EventData as ModelEvent
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.server.stored_groups import read_stored_groups
from tidegate.sql import ConsumerKey
from tidegate.testing.hub import HubService
from tidegate.transport.admission import Admission
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event

Numbers = dict[tuple[str, tuple[str, ...]], float]
"""By name and values of labels."""


@pytest.fixture
def service() -> Iterator[HubService]:
    """A service of its own: its counters begin at 0."""
    with HubService(is_http_used=True) as service:
        yield service


def _get(service: HubService, headers: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Status, content type and text of the metrics."""
    assert service.ready.http is not None
    connection = HTTPConnection(service.ready.http, timeout=60)
    try:
        connection.request("GET", "/metrics", headers=dict(headers or {}))
        with connection.getresponse() as response:
            return response.status, response.getheader("content-type", ""), response.read().decode()
    finally:
        connection.close()


def _parse(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def _numbers(text: str) -> Numbers:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in _parse(text)
        for sample in family.samples
    }


@pytest.mark.sdk
def test_numbers_are_those_of_what_happened(service: HubService) -> None:
    """What an official client sent and read, and what was refused, is what the metrics tell."""
    hub = service.create_hub("Busy", partition_count=2)
    target = target_of(service, "plain")
    with target.producer(hub) as producer:
        producer.send_batch([EventData(b"x" * 100) for _ in range(5)], partition_id="1")
    with Reader(target.consumer(hub), "1") as reader:
        reader.wait_events(5)
        numbers = _numbers(_get(service)[2])
        assert numbers[f"{PREFIX}receivers", ("Busy",)] == 1
        assert numbers[f"{PREFIX}active_connections", ()] >= 1
    assert numbers[f"{PREFIX}incoming_messages_total", ("Busy",)] == 5
    assert numbers[f"{PREFIX}outgoing_messages_total", ("Busy",)] == 5
    assert numbers[f"{PREFIX}incoming_bytes_total", ("Busy",)] > 500
    assert numbers[f"{PREFIX}incoming_requests_total", ("Busy",)] == 1
    assert numbers[f"{PREFIX}partition_next_sequence_number", ("Busy", "1")] == 5
    assert numbers[f"{PREFIX}partition_next_sequence_number", ("Busy", "0")] == 0
    assert numbers[f"{PREFIX}build_info", (__version__,)] == 1
    ended, active = (
        numbers[PREFIX + name, ()] for name in ("connections_closed_total", "active_connections")
    )
    assert numbers[f"{PREFIX}connections_opened_total", ()] == ended + active
    assert numbers["process_resident_memory_bytes", ()] > 0

    async def throttle(server: TidegateServer) -> None:
        await server.broker.set_throughput_units(1)
        section = wrap_event(encode_event(ModelEvent(b"x" * 1_000_000)))
        partition = server.broker.event_hub(hub).partition("0")
        await partition.append(section, array("I", [len(section)]))
        with pytest.raises(ServerBusyError):
            await partition.append(section, array("I", [len(section)]))

    assert (f"{PREFIX}throughput_units", ()) not in numbers
    service.call(throttle)
    numbers = _numbers(_get(service)[2])
    assert numbers[f"{PREFIX}throttled_requests_total", ("Busy",)] == 1
    assert numbers[f"{PREFIX}incoming_requests_total", ("Busy",)] == 3
    assert numbers[f"{PREFIX}throughput_units", ()] == 1


def test_capture_is_told(service: HubService) -> None:
    """How Capture stands is told per hub that is captured."""

    async def render(server: TidegateServer) -> Numbers:
        stands = CaptureStatistics(
            captured_files=1, captured_events=2, captured_bytes=3, backlog_events=4, backlog_bytes=5,
            missing_events=6, is_failing=True,
        )  # fmt: skip
        sources = Sources(
            server.broker,
            lambda: ConnectionCounts(3, 1),
            lambda: {"hub": stands},
            MemoryBudget(1 << 20).statistics,
            Admission().statistics,
        )
        page = MetricsPage(sources, SystemClock())
        return _numbers((await page.render("", SlicedWork(), address=None))[0].decode())

    numbers = service.call(render)
    names = (
        "captured_files_total", "captured_messages_total", "captured_bytes_total", "capture_backlog_messages",
        "capture_backlog_bytes", "capture_missing_messages_total", "capture_failing",
    )  # fmt: skip
    assert [numbers[PREFIX + name, ("hub",)] for name in names] == [1, 2, 3, 4, 5, 6, 1]
    assert numbers[f"{PREFIX}connections_closed_total", ()] == 2


class _Pieces(SlicedWork):
    """Notes how many lines each step makes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []

    async def collect(self, items: Iterator[Any], *, address: object = None) -> list[Any]:
        """All pieces."""
        pieces = await super().collect(items, address=address)
        self.lines += [each.count(b"\n") for each in pieces]
        return pieces


async def test_partitions_of_groups_are_made_when_they_are_asked_for() -> None:
    """Not by each request, in one step: 50 scrapes of 25,000 partitions held all clients up for 2.5 s."""
    looked = list[str]()

    class Partition:
        partition_id, checkpoint, lease = "0", None, None

        @property
        def lag(self) -> SimpleNamespace:
            looked.append("lag")
            return SimpleNamespace(events=3)

    lag = SimpleNamespace(events=3)
    summary = SimpleNamespace(
        event_hub="Hub",
        consumer_group="group",
        lag=lag,
        owned_count=0,
        owner_count=0,
        open_dead_letters=0,
        is_kept=False,
        is_group_gone=False,
    )
    times = (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))

    class Known:
        async def groups(self, rights: None, *, at_most_s: float) -> SimpleNamespace:
            group = SimpleNamespace(summary=summary, partitions=[Partition()])
            return SimpleNamespace(groups=[group], problems={}, read_at=times[0])

        async def dead_letters(self, *, at_most_s: float) -> CountedLetters:
            return CountedLetters({ConsumerKey("hub", "group"): (2, 1)}, times[1])

    found = await read_stored_groups(cast(Consumers, Known()))
    assert found is not None
    assert found.read_at_s == times[1].timestamp()
    (group,) = found.groups
    assert (group.event_hub, group.dead_letters, looked) == ("Hub", 2, [])
    assert [*group.partitions] == [StoredPartition("0", 3, None, None)] == [*group.partitions]


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_many_lines_are_made_in_pieces(service: HubService, accept: str) -> None:
    """The same as the library makes in one step. A large answer is reused for a second, a small one not."""
    clock, groups = SetClock(), [StoredGroup("hub", f"group-{n}", n, 2, 3, 4) for n in range(1_000)]

    async def render(server: TidegateServer) -> None:
        sources = Sources(
            server.broker,
            lambda: ConnectionCounts(3, 1),
            dict,
            MemoryBudget(1 << 20).statistics,
            Admission().statistics,
            stored_groups=lambda: StoredGroups(groups),
        )

        class Whole(Collector):
            def collect(self) -> Iterator[Metric]:
                for row in METRICS:
                    yield row.family(PREFIX, None, [("", sources)])

        page, work = MetricsPage(sources, clock), _Pieces()
        body, _ = await page.render(accept, work, address=None)
        whole = choose_encoder(accept)[0](Whole()).removesuffix(b"# EOF\n")
        assert body.startswith(whole)
        list((parse_openmetrics if accept else text_string_to_metric_families)(body.decode()))
        assert len(work.lines) > 4_000 / 32
        assert max(work.lines) <= 60  # those of the process are made in one step
        made, groups[:] = len(work.lines), groups[:10]
        assert (await page.render(accept, work, address=None))[0] == body
        assert len(work.lines) == made
        clock.advance(1.0)
        for _ in range(2):
            body, _ = await page.render(accept, work, address=None)
            assert len(body) < 100_000
        assert len(work.lines) > made + 2 * len(METRICS)

    service.call(render)


def test_every_metric_is_served_and_documented(service: HubService) -> None:
    """The table is what is served, with kinds and texts, and every line is in the reference."""
    served = {family.name: family for family in _parse(_get(service)[2])}
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    for row in METRICS:
        name = PREFIX + row.name
        family = served.pop(name.removesuffix("_total") if row.is_counter else name)
        assert (family.type, family.documentation) == (row.kind, row.description)
        assert f"`{name}`" in page
    assert all(name.startswith("process_") for name in served)


def test_names_follow_the_conventions() -> None:
    """Prometheus' rules for names, and Azure's name in them where there is one."""
    for each in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", each.name)
        words = re.findall("[A-Z][a-z]+", each.azure_name)
        assert all(word.lower() in each.name for word in words), each.name
    assert len({each.name for each in METRICS}) == len(METRICS)


def test_openmetrics_where_it_is_asked_for(service: HubService) -> None:
    """Prometheus asks for OpenMetrics first; both formats parse."""
    status, content_type, text = _get(service, {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert status == 200
    assert content_type.startswith("application/openmetrics-text")
    assert list(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    assert _get(service)[1].startswith("text/plain")
    status, content_type, _ = _get(service, {"Accept": "application/openmetrics-text; version=latest"})
    assert (status, content_type[:10]) == (200, "text/plain")


@pytest.mark.parametrize(("claim", "status"), [(None, 401), (Claim.SEND, 401), (Claim.LISTEN, 200)])
def test_who_comes_through_a_proxy_needs_a_token(
    service: HubService, claim: Claim | None, status: int
) -> None:
    """The names of hubs are not for everybody: only for who is on the machine, or may listen."""
    headers = {"X-Forwarded-For": "203.0.113.7"}
    if claim is not None:

        async def create(server: TidegateServer) -> str:
            return (await server.broker.create_policy(None, "scraper", [claim])).key

        host = ConnectionString.parse(service.connection_string).host
        headers["Authorization"] = make_sas_token(
            audience=f"sb://{host}/", key_name="scraper", key=service.call(create), expiry=4_000_000_000
        )
    assert _get(service, headers)[0] == status


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.slow
def test_a_forwarder_counts_as_this_machine_unless_it_is_listed(tmp_path: Path, is_listed: bool) -> None:
    """What the docs say of programs on this machine that only pass bytes on: nothing shows that they do."""
    settings = {"trusted_proxies": ["127.0.0.1"]} if is_listed else {}
    with (
        console_service(tmp_path, **settings) as service,
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), _forwarder_to(service)) as forwarder,
    ):
        threading.Thread(target=forwarder.serve_forever).start()
        try:
            answers = {}
            for path in ("/metrics", "/hubs"):
                connection = HTTPConnection("127.0.0.1", forwarder.server_address[1], timeout=60)
                connection.request("GET", path, headers={"Host": "localhost", "Connection": "close"})
                answers[path] = connection.getresponse().status
                connection.close()
        finally:
            forwarder.shutdown()
    assert answers == ({"/metrics": 401, "/hubs": 303} if is_listed else {"/metrics": 200, "/hubs": 200})
    for page in ("docs/reference/metrics.md", "docs/guides/hardening.md", "docs/concepts/threat-model.md"):
        assert "forwarder" in (ROOT / page).read_text(encoding="utf-8"), page


def _forwarder_to(service: HubService) -> type[socketserver.BaseRequestHandler]:
    host, _, port = (service.ready.http or "").rpartition(":")

    class Forwarder(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port)), timeout=60) as behind:
                behind.sendall(self.request.recv(64 * 1024))
                while content := behind.recv(64 * 1024):
                    self.request.sendall(content)

    return Forwarder


def test_a_scrape_ends_with_its_client(service: HubService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those of clients that hang up would be made one after the other, and others wait for them."""
    has_begun = threading.Event()

    def endless(_: MetricsPage, __: object) -> Iterator[bytes | None]:
        has_begun.set()
        yield from repeat(None)

    connection = HTTPConnection(str(service.ready.http), timeout=60)
    with monkeypatch.context() as patch:
        patch.setattr(MetricsPage, "_pieces", endless)
        connection.request("GET", "/metrics")
        assert has_begun.wait(60)
    connection.close()
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
