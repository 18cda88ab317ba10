"""``/``: the state of the whole service, live."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.pages import Pages, get, see_other
from tidegate.console.frame.rendering import ABSENT, bytes_text, duration, listed, number, page
from tidegate.console.frame.sessions import require_listen, rights_of
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.console.hubs.day_charts import load_context
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.hubs.sampler import Disk, Rates, Sample
from tidegate.model.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers
    from tidegate.console.consumers.progress import GroupSummary
    from tidegate.console.dead_letters.letters import DeadLetterView

HUBS_SHOWN: Final = 12
"""Event hubs on the overview, the busiest first."""

_PROCESSING_S: Final = 5.0
"""Seconds between queries of the database."""
_PATIENCE_S: Final = 0.1
"""Seconds that a page waits for the database; later results are sent live."""
_SILENCE_S: Final = 15.0
"""Seconds after which earlier figures are not shown instead of those that the database has not given (our
choice: two queries were missed)."""
UNKNOWN: Final = "unknown"
_NO_ANSWER: Final = "the database does not answer"

_PARTS: Final = {name: f"overview/{name}.html" for name in ("notices", "figures", "load", "hubs")}
_SERIES: Final = {"incoming": "in", "outgoing": "out"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessingFigures:
    """Figures of all consumer groups, from the database; None: not known."""

    lag_words: str = ""
    dead_letter_words: str = ""
    oldest_lag: str = UNKNOWN
    stalled: int = 0
    open_dead_letters: int | None = None


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


@dataclass(eq=False)
class OverviewPages(Pages):
    """The overview. letters: None without a database."""

    namespace: Namespace
    open_consumers: Callable[[], Consumers]
    letters: DeadLetterView | None

    def __post_init__(self) -> None:
        clock, tasks = self.console.clock, self.console.tasks
        self._answers: SharedAnswers[str, ProcessingFigures] = SharedAnswers(
            clock, kept_s=_PROCESSING_S, tasks=tasks
        )
        self._last = _unknown("is being asked for")
        self._last_at_s = clock.monotonic()

    @get("/")
    async def show(self, request: Request) -> Response:
        rights = rights_of(request)
        if rights.hub is not None:
            return see_other(f"/hubs/{rights.hub}")
        if not rights.can_listen:
            return see_other("/hubs")
        context = await self._context(request)
        context |= load_context(self.namespace.recorder.day, "", "/console/charts")
        return page(request, "overview/page.html", is_day=_is_day(request), **context)

    @get("/console/live/overview")
    async def stream(self, request: Request) -> Response:
        require_listen(request)
        # The day's charts ask for their values, once a minute.
        without = {"load"} if _is_day(request) else set()
        parts = {name: template for name, template in _PARTS.items() if name not in without}
        return self.live(request, self._context, parts)

    async def _context(self, request: Request) -> dict[str, Any]:
        namespace, sampler, processing = self.namespace, self.namespace.sampler, await self._processing()
        hubs = namespace.broker.list_event_hubs()
        partitions = [partition for hub in hubs for partition in hub.partitions]
        return {
            "rates": sampler.rates,
            "throttled_requests": sampler.throttled_requests,
            "throughput_units": namespace.broker.throughput.units,
            "disk": sampler.disk,
            "connections": namespace.connection_count(),
            "receivers": sum(len(partition.receivers()) for partition in partitions),
            "hub_count": len(hubs),
            "partition_count": len(partitions),
            "processing": processing,
            "hubs": namespace.busiest_hubs(HUBS_SHOWN),
            "notices": list_notices(
                sampler.disk,
                sampler.rates,
                namespace.failing_captures(),
                processing.stalled,
                is_congested=namespace.broker.is_congested,
                failed=[hub.name for hub in hubs if any(each.is_failed for each in hub.partitions)],
            ),
            "events_chart": _chart(sampler.history, "events"),
            "bytes_chart": _chart(sampler.history, "bytes"),
            "load_words": _words(sampler.history),
        }

    async def _processing(self) -> ProcessingFigures:
        """The last known figures, unless they are old; waits briefly for new ones."""
        consumers, clock = self.open_consumers(), self.console.clock
        found = await self._answers.ask("all", lambda: _ask(consumers, self.letters), at_most_s=_PATIENCE_S)
        if found is not None:
            self._last, self._last_at_s = found, clock.monotonic()
        elif clock.monotonic() - self._last_at_s > _SILENCE_S:
            return _unknown(_NO_ANSWER)
        return self._last


def _is_day(request: Request) -> bool:
    """Whether the charts show the last 24 hours."""
    return request.query_params.get("range") == "day"


def _unknown(words: str) -> ProcessingFigures:
    return ProcessingFigures(lag_words=words, dead_letter_words=words)


async def _ask(consumers: Consumers, letters: DeadLetterView | None) -> ProcessingFigures:
    try:
        found = await consumers.groups(None, at_most_s=None)
        assert found is not None
        open_count, problems = (None, {}) if letters is None else await letters.open_count()
    except TidegateError as error:
        _log.info("the overview cannot ask the database: %s", error)
        return _unknown(_NO_ANSWER)
    problems = {**found.problems, **problems}
    for why in problems.values():
        _log.info("the overview cannot ask a database: %s", why)
    groups = [each.summary for each in found.groups]
    if letters is None:
        letter_words = "no database was given"
    else:
        letter_words = "redrive or discard them" if open_count else "none is waiting"
    problem = ""
    if problems:
        problem = _NO_ANSWER if len(consumers.databases) == 1 else "a database does not answer"
        letter_words = f"at least; {problem}" if open_count else problem
    oldest_lag, lag_words = oldest_lag_of(groups, problem)
    return ProcessingFigures(
        oldest_lag=oldest_lag,
        lag_words=lag_words,
        stalled=sum(group.stalled_count for group in groups),
        open_dead_letters=(open_count or None) if problem else open_count,
        dead_letter_words=letter_words,
    )


def oldest_lag_of(groups: Sequence[GroupSummary], problem: str = "") -> tuple[str, str]:
    """The most lag in time of a group of this service's hubs, and whose it is; not less than it may be.

    problem: why there may be more groups; empty: these are all.
    """
    here = [(group.lag.seconds, group) for group in groups if group.is_hub_here]
    if not here:
        return (UNKNOWN, problem) if problem else (ABSENT, "no consumer group keeps a checkpoint")
    unknown = [group for seconds, group in here if seconds is None]
    worst_s, worst = max(((each or 0.0, group) for each, group in here), key=itemgetter(0))
    if unknown or problem:
        names = listed([f"{each.consumer_group} of {each.event_hub}" for each in unknown], 1)
        words = problem or f"not known of {names}"
        return f"at least {duration(worst_s)}" if worst_s else UNKNOWN, words
    words = f"{worst.consumer_group} of {worst.event_hub}, {number(worst.lag.events)} events"
    return duration(worst_s), words


def list_notices(
    disk: Disk,
    rates: Rates,
    failing_captures: Sequence[str],
    stalled: int,
    *,
    is_congested: bool,
    failed: Sequence[str] = (),
) -> list[Notice]:
    """The problems that need attention, worst first.

    failing_captures: names of hubs. stalled: partitions. is_congested: whether reading from producers is
    paused because the disk is too slow. failed: names of hubs with partitions that accept no events.
    """
    notices = []
    if failed:
        text = f"{listed(failed, 3)}: they accept no events until the service restarts."
        notices.append(Notice("error", "Partitions have failed.", text, f"/hubs/{failed[0]}", "Why"))
    if disk.is_scarce:
        free = bytes_text(disk.free_bytes)
        text = f"{free} are free; a full disk refuses what producers send."
        notices.append(Notice("error", "The disk is nearly full.", text))
    if failing_captures:
        text = f"{listed(failing_captures, 3)}."
        place = f"/hubs/{failing_captures[0]}/capture"
        notices.append(Notice("error", "Capture is failing.", text, place, "Why"))
    if stalled:
        text = f"{number(stalled)} have events to read but make no progress."
        notices.append(Notice("warning", "Partitions are stalled.", text, "/consumers", "Which"))
    if is_congested:
        notices.append(Notice("warning", "The disk is behind.", "Producers wait until it catches up."))
    if rates.throttled_requests:
        text = "Producers send more than the throughput units allow."
        notices.append(Notice("warning", "Requests are throttled.", text))
    return notices


def _chart(history: Sequence[Sample], what: str) -> dict[str, object]:
    """what: ``events`` or ``bytes``."""
    series = {label: [getattr(sample.rates, f"{label}_{what}") for sample in history] for label in _SERIES}
    return {
        "times": [round(sample.time_utc.timestamp()) for sample in history],
        "series": [
            {"label": _SERIES[label], "values": [round(value, 1) for value in values]}
            for label, values in series.items()
        ],
        "unit": f"{what}/s",
    }


def _words(history: Sequence[Sample]) -> str:
    """The charts in words, for screen readers."""
    if not history:
        return "The first figures come in a second."
    span = duration((history[-1].time_utc - history[0].time_utc).total_seconds() + 1)
    most = Rates(*map(max, zip(*(sample.rates for sample in history), strict=True)))
    return (
        f"At most in the last {span}: in {number(round(most.incoming_events))} events and "
        f"{bytes_text(most.incoming_bytes)}, out {number(round(most.outgoing_events))} events and "
        f"{bytes_text(most.outgoing_bytes)} per second."
    )
