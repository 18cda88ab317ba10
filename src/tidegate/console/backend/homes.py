"""What the console sees of the homes of the home security demo."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from tidegate.console.backend.paging import Page
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.home_summary import HomeSummary

HOMES_EVENT_HUB: Final = "home-security"
"""The hub that the summaries are made from: who may listen to it may see them."""


class MalformedSummaryError(InvalidArgumentError):
    """A file of summaries that is none, or only a part: it is being replaced, or somebody else wrote it."""

    is_transient = True


@dataclass(frozen=True, slots=True)
class ShownHome:
    """A home's summary as it was read."""

    summary: HomeSummary
    written_at: datetime | None
    """When the pipeline wrote it last, with the pages of the other homes of its block, of which any may have
    changed; None: the storage does not tell."""


@dataclass(frozen=True, slots=True)
class HomeIndex:
    """A page of the names of homes."""

    page: Page[str]
    """``total``: homes that match."""
    known: int
    """Homes that are known of by now."""
    read_at: datetime | None
    """When the names were read last; None: they are being read for the first time."""
    problem: str | None
    """Why they could not be read again; None: they could."""


class HomesView(Protocol):
    """Summaries at one place. What blocks is done in threads and has a deadline."""

    @property
    def place(self) -> str:
        """The URL of the place, without secrets."""
        ...

    async def homes(self, *, search: str, after: str, size: int) -> HomeIndex:
        """Homes whose name contains ``search`` (any case), by name, those behind ``after``.

        The names are kept, and read again in the background when they are old. Raises StoreUnavailableError
        where they never could be read.
        """
        ...

    async def home(self, name: str) -> ShownHome:
        """A home's summary, as it was within the last second.

        Raises NotFoundError, MalformedSummaryError, StoreUnavailableError.
        """
        ...
