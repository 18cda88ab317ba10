"""The console's ``HomesView``: summaries in a directory, or wherever fsspec reaches.

A file holds the pages of a block of homes. Which home is in which file is kept, and read again in the
background when it is old: only from files that have changed since. Of a home's page, its file alone is read,
once for all who look at homes of it, and again where it has changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tidegate.console.backend.homes import HomeIndex, MalformedSummaryError, ShownHome
from tidegate.console.backend.paging import Page
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError, NotFoundError, StoreUnavailableError, TidegateError
from tidegate.model.home_pages import MalformedPagesError, page_of
from tidegate.model.home_summary import HomeSummary
from tidegate.model.limits import PARTITION_KEY_CHARACTERS_MAX
from tidegate.server.console.home_files import FILE_BYTES_MAX, Index, PagesFile, PagesFiles
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads

T = TypeVar("T")

READ_TIMEOUT_S: Final = 5.0
"""How long a page waits for the storage."""
LIST_TIMEOUT_S: Final = 120.0
"""How long reading all names may take."""
LIST_EVERY_S: Final = 15.0
"""The age from which names are read again, when somebody asks for them."""
UNKNOWN_EVERY_S: Final = 1.0
"""The age from which they are read again for a home that is not among them."""
FIRST_LIST_WAIT_S: Final = 0.25
"""How long the first page waits for the first list; a directory of 100,000 homes takes a third of it."""
FILE_AGE_S: Final = 1.0
"""For how long a file counts as unchanged without another look: pages of its homes may be so old."""
FILES_KEPT_BYTES: Final = FILE_BYTES_MAX
"""64 files of 1,500 homes each are 25 MB."""
SUMMARY_BYTES_MAX: Final = 256 * 1024
CALLS_MAX: Final = 8
"""Calls at once; others wait. Those given up count until the storage's library lets go: a bound for its
retries."""

_SEARCHES_KEPT = 16
_MALFORMED_TRIES = 3
_MALFORMED_WAIT_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    file: PagesFile
    asked_at: float


class HomeSummaries:
    """The summaries below a URL. An async context manager: it ends the reading of names."""

    def __init__(self, url: str, clock: Clock) -> None:
        """url: as fsspec names it; credentials come from the environment, as its library has it."""
        self._url = url
        self._clock = clock
        self._files = PagesFiles(url)
        self._threads = Threads(CALLS_MAX, name="console-homes")
        self._tasks = TaskOwner("console: homes")
        self._index = Index()
        self._found: dict[str, Sequence[str]] = {}
        """Names by what was searched for: pages that are open ask the same every few seconds."""
        self._list_begun_at = self._listed_at = float("-inf")
        """Of the list that was ended last, whether or not it could be read."""
        self._read_at: datetime | None = None
        self._problem: TidegateError | None = None
        self._listing: asyncio.Task[None] | None = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """Files by their paths, the one that was asked for least lately first."""
        self._reading: dict[str, asyncio.Task[PagesFile | TidegateError | None]] = {}

    def __repr__(self) -> str:
        return f"<HomeSummaries {self.place}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()

    @property
    def place(self) -> str:
        """See ``HomesView``."""
        return without_secrets(self._url)

    # --- names --------------------------------------------------------------------------------------------

    async def homes(self, *, search: str, after: str, size: int) -> HomeIndex:
        """See ``HomesView``."""
        await self._keep_names_fresh()
        if self._read_at is None and self._problem is not None:
            raise StoreUnavailableError(self._problem.message, next_step=self._problem.next_step)
        return HomeIndex(
            page=_page_of(self._matching(search.strip().casefold()), after, size),
            known=len(self._index.names),
            read_at=self._read_at,
            problem=None if self._problem is None else self._problem.message,
        )

    def _matching(self, search: str) -> Sequence[str]:
        if not search:
            return self._index.names
        found = self._found.get(search)
        if found is None:
            found = [name for name in self._index.names if search in name.casefold()]
            if len(self._found) >= _SEARCHES_KEPT:
                del self._found[next(iter(self._found))]
            self._found[search] = found
        return found

    async def _keep_names_fresh(self) -> None:
        if self._listing is None and self._clock.monotonic() - self._listed_at > LIST_EVERY_S:
            self._start_listing()
        if self._listing is not None and self._read_at is None:
            await asyncio.wait([self._listing], timeout=FIRST_LIST_WAIT_S)

    async def _read_names_anew(self) -> None:
        """Return once names have been read by a list that was begun after this call.

        All who wait have the same one, and at most one is begun in a second, however many homes are asked for
        that are not there. Raises why they could not be read.
        """
        asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                while self._list_begun_at < asked_at:
                    if self._listing is not None:
                        await asyncio.wait([self._listing])
                    elif (wait_s := self._listed_at + UNKNOWN_EVERY_S - self._clock.monotonic()) > 0:
                        await asyncio.sleep(wait_s)
                    else:
                        self._start_listing()
        except TimeoutError:
            raise self._unavailable(f"no answer within {READ_TIMEOUT_S:g} s") from None
        if self._problem is not None:
            raise self._problem

    def _start_listing(self) -> None:
        self._listing = self._tasks.start(self._list(), name="names")

    async def _list(self) -> None:
        begun_at = self._clock.monotonic()
        try:
            index = await self._run(partial(self._files.index, self._index), LIST_TIMEOUT_S)
        except TidegateError as error:
            self._note_problem(error)
        else:
            if index.names is not self._index.names:
                self._found.clear()
            self._index, self._read_at = index, self._clock.now_utc()
            self._note_problem(_malformed(index.malformed[0]) if index.malformed else None)
        finally:
            self._list_begun_at, self._listed_at = begun_at, self._clock.monotonic()
            self._listing = None

    def _note_problem(self, problem: TidegateError | None) -> None:
        if problem is not None and self._problem is None:
            _log.warning("%s", problem)
        self._problem = problem

    # --- one home -----------------------------------------------------------------------------------------

    async def home(self, name: str) -> ShownHome:
        """See ``HomesView``."""
        if len(name) > PARTITION_KEY_CHARACTERS_MAX:  # which homes' names are
            raise _no_such_home(name)
        found = await self._home(name)
        if found is None:
            await self._read_names_anew()
            found = await self._home(name)
        if found is None:
            raise _no_such_home(name)
        return found

    async def _home(self, name: str) -> ShownHome | None:
        """None: the home is not where it is known to be, or not known at all."""
        path = self._index.path_of.get(name)
        if path is None:
            return None
        for attempt in range(_MALFORMED_TRIES):
            try:
                file = await self._file(path)
                page = None if file is None else page_of(file.content, name)
                if file is None or page is None:
                    return None
                if len(page) > SUMMARY_BYTES_MAX:
                    raise _malformed(path)
                return ShownHome(_summary_of(name, page), file.version.written_at)
            except (MalformedPagesError, InvalidArgumentError) as error:
                self._kept.pop(path, None)
                if attempt + 1 == _MALFORMED_TRIES:
                    raise _malformed(path) from error
                # Where a file system shows a file before it is whole, the rest is a moment away.
                await asyncio.sleep(_MALFORMED_WAIT_S)
        raise AssertionError("the last attempt returns or raises")

    async def _file(self, path: str) -> PagesFile | None:
        """A file as it was within the last second; None: it is gone."""
        kept = self._kept.get(path)
        if kept is not None and self._clock.monotonic() - kept.asked_at < FILE_AGE_S:
            self._kept.move_to_end(path)
            return kept.file
        task = self._reading.get(path)
        if task is None:
            task = self._reading[path] = self._tasks.start(self._read(path), name="file")
        await asyncio.wait([task])
        found = task.result()
        if isinstance(found, TidegateError):
            raise found
        return found

    async def _read(self, path: str) -> PagesFile | TidegateError | None:
        """What is there, or why it cannot be had: for all who wait for it."""
        asked_at = self._clock.monotonic()
        kept = self._kept.get(path)
        try:
            call = partial(self._files.read, path, None if kept is None else kept.file)
            file = await self._run(call, READ_TIMEOUT_S)
        except TidegateError as error:
            return error
        finally:
            del self._reading[path]
        self._kept.pop(path, None)
        if file is not None:
            self._kept[path] = _Kept(file, asked_at)
            while sum(len(one.file.content) for one in self._kept.values()) > FILES_KEPT_BYTES:
                self._kept.popitem(last=False)
        return file

    # --- the storage --------------------------------------------------------------------------------------

    async def _run(self, call: Callable[[], T], timeout_s: float) -> T:
        """What ``call`` returns in a thread; MalformedPagesError, and StoreUnavailableError for all else."""

        def translated() -> T:
            try:
                return call()
            except MalformedPagesError:
                raise
            except Exception as error:  # libraries of other people raise what they like: this is the boundary
                raise self._unavailable(_reason(error)) from error

        try:
            async with asyncio.timeout(timeout_s):
                return await self._threads.run(translated)
        except TimeoutError:
            raise self._unavailable(f"no answer within {timeout_s:g} s") from None

    def _unavailable(self, reason: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"The storage of the summaries, {self.place}, does not serve them: {reason}.",
            next_step="Check that it runs and lets this service in; the page asks again by itself.",
        )


def without_secrets(url: str) -> str:
    """A URL as it may be shown: no password, no query (tokens of Azure are there)."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    user, colon, _ = user.partition(":")
    return urlunsplit((parts.scheme, f"{user}{colon and ':***'}{at}{host}", parts.path, "", ""))


def _page_of(matching: Sequence[str], after: str, size: int) -> Page[str]:
    start = bisect_right(matching, after) if after else 0
    items = matching[start : start + size]
    is_last = start + size >= len(matching)
    before = matching[start - size - 1] if start > size else ""
    return Page(
        items,
        total=len(matching),
        next=None if is_last else items[-1],
        previous=before if start > 0 else None,
    )


def _summary_of(name: str, page: bytes) -> HomeSummary:
    summary = HomeSummary.from_json(page)
    if summary.home != name:
        raise InvalidArgumentError("This is the summary of another home.")
    return summary


def _malformed(path: str) -> MalformedSummaryError:
    return MalformedSummaryError(
        f"The summaries in {path.rpartition('/')[2]} cannot be read: the file is being replaced, or "
        "something else than the pipeline wrote it.",
        next_step="Wait a moment. If it stays, the pipeline's log says what to do.",
    )


def _no_such_home(name: str) -> NotFoundError:
    return NotFoundError(
        f"There is no summary of a home {name[:80]!r}.",
        next_step="Look for it in the list; a home has one once the pipeline has seen its first reading.",
    )


def _reason(error: Exception) -> str:
    """A line for people; addresses in it lose their query, where tokens are."""
    if isinstance(error, ImportError):
        return f"{error}; install what the URL needs (tidegate[azure] for az://)"
    text = re.sub(r"\?\S*", "", " ".join(str(error).split()))[:200].rstrip(". ")
    return text or type(error).__name__
