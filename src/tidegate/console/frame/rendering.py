"""Pages from templates: the Jinja environment, its filters, and ``page``.

A template is in its page's folder, and named by its path below ``console/``: ``hubs/table.html``.
Autoescaping is always on, and control characters and those that reorder text are shown as ``visible`` has
them: no template can forget either. The fields of forms are ``exact``, so that what is sent back is what was
there. Filters format numbers with grouped digits, sizes in powers of 1,024, and times in UTC.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import jinja2
from jinja2.meta import find_referenced_templates, find_undeclared_variables
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from tidegate.console.frame.rights import Rights
from tidegate.console.frame.sessions import FORM_TOKEN, Session
from tidegate.model.errors import DatabaseError, TidegateError
from tidegate.model.events import VISIBLE_CONTROLS
from tidegate.model.times import time_of

STATIC_DIRECTORY: Final = Path(__file__).parents[1] / "static"
STATIC_PATH: Final = "/console/static"

NAVIGATION: Final = (
    ("/", "Overview"),
    ("/hubs", "Event hubs"),
    ("/consumers", "Consumers"),
    ("/dead-letters", "Dead letters"),
    ("/pipelines", "Pipelines"),
    ("/keys", "Keys"),
    ("/audit", "Audit"),
)

ABSENT: Final = "–"
"""Shown if there is no value."""

_PICTURES: Final = {
    **{chr(code): text for code, text in VISIBLE_CONTROLS.items() if chr(code) not in "\t\n\r"},
    **{chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"},
    "\x7f": "\u2421",
    **dict.fromkeys(map(chr, range(0x80, 0xA0)), "\ufffd"),
}
_UNSEEN: Final = re.compile(f"[{''.join(_PICTURES)}]")
_TRANSLATION: Final = str.maketrans(_PICTURES)

_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_AGO_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def page(
    request: Request, template: str, *, status_code: int = 200, **context: Any
) -> HTMLResponse:  # Any: what a template is given is the template's affair
    """A whole page. Besides ``context``, templates have ``path``, ``rights`` (None: not signed in),
    ``session``, ``flashes``, ``form_token`` (a hidden field for every form) and ``now``.
    """
    text = fragment(request, template, **_frame(request), **context)
    return HTMLResponse(text, status_code=status_code, headers={"Cache-Control": "no-store"})


def fragment(request: Request, template: str, **context: Any) -> Markup:
    """A part of a page, for live updates: without flashes, with ``rights`` and ``form_token``.

    An error in ``problem`` is shown as ``for_users`` has it.
    """
    session = getattr(request.state, "session", None)
    values: dict[str, Any] = {
        "path": quote(request.scope["path"]),
        "rights": getattr(request.state, "rights", None),
        "session": session,
        "form_token": _form_token(session),
        "now": request.state.clock.now_utc(),
    }
    if isinstance(problem := context.get("problem"), TidegateError):
        values["problem"] = for_users(problem, values["rights"])
        del context["problem"]
    return rendered(template, values | context)


def rendered(template: str, context: Mapping[str, Any]) -> Markup:
    """A part of a page that shows nothing of the request."""
    # The template has escaped its values.
    return Markup(environment().get_template(template).render(context))


def fragments(request: Request, parts: Mapping[str, str], context: Mapping[str, Any]) -> dict[str, str]:
    """Several fragments by name, from templates by name."""
    return {name: fragment(request, template, **context) for name, template in parts.items()}


@cache
def is_personal(template: str) -> bool:
    """Whether a template, or one that it includes, shows something of the viewer's session, such as a form's
    token."""
    loader = environment().loader
    assert loader is not None
    tree = environment().parse(loader.get_source(environment(), template)[0])
    if not {"session", "form_token"}.isdisjoint(find_undeclared_variables(tree)):
        return True
    return any(each is None or is_personal(each) for each in find_referenced_templates(tree))


def for_users(error: TidegateError, rights: Rights | None) -> TidegateError:
    """The error as remote users see it: without paths of the service's machine; a hub's policy does not see
    where the database is either."""
    if isinstance(error, DatabaseError) and (rights is None or rights.hub is not None):
        return TidegateError(
            "The database failed, or cannot be reached.",
            next_step="A policy of the namespace is shown the reason.",
        )
    return TidegateError(error.remote_text) if error.remote_text else error


@cache
def environment() -> jinja2.Environment:
    """The one environment; templates are compiled once per process."""
    loaded = jinja2.Environment(
        loader=jinja2.FileSystemLoader(STATIC_DIRECTORY.parent),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    loaded.filters |= {
        "number": number,
        "counted": counted,
        "bytes": bytes_text,
        "rate": rate,
        "ago": ago,
        "duration": duration,
        "utc": utc,
        "short": short,
        "sparkline": sparkline,
        "for_users": for_users,
        "exact": escape,
    }
    loaded.globals |= {"static": static_url, "absent": ABSENT}
    return loaded


def number(value: float | None) -> str:
    """``1,234,567``; fractions only below 100, with one digit."""
    if value is None:
        return ABSENT
    if value != round(value) and abs(value) < 100:
        return f"{value:,.1f}"
    return f"{round(value):,}"


def shown(value: object) -> str:
    """A value as every page shows it: text ``visible``, HTML as it is."""
    return value if isinstance(value, Markup) else visible(str(value))


def visible(text: str) -> str:
    """Text with a symbol for each control character, except line ends and tabs, and an escape for each that
    reorders text."""
    # Not with a function of each match: a sender may send nothing but such characters.
    return text if text.isprintable() or _UNSEEN.search(text) is None else text.translate(_TRANSLATION)


def counted(value: int, noun: str) -> str:
    """``1 partition``, ``1,024 partitions``."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def listed(names: Sequence[str], shown: int) -> str:
    """``a, b and 5 more``: the first ``shown`` names."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def bytes_text(value: float | None) -> str:
    """``1.5 MB``, in powers of 1,024 as Event Hubs' own limits are."""
    if value is None:
        return ABSENT
    size, unit = float(value), 0
    while abs(size) >= 1023.5 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = 1 if unit and abs(size) < 99.95 else 0
    return f"{size:,.{digits}f} {_BYTE_UNITS[unit]}"


def rate(value: float | None, unit: str = "") -> str:
    """``1,234 /s``; with ``bytes`` as the unit ``1.5 MB/s``."""
    if value is None:
        return ABSENT
    return f"{bytes_text(value)}/s" if unit == "bytes" else f"{number(float(value))} /s"


def duration(seconds: float | None) -> str:
    """``3 min 20 s``: the two largest units."""
    if seconds is None:
        return ABSENT
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in _AGO_STEPS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def ago(value: datetime | int | None, now: datetime | None) -> Markup:
    """``5 s ago``, with the exact time as a tooltip; ``never`` for None."""
    if value is None:
        return Markup(ABSENT)
    if now is None:
        return utc(value)
    value = _moment(value)
    seconds = (now - value).total_seconds()
    text = f"{duration(seconds)} ago" if seconds >= 1 else "now"
    if seconds <= -1:
        text = f"in {duration(-seconds)}"
    return _time(value, text)


def utc(value: datetime | int | None) -> Markup:
    """``2026-11-22 07:25:01 UTC``."""
    if value is None:
        return Markup(ABSENT)
    value = _moment(value)
    return _time(value, f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC", form="full")


def short(value: datetime) -> Markup:
    """``11-22 07:25``, in UTC, for axes."""
    return _time(value, f"{value.astimezone(UTC):%m-%d %H:%M}", form="short")


def sparkline(values: Sequence[float], label: str, *, width: int = 120, height: int = 28) -> Markup:
    """A small line chart of values, oldest first, as an SVG with ``label`` as its text alternative."""
    top = max(values, default=0) or 1
    step = width / max(1, len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{height - 2 - (height - 4) * value / top:.1f}"
        for index, value in enumerate(values)
    )
    return Markup(
        '<svg class="sparkline" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}" '
        'preserveAspectRatio="none"><polyline points="{}"/></svg>'
    ).format(label, width, height, width, height, points)


@cache
def static_url(name: str) -> str:
    """The URL of a static file; it changes with the file, so that browsers may cache it forever."""
    digest = hashlib.sha256((STATIC_DIRECTORY / name).read_bytes()).hexdigest()
    return f"{STATIC_PATH}/{name}?v={digest[:12]}"


def _frame(request: Request) -> dict[str, Any]:
    session = getattr(request.state, "session", None)
    rights = getattr(request.state, "rights", None)
    assert rights is None or isinstance(rights, Rights)
    current = max(
        (path for path, _ in NAVIGATION if _is_under(request.scope["path"], path)), key=len, default=""
    )
    return {
        "navigation": NAVIGATION,
        "current": current,
        "flashes": session.take_flashes() if isinstance(session, Session) else [],
    }


def _is_under(path: str, place: str) -> bool:
    return path == place or (place != "/" and path.startswith(f"{place}/"))


def _form_token(session: Session | None) -> Markup:
    if session is None:
        return Markup("")
    return Markup(f'<input type="hidden" name="{FORM_TOKEN}" value="{session.form_token}">')


def _moment(value: datetime | int) -> datetime:
    return value if isinstance(value, datetime) else time_of(value)


def _time(value: datetime, text: str, form: str = "") -> Markup:
    """form: how ``display.js`` writes it in another time zone; empty: only its tooltip."""
    exact = value.astimezone(UTC).isoformat(timespec="milliseconds")
    kind = Markup(' data-form="{}"').format(form) if form else ""
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(exact, exact, kind, escape(text))
