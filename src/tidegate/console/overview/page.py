"""``/``: the state of the whole service, live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.console.consumers.groups import Consumers
from tidegate.console.dead_letters.letters import DeadLetterView
from tidegate.console.frame.context import Console
from tidegate.console.frame.pages import Pages, get
from tidegate.console.frame.rendering import bytes_text, duration, fragment, number, page
from tidegate.console.frame.sessions import require_listen, rights_of
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.hubs.values import Overview, Rates, Sample
from tidegate.model.errors import TidegateError

HUBS_SHOWN: Final = 12
"""Event hubs on the overview, the busiest first."""

_PROCESSING_S: Final = 5.0
"""Seconds between queries of the database."""
_PATIENCE_S: Final = 0.1
"""Seconds that a page waits for the database; later results are sent live."""

_SHARED_S: Final = 0.5
"""Seconds for which rendered parts are reused: half of the time between two samples."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessingFigures:
    """Figures of all consumer groups, from the database; None: not known."""

    lag_s: float | None = None
    lag_words: str = "no database was given"
    stalled: int = 0
    open_dead_letters: int | None = None
    dead_letter_words: str = "no database was given"


@dataclass(frozen=True, slots=True)
class Notice:
    """A problem that needs attention."""

    kind: str
    """``warning`` or ``error``."""
    title: str
    text: str
    place: str = ""
    """The URL with details, or empty."""
    place_name: str = ""


class OverviewPages(Pages):
    """The overview."""

    def __init__(
        self,
        console: Console,
        namespace: Namespace,
        consumers: Consumers | None,
        letters: DeadLetterView | None,
    ) -> None:
        self._console = console
        self._namespace = namespace
        self._processing = _Processing(console, consumers, letters)
        self._drawn: dict[bool, tuple[float, Mapping[str, str]]] = {}

    @get("/")
    async def show(self, request: Request) -> Response:
        rights = rights_of(request)
        if rights.hub is not None:
            return RedirectResponse(f"/hubs/{rights.hub}", status_code=303)
        if not rights.can_listen:
            return RedirectResponse("/hubs", status_code=303)
        return page(request, "overview/page.html", **await self._context())

    @get("/console/live/overview")
    async def live(self, request: Request) -> Response:
        require_listen(request)

        return self._console.streams.stream(request, lambda: self._fragments(request))

    async def _fragments(self, request: Request) -> Mapping[str, str]:
        """The live parts, rendered once for all viewers, because they do not depend on the session."""
        is_manager, now = rights_of(request).may_manage(), self._console.clock.monotonic()
        drawn_at, drawn = self._drawn.get(is_manager, (float("-inf"), {}))
        if now - drawn_at >= _SHARED_S:
            context = await self._context()
            drawn = {
                name: fragment(request, f"overview/{name}.html", **context)
                for name in ("notices", "figures", "load", "hubs")
            }
            self._drawn[is_manager] = now, drawn
        return drawn

    async def _context(self) -> dict[str, Any]:
        overview, processing = self._namespace.overview(), await self._processing.figures()
        return {
            "overview": overview,
            "processing": processing,
            "hubs": self._namespace.busiest_hubs(HUBS_SHOWN),
            "notices": list_notices(overview, processing),
            "events_chart": _chart(
                overview.history, "events/s", lambda rates: (rates.incoming_events, rates.outgoing_events)
            ),
            "bytes_chart": _chart(
                overview.history, "bytes/s", lambda rates: (rates.incoming_bytes, rates.outgoing_bytes)
            ),
            "load_words": _words(overview),
        }


class _Processing:
    """Queries the database periodically, once for all viewers."""

    def __init__(self, console: Console, consumers: Consumers | None, letters: DeadLetterView | None) -> None:
        self._console = console
        self._consumers = consumers
        self._letters = letters
        self._figures = ProcessingFigures(
            lag_words="is being asked for", dead_letter_words="is being asked for"
        )
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def figures(self) -> ProcessingFigures:
        """The last result; waits briefly for a running query."""
        if self._consumers is None or self._letters is None:
            return ProcessingFigures()
        now = self._console.clock.monotonic()
        if self._asking is None and now - self._asked_at >= _PROCESSING_S:
            self._asked_at = now
            self._asking = self._console.tasks.start(
                self._ask(self._consumers, self._letters), name="overview"
            )
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=_PATIENCE_S)
        return self._figures

    async def _ask(self, consumers: Consumers, letters: DeadLetterView) -> None:
        try:
            groups = await consumers.groups(at_most_s=None) or ()
            open_count = await letters.open_count(None)
        except TidegateError as error:
            self._figures = ProcessingFigures(
                lag_words="the database does not answer", dead_letter_words="the database does not answer"
            )
            _log.info("the overview cannot ask the database: %s", error)
            return
        finally:
            self._asking = None
        behind = max(groups, key=lambda group: group.lag.seconds or 0.0, default=None)
        lag_s = None if behind is None else behind.lag.seconds
        self._figures = ProcessingFigures(
            lag_s=lag_s,
            lag_words="no consumer group keeps a checkpoint"
            if behind is None
            else f"{behind.consumer_group} of {behind.event_hub}, {number(behind.lag.events)} events",
            stalled=sum(group.stalled_count for group in groups),
            open_dead_letters=open_count,
            dead_letter_words="redrive or discard them" if open_count else "none is waiting",
        )


def list_notices(overview: Overview, processing: ProcessingFigures) -> list[Notice]:
    """The problems that need attention, worst first."""
    notices = []
    if overview.disk.is_scarce:
        free = bytes_text(overview.disk.free_bytes)
        text = f"{free} are free; a full disk refuses what producers send."
        notices.append(Notice("error", "The disk is nearly full.", text))
    if overview.failing_captures:
        names = ", ".join(overview.failing_captures[:3])
        more = len(overview.failing_captures) - 3
        text = f"{names}{f' and {more} more' if more > 0 else ''}."
        place = f"/hubs/{overview.failing_captures[0]}/capture"
        notices.append(Notice("error", "Capture is failing.", text, place, "Why"))
    if processing.stalled:
        text = f"{number(processing.stalled)} have events to read but make no progress."
        notices.append(Notice("warning", "Partitions are stalled.", text, "/consumers", "Which"))
    if overview.is_congested:
        notices.append(Notice("warning", "The disk is behind.", "Producers wait until it catches up."))
    if overview.rates.throttled_requests:
        text = "Producers send more than the throughput units allow."
        notices.append(Notice("warning", "Requests are throttled.", text))
    return notices


def _chart(
    history: Sequence[Sample], unit: str, values: Callable[[Rates], tuple[float, float]]
) -> dict[str, object]:
    pairs = [values(sample.rates) for sample in history]
    return {
        "times": [round(sample.time_utc.timestamp()) for sample in history],
        "series": [
            {"label": "in", "values": [round(value, 1) for value, _ in pairs]},
            {"label": "out", "values": [round(value, 1) for _, value in pairs]},
        ],
        "unit": unit,
    }


def _words(overview: Overview) -> str:
    """The charts in words, for screen readers."""
    history = overview.history
    if not history:
        return "The first figures come in a second."
    span = duration((history[-1].time_utc - history[0].time_utc).total_seconds() + 1)
    most_in = max(sample.rates.incoming_events for sample in history)
    most_out = max(sample.rates.outgoing_events for sample in history)
    bytes_in = max(sample.rates.incoming_bytes for sample in history)
    bytes_out = max(sample.rates.outgoing_bytes for sample in history)
    return (
        f"At most in the last {span}: in {number(round(most_in))} events and {bytes_text(bytes_in)}, "
        f"out {number(round(most_out))} events and {bytes_text(bytes_out)} per second."
    )
