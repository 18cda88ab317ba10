"""The backups of a namespace, as its managers make them."""

from __future__ import annotations

import secrets

from tidegate.broker.audit import Action, AuditTrail
from tidegate.broker.catalog import Catalog, serialized
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.storage.engine import Backup, Backups


class NamespaceBackups:
    """Backups of everything that the namespace keeps; names are made here, never by a client."""

    def __init__(self, backups: Backups | None, catalog: Catalog, clock: Clock, audit: AuditTrail) -> None:
        self._engine_backups = backups
        self._catalog = catalog
        self._clock = clock
        self._audit = audit

    @serialized
    async def create(self) -> Backup:
        """Begin a backup of this moment; ``read`` says how far it is.

        What was acknowledged before the call is in it. In the turn of a change: catalog and logs fit
        together. Raises InvalidArgumentError (this engine makes none), ServerBusyError (one is being made),
        LogFullError, LogFailedError.
        """
        name = f"{self._clock.now_utc():%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        backup = await self._backups.create(name)
        self._audit.record(Action.CREATE_BACKUP, f"backups/{name}", new={"place": backup.place})
        return backup

    async def list_all(self) -> list[Backup]:
        """All of them. Raises InvalidArgumentError, LogFailedError."""
        return await self._backups.list_all()

    async def read(self, name: str) -> Backup:
        """One of them. Raises NotFoundError, InvalidArgumentError, LogFailedError."""
        for backup in await self._backups.list_all():
            if backup.name == name:
                return backup
        raise NotFoundError(f"There is no backup {name[:80]!r}.")

    @serialized
    async def delete(self, name: str) -> None:
        """Delete one; if it is being made, that ends. Raises NotFoundError, InvalidArgumentError,
        LogFailedError."""
        await self._backups.delete(name)
        self._audit.record(Action.DELETE_BACKUP, f"backups/{name}")

    @property
    def _backups(self) -> Backups:
        if self._engine_backups is None:
            raise InvalidArgumentError("The log's engine makes no backups.")
        return self._engine_backups
