"""The audit trail, as the console asks for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from tidegate.broker import Action, AuditRecord, AuditTrail
from tidegate.broker.audit import Values
from tidegate.console.backend.audit import AuditRow
from tidegate.console.backend.paging import Page, page_at


class BrokerAudit:
    """``console.backend.AuditView``."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    @property
    def actions(self) -> Sequence[str]:
        """As ``AuditView`` says."""
        return [action.value for action in Action]

    def page(self, *, search: str, action: str, policy: str, start: int) -> Page[AuditRow]:
        """As ``AuditView`` says."""
        wanted = search.lower()
        found = [
            record
            for record in self._trail.newest_first()
            if action in ("", record.action)
            and policy in ("", *record.policy.split(", "))
            and (not wanted or wanted in _words(record))
        ]
        return page_at(found, start, _row)


def _words(record: AuditRecord) -> str:
    row = _row(record)
    return " ".join(
        (record.time, row.action, row.target, row.policy, row.hub, row.address, row.old, row.new)
    ).lower()


def _row(record: AuditRecord) -> AuditRow:
    return AuditRow(
        datetime.fromisoformat(record.time),
        record.action,
        record.target,
        record.policy,
        record.scope,
        record.address,
        record.door,
        _text(record.old),
        _text(record.new),
    )


def _text(values: Values | None) -> str:
    """Values as people read them: ``retention_hours 24, retention_bytes null``."""
    return ", ".join(
        f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in (values or {}).items()
    )
