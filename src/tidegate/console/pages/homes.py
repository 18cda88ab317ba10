"""``/homes``: homes of the home security demo, and ``/homes/ID``: what the resident of one sees, live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tidegate.console.access import require_listen
from tidegate.console.backend.homes import HOMES_EVENT_HUB, HomesView, ShownHome
from tidegate.console.backend.paging import PAGE_SIZE
from tidegate.console.context import Console
from tidegate.console.errors import status_of
from tidegate.console.rendering import fragment, page
from tidegate.model.errors import NotFoundError, TidegateError
from tidegate.model.home_summary import ACTIVITY_MAX, HOURS, HomeAlarm, HomeSummary, Room

LIVE_EVERY_S: Final = 2.0

_ALARMS: Final = {
    "glass_break": "Glass broke",
    "door_open": "Left open",
    "carbon_monoxide": "Carbon monoxide",
}
_LEVELS: Final = ("none", "a little", "some", "a lot")


def routes(console: Console) -> list[Route]:
    """What is served."""
    pages = _Pages(console)
    return [
        Route("/homes", pages.show_list, methods=["GET"]),
        # A home's name is any text, with slashes, too.
        Route("/homes/{home:path}", pages.show, methods=["GET"]),
        Route("/console/live/homes", pages.live_list, methods=["GET"]),
        Route("/console/live/homes/{home:path}", pages.live, methods=["GET"]),
    ]


class _Pages:
    def __init__(self, console: Console) -> None:
        self._streams = console.streams
        self._view = console.backend.homes
        self._clock = console.clock

    # --- the list -----------------------------------------------------------------------------------------

    async def show_list(self, request: Request) -> Response:
        require_listen(request, HOMES_EVENT_HUB)
        if self._view is None:
            return page(request, "homes_absent.html")
        if home := request.query_params.get("home", "").strip():
            return RedirectResponse(f"/homes/{quote(home, safe='')}", status_code=303)
        context = await self._list_context(request, self._view)
        live = urlencode({name: context[name] for name in ("search", "after") if context[name]})
        status_code = 503 if context["problem"] and context["index"] is None else 200
        return page(request, "homes.html", status_code=status_code, live=live, **context)

    async def live_list(self, request: Request) -> Response:
        require_listen(request, HOMES_EVENT_HUB)
        view = self._known_view()

        async def render() -> Mapping[str, str]:
            context = await self._list_context(request, view) | {"now": self._clock.now_utc()}
            return {"homes": fragment(request, "homes_list.html", **context)}

        return self._streams.stream(request, render, every_s=LIVE_EVERY_S)

    async def _list_context(self, request: Request, view: HomesView) -> dict[str, Any]:
        search, after = request.query_params.get("search", "").strip(), request.query_params.get("after", "")
        index, problem = None, None
        try:
            index = await view.homes(search=search, after=after, size=PAGE_SIZE)
            problem = index.problem
        except TidegateError as error:
            problem = str(error)
        return {"index": index, "problem": problem, "place": view.place, "search": search, "after": after}

    def _known_view(self) -> HomesView:
        if self._view is None:
            raise NotFoundError("This service was given no place of summaries.")
        return self._view

    # --- one home -----------------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        require_listen(request, HOMES_EVENT_HUB)
        if self._view is None:
            return page(request, "homes_absent.html")
        name = request.path_params["home"]
        try:
            found, error = await self._view.home(name), None
        except NotFoundError:
            raise
        except TidegateError as raised:
            # The page stays open and shows the home as soon as it can be read.
            found, error = None, raised
        return page(
            request,
            "home.html",
            status_code=status_of(error),
            address=f"/homes/{quote(name, safe='')}",
            sentence="" if found is None else _sentence(found.summary),
            **_home_context(name, found, error),
        )

    async def live(self, request: Request) -> Response:
        require_listen(request, HOMES_EVENT_HUB)
        view = self._known_view()
        name = request.path_params["home"]
        found: ShownHome | None = None

        async def render() -> Mapping[str, str]:
            nonlocal found
            error: TidegateError | None = None
            try:
                found = await view.home(name)
            except TidegateError as raised:
                error = raised  # what was read last stays, with a word about its age
            context = _home_context(name, found, error) | {"now": self._clock.now_utc()}
            fragments: dict[str, str] = {
                "figures": fragment(request, "home_figures.html", **context),
                "home": fragment(request, "home_now.html", **context),
            }
            if found is not None:
                fragments["sentence"] = _sentence(found.summary)
            return fragments

        return self._streams.stream(request, render, every_s=LIVE_EVERY_S)


# --- what templates are given -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownRoom:
    """A room, in words."""

    name: str
    strip: Markup
    hours: str


def _home_context(name: str, found: ShownHome | None, error: TidegateError | None) -> dict[str, Any]:
    context: dict[str, Any] = {"name": name, "found": found, "error": error}
    if found is None:
        return context
    summary = found.summary
    return context | {
        "summary": summary,
        "open": [opening for opening in summary.openings if opening.is_open],
        "rooms": [
            ShownRoom(words_of(room.name), hours_strip(room), hours_in_words(room)) for room in summary.rooms
        ],
        "openings": [
            (sensor_in_words(opening.sensor), opening, time_of_day(opening.since, summary.day))
            for opening in summary.openings
        ],
        "alarms": [
            (alarm_in_words(alarm), sensor_in_words(alarm.sensor), time_of_day(alarm.at, summary.day))
            for alarm in summary.alarms
        ],
        "activity": activity_chart(summary.activity),
        "activity_words": activity_in_words(summary.activity),
    }


def words_of(name: str) -> str:
    """``living-room`` as ``Living room``."""
    return name.replace("-", " ").replace("_", " ").capitalize()


def sensor_in_words(sensor: str) -> str:
    """``door-front`` as ``Front door``, ``glass-living-room`` as ``Living room glass``."""
    kind, _, place = sensor.partition("-")
    names = {"co": "carbon monoxide detector"}
    return words_of(f"{place} {names.get(kind, kind)}") if place else words_of(kind)


def alarm_in_words(alarm: HomeAlarm) -> str:
    """What happened."""
    return _ALARMS.get(alarm.kind, words_of(alarm.kind))


def _sentence(summary: HomeSummary) -> str:
    """How the home is, for those who hear it."""
    is_open = [sensor_in_words(opening.sensor) for opening in summary.openings if opening.is_open]
    doors = "Everything is closed." if not is_open else f"Open: {', '.join(is_open)}."
    if not summary.openings:
        doors = "Nothing was heard from doors and windows yet."
    if not summary.alarms:
        return f"{doors} No alarms."
    newest = summary.alarms[0]
    return f"{doors} Latest alarm: {alarm_in_words(newest)}, {sensor_in_words(newest.sensor)}."


def hours_in_words(room: Room) -> str:
    """``Motion from 6 to 9 and from 17 to 18``: hours of the day, until the end of the last one."""
    runs: list[list[int]] = []
    for hour in room.hours_with_motion:
        if runs and runs[-1][1] == hour:
            runs[-1][1] = hour + 1
        else:
            runs.append([hour, hour + 1])
    if not runs:
        return "No motion yet"
    *first, last = [f"from {start} to {end}" for start, end in runs]
    return "Motion " + (f"{', '.join(first)} and {last}" if first else last)


def hours_strip(room: Room) -> Markup:
    """A day as 24 cells, those with motion filled."""
    cells = "".join(
        f'<rect class="{"on" if hour in room.hours_with_motion else "off"}" x="{hour * 10 + 0.5}" y="0.5" '
        'width="9" height="9" rx="1.5"/>'
        for hour in range(HOURS)
    )
    return Markup(f'<svg class="hours" aria-hidden="true" viewBox="0 0 {HOURS * 10} 10">{cells}</svg>')


def activity_chart(levels: tuple[int, ...]) -> Markup:
    """A bar for each hour of the day; what it says stands beside it in words."""
    unit, base = 22, ACTIVITY_MAX * 22 + 6
    bars = "".join(
        f'<rect class="level-{level}" x="{hour * 20 + 3}" y="{base - max(level * unit, 2)}" width="14" '
        f'height="{max(level * unit, 2)}" rx="2"/>'
        for hour, level in enumerate(levels)
    )
    marks = "".join(
        f'<text x="{hour * 20 + 10}" y="{base + 14}">{hour:02}</text>' for hour in range(0, HOURS, 3)
    )
    return Markup('<svg class="activity" role="img" aria-label="{}" viewBox="0 0 480 {}">{}{}</svg>').format(
        activity_in_words(levels), base + 18, Markup(bars), Markup(marks)
    )


def activity_in_words(levels: tuple[int, ...]) -> str:
    """The day's activity in a sentence."""
    by_level = {
        words: [str(hour) for hour, level in enumerate(levels) if level == known]
        for known, words in enumerate(_LEVELS)
        if known
    }
    parts = [f"{words} at {', '.join(hours)}" for words, hours in reversed(by_level.items()) if hours]
    if not parts:
        return "No activity yet on this day"
    return f"Activity by hour: {'; '.join(parts)}; else none"


def time_of_day(at: datetime, day: date | None) -> Markup:
    """``06:15``, with the date where it is another day's; exact for whoever asks."""
    words = f"{at:%H:%M}" if at.date() == day else f"{at:%Y-%m-%d %H:%M}"
    exact = at.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, words)
