"""``/pipelines``: the Spark queries that report on this machine; ``/pipelines/NAME``: one of them, live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.pages import Pages, get, post, see_other
from tidegate.console.frame.paging import PAGE_SIZE, Page
from tidegate.console.frame.rendering import counted, fragments, page
from tidegate.console.frame.rights import Rights
from tidegate.console.frame.sessions import (
    form_of,
    require_listen,
    require_manage,
    require_session,
    rights_of,
    session_of,
)
from tidegate.console.pipelines.reported import (
    PipelineEntry,
    PipelineList,
    PipelineSample,
    ReportedPipelines,
    absent_pipeline,
)
from tidegate.model.errors import NotFoundError, TidegateError
from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.transport.status_files import ForeignPipelineError

LIVE_EVERY_S = 1.0
_LOG_EVERY = 3
"""The log is read at every third update."""

STATE_LOOKS = {
    PipelineState.RUNNING: "good",
    PipelineState.STARTING: "warning",
    PipelineState.STOPPING: "warning",
    PipelineState.FAILED: "bad",
    PipelineState.KILLED: "bad",
}
"""Other states have no special style."""

_LIST_PARTS: Final = {
    "notices": "pipelines/notices.html",
    "pipelines": "pipelines/table.html",
    "pages": "pipelines/pages.html",
    "tally": "pipelines/tally.html",
}
_ONE_PARTS: Final = {
    "pipeline": "pipelines/pipeline_now.html",
    "facts": "pipelines/pipeline_facts.html",
    "lag": "pipelines/pipeline_lag.html",
    "actions": "pipelines/pipeline_actions.html",
}


@dataclass(eq=False)
class PipelinePages(Pages):
    """The pipelines of this machine."""

    pipelines: ReportedPipelines

    # --- all ----------------------------------------------------------------------------------------------

    @get("/pipelines")
    async def show_list(self, request: Request) -> Response:
        # A policy of one hub sees that hub's pipelines; users without Listen get an error.
        require_listen(request, rights_of(request).hub)
        context = await self._list_context(request)
        live = urlencode({name: context[name] for name in ("search", "after") if context[name]})
        return page(request, "pipelines/page.html", live=live, **context)

    @get("/console/live/pipelines")
    async def stream_list(self, request: Request) -> Response:
        require_listen(request, rights_of(request).hub)
        return self.live(request, self._list_context, _LIST_PARTS, every_s=LIVE_EVERY_S)

    async def _list_context(self, request: Request) -> dict[str, Any]:
        search, after = request.query_params.get("search", "").strip(), request.query_params.get("after", "")
        found = seen_by(request, await self.pipelines.pipelines())
        shown = _page_of([entry for entry in found.entries if _matches(entry, search)], after)
        return {
            "entries": [_shown(entry) for entry in shown.items],
            "list": shown,
            "unreadable": found.unreadable,
            "tally": _tally(found),
            "is_any": bool(found.entries),
            "directory": self.pipelines.directory,
            "search": search,
            "after": after,
        }

    # --- one ----------------------------------------------------------------------------------------------

    @get("/pipelines/{name}")
    async def show(self, request: Request) -> Response:
        context = await self._one_context(request)
        log_path, log = await self.pipelines.log_tail(context["entry"])
        return page(request, "pipelines/pipeline.html", log_path=log_path, log=log, **context)

    @get("/console/live/pipelines/{name}")
    async def stream(self, request: Request) -> Response:
        await self._one_context(request)
        beats = 0

        async def render() -> Mapping[str, str] | None:
            nonlocal beats
            try:
                context = await self._one_context(request)
                parts = await self._draw(request, context) | {"state": context["sentence"]}
                if beats % _LOG_EVERY == 0:
                    _, parts["log"] = await self.pipelines.log_tail(context["entry"])
            except NotFoundError:
                return None  # deleted
            except TidegateError as error:
                return {"state": str(error)}
            beats += 1
            return parts

        return self.console.streams.stream(request, render, every_s=LIVE_EVERY_S)

    async def _draw(self, request: Request, context: Mapping[str, Any]) -> dict[str, str]:
        return await self.console.streams.draw(lambda: fragments(request, _ONE_PARTS, context))

    async def _one_context(self, request: Request) -> dict[str, Any]:
        entry = await self._entry(request)
        status = entry.status
        behind = sorted(status.lag_by_partition.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
        return {
            **_shown(entry),
            "behind": behind[:PAGE_SIZE],
            "behind_total": len(behind),
            "chart": _chart(entry.history),
            "sentence": _sentence(entry),
            "may_stop": rights_of(request).may_manage(status.event_hub),
        }

    async def _entry(self, request: Request) -> PipelineEntry:
        # Checked first, so that users without Listen do not learn which names exist.
        rights = rights_of(request)
        require_listen(request, rights.hub)
        entry = await self.pipelines.pipeline(request.path_params["name"], is_every_seen=rights.may_listen())
        _require_seen(request, entry)
        return _with_own_history(rights, entry)

    @get("/pipelines/{name}/stop")
    async def confirm_stop(self, request: Request) -> Response:
        entry = await self._entry(request)
        require_manage(request, entry.status.event_hub)
        return page(request, "pipelines/pipeline_stop.html", **_shown(entry))

    @post("/pipelines/{name}/stop")
    async def stop(self, request: Request) -> Response:
        await form_of(request)
        rights, session, name = rights_of(request), session_of(request), request.path_params["name"]
        require_listen(request, rights.hub)

        def require_right(entry: PipelineEntry) -> None:
            require_session(request)  # finding the pipeline may wait for others' looks
            _require_seen(request, entry)
            require_manage(request, entry.status.event_hub)

        try:
            is_asked = await self.pipelines.stop(name, require_right, is_every_seen=rights.may_listen())
        except ForeignPipelineError as error:
            session.flash("error", str(error))
        else:
            if is_asked:
                session.flash("success", f"{name} was asked to stop; its micro-batch finishes first.")
            else:
                session.flash("warning", f"{name} is not running.")
        return see_other(f"/pipelines/{quote(name, safe='')}")


def _require_seen(request: Request, entry: PipelineEntry) -> None:
    if not _is_seen(rights_of(request), entry.status):
        # As if it did not exist: the user may not learn the name of its event hub.
        raise absent_pipeline(entry.name)


def _is_seen(rights: Rights, status: PipelineStatus) -> bool:
    return rights.may_see(status.event_hub, status.started_at)


def _with_own_history(rights: Rights, entry: PipelineEntry) -> PipelineEntry:
    """Without samples of an earlier hub's pipeline of that name."""
    return replace(entry, history=[each for each in entry.history if rights.is_theirs(each.at)])


def seen_by(request: Request, found: PipelineList) -> PipelineList:
    """Those that the user may see."""
    rights = rights_of(request)
    return PipelineList(
        [_with_own_history(rights, each) for each in found.entries if _is_seen(rights, each.status)],
        found.unreadable if rights.may_listen() else {},
    )


def _matches(entry: PipelineEntry, search: str) -> bool:
    words = (entry.name, entry.status.event_hub, entry.status.target, entry.status.state.value)
    return any(search.casefold() in word.casefold() for word in words)


def _page_of(entries: Sequence[PipelineEntry], after: str) -> Page[PipelineEntry]:
    rest = [entry for entry in entries if entry.name > after]
    items = rest[:PAGE_SIZE]
    return Page(items, total=len(entries), next=items[-1].name if len(rest) > PAGE_SIZE else None)


def _shown(entry: PipelineEntry) -> dict[str, Any]:
    status = entry.status
    history = [sample for sample in entry.history if sample.processed_events_per_s is not None]
    rates = [sample.processed_events_per_s or 0.0 for sample in history]
    return {
        "entry": entry,
        "name": entry.name,
        "status": status,
        "look": STATE_LOOKS.get(status.state, ""),
        "since": status.ended_at or status.started_at,
        "rates": rates if len(rates) > 1 else None,
        "rates_label": _rates_label(history),
        "problem": _problem(entry),
        "next_step": _next_step(status),
        "address": f"/pipelines/{quote(entry.name, safe='')}",
    }


def _rates_label(history: Sequence[PipelineSample]) -> str:
    if not history:
        return ""
    rates = [sample.processed_events_per_s or 0.0 for sample in history]
    minutes = max(1, round((history[-1].at - history[0].at).total_seconds() / 60))
    return (
        f"Events processed per second in the last {minutes} min: "
        f"now {rates[-1]:,.0f}, lowest {min(rates):,.0f}, highest {max(rates):,.0f}"
    )


def _problem(entry: PipelineEntry) -> str | None:
    status = entry.status
    if status.state is PipelineState.KILLED:
        return f"Its process {status.process.pid} is gone and reported no end."
    if status.error is not None:
        return status.error
    if entry.silent_s is not None:
        return f"Its process runs but has reported nothing for {entry.silent_s:,.0f} s."
    return None


def _next_step(status: PipelineStatus) -> str:
    """What to do next, unless its error already says so."""
    match status.state:
        case PipelineState.KILLED:
            return "Start it again: it continues after what it has committed."
        case PipelineState.FAILED:
            return "See its log below. Once fixed and started, it continues where it stopped."
        case PipelineState.STARTING if status.error is not None:
            return "Nothing, unless this does not help; see its log below."
        case PipelineState.STARTING | PipelineState.RUNNING | PipelineState.STOPPING:
            return "It may hang, wait for a disk, or be paused (SIGSTOP); see its log below."
        case _:
            return ""


def _sentence(entry: PipelineEntry) -> str:
    """The pipeline's state for screen readers; does not change with every micro-batch."""
    status = entry.status
    if entry.is_stop_asked and status.state is not PipelineState.STOPPING:
        return f"{entry.name} was asked to stop."
    return f"{entry.name}: {status.state.value}."


def _tally(found: PipelineList) -> str:
    counts = Counter(entry.status.state.value for entry in found.entries)
    counts["unreadable"] = len(found.unreadable)
    parts = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if count)
    return f"{counted(counts.total(), 'pipeline')}: {parts}." if parts else "No pipelines."


def _chart(history: Sequence[PipelineSample]) -> dict[str, Any] | None:
    """Two lines over time, in the format of ``console.js``; None with fewer than two points."""
    if len(history) < 2:
        return None
    return {
        "times": [round(sample.at.timestamp(), 1) for sample in history],
        "series": [
            {"label": "events in", "values": [sample.input_events_per_s for sample in history]},
            {"label": "processed", "values": [sample.processed_events_per_s for sample in history]},
        ],
        "unit": "/s",
    }
