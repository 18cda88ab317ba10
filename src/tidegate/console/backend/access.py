"""Who may do what, as the console asks it. The implementation is ``server.console.access``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Rights:
    """What somebody who has signed in may do now."""

    policy_name: str
    can_listen: bool
    can_send: bool
    can_manage: bool
    hub: str | None = None
    """The only event hub that the rights are for; None: the whole namespace."""

    def covers(self, hub: str | None) -> bool:
        """Whether the rights are for that event hub (None: for the namespace)."""
        return self.hub is None or (hub is not None and self.hub.lower() == hub.lower())

    def may_listen(self, hub: str | None = None) -> bool:
        """Whether events of the hub (None: of all) may be seen."""
        return self.can_listen and self.covers(hub)

    def may_send(self, hub: str | None = None) -> bool:
        """Whether events may be sent to the hub (None: to all)."""
        return self.can_send and self.covers(hub)

    def may_manage(self, hub: str | None = None) -> bool:
        """Whether the hub (None: the namespace) may be changed."""
        return self.can_manage and self.covers(hub)


class Credential(Protocol):
    """What proved somebody's rights; only whoever made it can read it."""


class AccessView(Protocol):
    """Judges who signs in."""

    async def sign_in(self, policy_name: str, key: str, hub: str | None, *, address: str) -> Credential:
        """Check a policy's name and key; hub: whose policy it is (None: the namespace's, or the only one).

        address: who says so. Raises UnauthorizedError, after a while where many keys from there were wrong,
        and ServerBusyError where too many were.
        """
        ...

    def development_credential(self) -> Credential | None:
        """The root policy's, while its key is the official emulator's that everybody knows; else None."""
        ...

    def rights(self, credential: Credential) -> Rights | None:
        """What the credential is worth now; None: nothing any more."""
        ...

    def add_change_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change of policies or keys; returns what removes it.

        It is called from within the change, and must neither block nor raise.
        """
        ...

    def acting(self, credential: Credential, address: str) -> AbstractContextManager[None]:
        """Have what is changed within be recorded as done by whoever the credential proves."""
        ...

    def note_sign_out(self, credential: Credential, address: str) -> None:
        """Record that somebody has left."""
        ...
