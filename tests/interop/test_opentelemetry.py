"""Traces through the service: official SDK, our producer and our hosts, with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from azure.core.settings import settings as azure_settings
from azure.eventhub import EventData as AzureEvent
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.interop.support import SdkTarget, read, target_of
from tools.calls import count

from tidegate import EventData, EventHubProducer, EventProcessorHost, MemoryStore, ReceivedEvent
from tidegate.model.errors import RemoteProtocolError
from tidegate.model.events import EventContents
from tidegate.processor import PartitionContext, TransactionContext
from tidegate.sql import Database, SqlStore
from tidegate.testing.hub import HubService
from tidegate.tracing import Tracing, find_tracing
from tidegate.transport.clock import SystemClock

pytestmark = pytest.mark.usefixtures("forked_python")

_WAIT_S = 60


class Spans:
    """The spans that this process has ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of this name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """A tracer provider, for our code and the official SDK; there is none after the test."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # set_tracer_provider works once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    azure_settings.tracing_implementation.set_value("opentelemetry")
    yield Spans(exporter)
    azure_settings.tracing_implementation.unset_value()
    provider.shutdown()


@pytest.fixture
def sdk(hub_service: HubService) -> SdkTarget:
    """The service over plain TCP."""
    return target_of(hub_service, "plain")


def _tracer() -> trace.Tracer:
    return trace.get_tracer("test")


def _linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def _place(span: ReadableSpan | trace.Span) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


async def _process(service: HubService, hub: str, event_count: int) -> list[trace.Span]:
    """Run a host until it has handled so many events; returns the current span of each of its calls."""
    found: asyncio.Queue[tuple[trace.Span, int]] = asyncio.Queue()

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        found.put_nowait((trace.get_current_span(), len(events)))

    host = EventProcessorHost.from_connection_string(
        service.connection_string, hub, store=MemoryStore(SystemClock())
    )
    current = []
    async with host.running(handle), asyncio.timeout(_WAIT_S):
        while event_count > 0:
            span, handled = await found.get()
            current.append(span)
            event_count -= handled
    return current


async def test_events_of_the_official_sdk_are_linked_by_our_host(
    spans: Spans, sdk: SdkTarget, hub_service: HubService, event_hub: str
) -> None:
    """Each event that azure-eventhub sends has a span of its own, to which the host's span links."""

    def send() -> None:
        with _tracer().start_as_current_span("request"), sdk.producer(event_hub) as producer:
            producer.send_batch([AzureEvent("a"), AzureEvent("b")], partition_id="0")

    await asyncio.to_thread(send)
    current = await _process(hub_service, event_hub, 2)
    messages = spans.named("EventHubs.message")
    (request,) = spans.named("request")
    assert {_place(each)[0] for each in messages} == {_place(request)[0]}
    processed = spans.named(f"process {event_hub}")
    assert [_place(each) for each in current] == [_place(each) for each in processed]
    assert sorted(place for each in processed for place in _linked(each)) == sorted(map(_place, messages))
    span = processed[0]
    assert (span.kind, span.parent, span.status.status_code) == (SpanKind.CONSUMER, None, StatusCode.UNSET)
    attributes = dict(span.attributes or {})
    assert attributes.pop("messaging.batch.message_count") in (1, 2)
    assert attributes == {
        "messaging.system": "eventhubs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": event_hub,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "$Default",
    }


async def test_events_of_our_producer_are_linked_by_the_official_sdk(
    spans: Spans, sdk: SdkTarget, hub_service: HubService, event_hub: str
) -> None:
    """However they are sent: together, one by one, buffered, or by a batch that is filled."""
    async with EventHubProducer.from_connection_string(hub_service.connection_string, event_hub) as producer:
        with _tracer().start_as_current_span("first"):
            await producer.send([EventData(b"1"), EventData(b"2")], partition_id="0")
        with _tracer().start_as_current_span("second"):
            await producer.enqueue(EventData(b"3"), partition_id="0")
        with _tracer().start_as_current_span("third"):
            await producer.enqueue_many([EventData(b"4")], partition_id="0")
        batch = await producer.create_batch(partition_id="0")
        with _tracer().start_as_current_span("fourth"):
            assert batch.try_add(EventData(b"5"))
        await producer.send_batch(batch)
        await producer.send([EventData(b"without a span")], partition_id="0")
    events = await asyncio.to_thread(read, sdk.consumer(event_hub), 6)
    names = ("first", "second", "third", "fourth")
    one, two, three, four = (_place(span) for name in names for span in spans.named(name))
    linked = [place for span in spans.named("EventHubs.process") for place in _linked(span) if place[0]]
    assert linked == [one, one, two, three, four]
    assert events[0].properties is not None
    assert events[0].properties[b"Diagnostic-Id"] == events[0].properties[b"traceparent"]
    assert events[-1].properties == {}


async def test_a_context_that_is_there_is_kept(spans: Spans, hub_service: HubService, event_hub: str) -> None:
    """What is forwarded stays with its trace, by either name; state and other properties stay, too."""
    other = f"00-{7:032x}-{9:016x}-01"
    own: list[dict[str, Any]] = [
        {"traceparent": other, "tracestate": "vendor=1", "kind": "a"},
        {"Diagnostic-Id": other},
        {"Diagnostic-Id": "|an.older.form."},
        {"traceparent": 5, "kind": "b"},
    ]
    async with EventHubProducer.from_connection_string(hub_service.connection_string, event_hub) as producer:
        with _tracer().start_as_current_span("forward") as forward:
            await producer.send([EventData(b"", each) for each in own], partition_id="0")
    await _process(hub_service, event_hub, len(own))
    links = [link for span in spans.named(f"process {event_hub}") for link in span.links]
    assert {(link.context.trace_id, link.context.span_id) for link in links} == {(7, 9), _place(forward)}
    states = [link.context.trace_state.get("vendor") for link in links if link.context.trace_id == 7]
    assert sorted(state or "" for state in states) == ["", "1"]


async def test_a_batch_of_one_trace_has_one_link(
    spans: Spans, hub_service: HubService, event_hub: str
) -> None:
    """A thousand events of one request are one link, with their number."""
    async with EventHubProducer.from_connection_string(hub_service.connection_string, event_hub) as producer:
        with _tracer().start_as_current_span("request") as request:
            await producer.send([EventData(b"%d" % number) for number in range(1000)], partition_id="0")
    await _process(hub_service, event_hub, 1000)
    processed = spans.named(f"process {event_hub}")
    assert {place for span in processed for place in _linked(span)} == {_place(request)}
    assert all(len(span.links) == 1 for span in processed)
    counts = [(link.attributes or {})["messaging.batch.message_count"] for s in processed for link in s.links]
    assert sum(counts) == 1000  # type: ignore[arg-type]  # they are integers


async def test_a_transaction_has_the_span_and_its_failure(
    spans: Spans, hub_service: HubService, event_hub: str, sqlite_url: str
) -> None:
    """A transactional handler runs in a thread, under the span of its batch, which records why it failed."""
    done: asyncio.Queue[trace.Span] = asyncio.Queue()
    loop, tries = asyncio.get_running_loop(), iter((True, False))

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        if next(tries, False):
            raise sa.exc.OperationalError("", {}, Exception("away"), connection_invalidated=True)
        loop.call_soon_threadsafe(done.put_nowait, trace.get_current_span())

    async with EventHubProducer.from_connection_string(hub_service.connection_string, event_hub) as producer:
        await producer.send([EventData(b"one")], partition_id="0")
    store = SqlStore(Database.open(sqlite_url))
    host = EventProcessorHost.from_connection_string(
        hub_service.connection_string, event_hub, store=store, transactional=True
    )
    async with host.running(handle), asyncio.timeout(_WAIT_S):
        current = await done.get()
    await store.close()
    failed, processed = spans.named(f"process {event_hub}")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "DatabaseUnavailableError"
    assert _place(current) == _place(processed)
    assert processed.status.status_code is StatusCode.UNSET


def test_an_event_that_cannot_be_decoded_is_for_the_handler(spans: Spans) -> None:
    """Its batch still has a span; the handler gets the error where it reads the event."""

    def refuse(encoded: bytes | memoryview) -> EventContents:
        raise RemoteProtocolError("no message")

    event = ReceivedEvent("0", 1, "1", 0, b"", refuse)
    with Tracing().processing([event], event_hub="hub", consumer_group="group", partition_id="0"):
        pass
    (span,) = spans.named("process hub")
    assert span.links == ()


def test_without_a_provider_nothing_is_called() -> None:
    """OpenTelemetry is imported here, and no provider is set: batches cost no call more than without it."""
    assert find_tracing() is None
    for name, calls in count().items():
        assert "tracing.py" not in calls.files, name


def test_without_the_extra_the_client_works(hub_service: HubService, event_hub: str) -> None:
    """OpenTelemetry cannot be imported, and is not missed; where it can be, it is not imported."""
    program = """
import asyncio, sys
from tidegate import EventData, EventHubProducer

async def main(connection_string, hub):
    async with EventHubProducer.from_connection_string(connection_string, hub) as producer:
        await producer.send([EventData(b"sent")])

if sys.argv[3] == "blocked":
    sys.modules["opentelemetry"] = None
asyncio.run(main(*sys.argv[1:3]))
print("opentelemetry.trace" in sys.modules)
"""
    for word in ("blocked", "there"):
        words = [sys.executable, "-c", program, hub_service.connection_string, event_hub, word]
        assert subprocess.run(words, capture_output=True, check=True, timeout=_WAIT_S).stdout == b"False\n"
