"""OpenTelemetry: the context of a trace in an event's properties, and the spans that link to it.

The rule: a process without a tracer provider pays nothing. ``find_tracing`` is called when something starts,
never per batch; where it returns None, no event is looked at.

Official SDKs keep the context in application properties: ``Diagnostic-Id`` and ``traceparent`` have the same
value, W3C's ``traceparent``; ``tracestate`` is there unless empty (azure-eventhub 5.15.1, ``_tracing``).
Names of spans and attributes: OpenTelemetry, "Semantic conventions for messaging spans" (2026-10).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tidegate.model import VERSION
from tidegate.model.errors import TidegateError
from tidegate.model.events import EventData, ReceivedEvent

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind

DIAGNOSTIC_ID: Final = "Diagnostic-Id"
TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"

TraceContext: TypeAlias = tuple[str, str]
"""``traceparent`` and ``tracestate``; the second may be empty."""

_LINKS_MAX: Final = 128
"""Of one span: the default limit of OpenTelemetry's SDKs ("Span Limits")."""
_CHARACTERS_MAX: Final = 512
"""W3C Trace Context, section 3.3.1.5, for ``tracestate``; ``traceparent`` has 55."""
_COUNT: Final = "messaging.batch.message_count"


def find_tracing() -> Tracing | None:
    """What makes spans here; None if this process has no tracer provider (yet)."""
    # A process that has set one has imported this module, so others need not.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider) else Tracing()


class Tracing:
    """Spans of this process's tracer provider, and the contexts in events."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._no_parent = Context()
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("tidegate", VERSION)

    def sent(self, event: EventData) -> EventData:
        """The event with the context of the current span; unchanged if it has one, or if there is no span."""
        (found,) = self.sent_together((event,))
        return found

    def sent_together(self, events: Iterable[EventData]) -> Iterator[EventData]:
        """``sent`` for events that are sent under one span."""
        found: dict[str, str] = {}
        self._propagator.inject(found)
        context = {DIAGNOSTIC_ID: found[TRACE_PARENT], **found} if found else {}
        for event in events:
            is_bare = context and not _parent_in(event.properties)
            yield replace(event, properties={**event.properties, **context}) if is_bare else event

    @contextmanager
    def processing(
        self, events: Sequence[ReceivedEvent], *, event_hub: str, consumer_group: str, partition_id: str
    ) -> Iterator[None]:
        """A span of the processing of a batch, with a link to each context in it; current in the block.

        It begins a trace of its own: a batch has many contexts, and a host no caller.
        """
        attributes: dict[str, str | int] = {
            "messaging.consumer.group.name": consumer_group,
            "messaging.destination.partition.id": partition_id,
            _COUNT: len(events),
        }
        counts = Counter(filter(None, map(_context_in, events)))
        found = ((self._span_context(context), count) for context, count in counts.most_common(_LINKS_MAX))
        links = [self._trace.Link(linked, {_COUNT: count}) for linked, count in found if linked.is_valid]
        with self._span("process", event_hub, self._trace.SpanKind.CONSUMER, attributes, links):
            yield

    @contextmanager
    def sending(self, event_hub: str) -> Iterator[Callable[[Iterable[TraceContext]], None]]:
        """A span of the sending of events that were made elsewhere; the block gets what links it to them."""
        linked: set[TraceContext] = set()

        def link(contexts: Iterable[TraceContext]) -> None:
            for each in contexts:
                if each not in linked and len(linked) < _LINKS_MAX:
                    linked.add(each)
                    if (found := self._span_context(each)).is_valid:
                        span.add_link(found)

        with self._span("send", event_hub, self._trace.SpanKind.CLIENT) as span:
            yield link

    @contextmanager
    def _span(
        self,
        operation: str,
        event_hub: str,
        kind: SpanKind,
        attributes: Mapping[str, str | int] | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """An exception that leaves the block is recorded."""
        named = {
            "messaging.system": "eventhubs",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": event_hub,
        }
        with self._tracer.start_as_current_span(
            f"{operation} {event_hub}",
            context=self._no_parent,
            kind=kind,
            attributes={**named, **(attributes or {})},
            links=links,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def _span_context(self, context: TraceContext) -> SpanContext:
        """Invalid if ``traceparent`` is not in W3C's form."""
        found = self._propagator.extract(dict(zip((TRACE_PARENT, TRACE_STATE), context, strict=True)))
        return self._trace.get_current_span(found).get_span_context()


def _context_in(event: ReceivedEvent) -> TraceContext | None:
    """None if the event has no context, or cannot be decoded."""
    try:
        properties = event.properties
    except TidegateError:  # which the handler meets, too
        return None
    parent = _parent_in(properties)
    return (parent, _text(properties.get(TRACE_STATE))) if parent else None


def _parent_in(properties: Mapping[str, object]) -> str:
    return _text(properties.get(TRACE_PARENT)) or _text(properties.get(DIAGNOSTIC_ID))


def _text(value: object) -> str:
    """Empty for what is no part of a context; the API would log a warning for each that is too long."""
    return value if isinstance(value, str) and len(value) <= _CHARACTERS_MAX else ""
