"""``/audit``: who changed what, and who signed in. Requires Manage on the namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidegate.broker import Action, AuditRecord, AuditTrail
from tidegate.broker.audit import Values
from tidegate.console.frame.forms import start_of
from tidegate.console.frame.pages import Pages, get
from tidegate.console.frame.paging import listing, page_at
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import require_manage, require_session
from tidegate.console.frame.slices import in_slices

_FIELD_CHARACTERS_MAX = 200


@dataclass(eq=False)
class AuditPages(Pages):
    """The audit trail."""

    trail: AuditTrail
    is_hub: Callable[[str], bool]
    """Whether there is an event hub of that name."""

    @get("/audit")
    async def show(self, request: Request) -> Response:
        require_manage(request)
        given = {
            name: request.query_params.get(name, "").strip()[:_FIELD_CHARACTERS_MAX]
            for name in ("search", "action", "policy")
        }
        steps = (each if _is_wanted(each, **given) else None for each in self.trail.each_newest_first())
        records = await in_slices(request, steps)
        require_session(request)  # it may have waited for others
        found = page_at(records, start_of(request.query_params.get("start")))
        context: dict[str, Any] = {
            "actions": [action.value for action in Action],
            "time_of": lambda record: datetime.fromisoformat(record.time),
            "text_of": _text,
            "is_hub": self.is_hub,
        }
        return page(request, "audit/page.html", **context | listing(request, "/audit", found, **given))


def _is_wanted(record: AuditRecord, *, search: str, action: str, policy: str) -> bool:
    """search: text anywhere in the record, in any letter case. action, policy: the full name; empty: any."""
    if action not in ("", record.action) or policy not in ("", *record.policy.split(", ")):
        return False
    texts = (
        record.time,
        record.action,
        record.target,
        record.policy,
        record.scope or record.hub,
        record.address,
        _text(record.old),
        _text(record.new),
    )
    return search.lower() in " ".join(texts).lower()


def _text(values: Values | None) -> str:
    """Values for display: ``retention_hours 24, retention_bytes null``."""
    return ", ".join(
        f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in (values or {}).items()
    )
