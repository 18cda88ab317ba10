"""What the console sees of the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tidegate.console.backend.paging import Page


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One change, or one sign-in."""

    time: datetime
    action: str
    target: str
    """Empty: the namespace."""
    policy: str
    """Empty: the service itself, or nobody whose key was right."""
    hub: str
    """Whose policy it is; empty: the namespace's."""
    address: str
    door: str
    old: str
    """As text; empty: there was nothing."""
    new: str


class AuditView(Protocol):
    """Reads the audit trail."""

    @property
    def actions(self) -> Sequence[str]:
        """All that there are."""
        ...

    def page(self, *, search: str, action: str, policy: str, start: int) -> Page[AuditRow]:
        """Records, the newest first; all that is given must hold.

        search: text anywhere in a record, without regard to case. action, policy: the whole name.
        """
        ...
