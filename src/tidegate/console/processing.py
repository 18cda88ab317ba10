"""Consumers, dead letters and long work, from the service's broker and the database of its settings."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tidegate.console.consumers.groups import SqlConsumers
from tidegate.console.dead_letters.letters import SqlDeadLetters
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.jobs.jobs import Jobs


class SqlProcessing:
    """``console.backend.ProcessingView``."""

    def __init__(self, parts: ConsoleParts, url: str) -> None:
        self._database = LazyDatabase(url)
        self._jobs = Jobs(parts.clock, parts.broker.audit)
        self._consumers = SqlConsumers(parts, self._database, self._jobs)
        self._dead_letters = SqlDeadLetters(parts, self._database, self._jobs)

    @property
    def database_url(self) -> str:
        """As ``ProcessingView`` says."""
        return self._database.display_url

    @property
    def consumers(self) -> SqlConsumers:
        """As ``ProcessingView`` says."""
        return self._consumers

    @property
    def dead_letters(self) -> SqlDeadLetters:
        """As ``ProcessingView`` says."""
        return self._dead_letters

    @property
    def jobs(self) -> Jobs:
        """As ``ProcessingView`` says."""
        return self._jobs

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._jobs.close()
        await self._consumers.close()
        await self._dead_letters.close()
        await self._database.close()
