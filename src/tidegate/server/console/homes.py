"""The console's ``HomesView``: summaries in a directory, or wherever fsspec reaches.

Summaries are read when they are asked for. The names of homes are kept: a bucket of 100,000 takes seconds to
list, so a list that is old is shown, and read again in the background.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tidegate.console.backend.homes import HomeIndex, MalformedSummaryError, ShownHome
from tidegate.console.backend.paging import Page
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError, NotFoundError, StoreUnavailableError
from tidegate.model.home_summary import HomeSummary, summary_path
from tidegate.model.limits import PARTITION_KEY_CHARACTERS_MAX
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads

T = TypeVar("T")

READ_TIMEOUT_S: Final = 5.0
"""How long a page waits for the storage."""
LIST_TIMEOUT_S: Final = 120.0
"""How long reading all names may take: 100,000 blobs are 20 requests to Azure."""
LIST_EVERY_S: Final = 15.0
"""The age from which names are read again, when somebody asks for them."""
FIRST_LIST_WAIT_S: Final = 0.25
"""How long the first page waits for the first list; a directory of 100,000 takes about as long."""
SUMMARY_BYTES_MAX: Final = 256 * 1024
CALLS_MAX: Final = 8
"""Calls at once. Those given up count until the storage's library lets go: a bound for its retries."""

_SEARCHES_KEPT = 16
_MALFORMED_TRIES = 3
_MALFORMED_WAIT_S = 0.05
_log = logging.getLogger(__name__)


class HomeSummaries:
    """The summaries below a URL. An async context manager: it ends the reading of names."""

    def __init__(self, url: str, clock: Clock) -> None:
        """url: as fsspec names it; credentials come from the environment, as its library has it."""
        self._url = url
        self._clock = clock
        self._threads = Threads(CALLS_MAX, name="console-homes")
        self._free = threading.BoundedSemaphore(CALLS_MAX)
        self._tasks = TaskOwner("console: homes")
        self._opened: tuple[Any, str] | None = None
        """The file system and the root in it."""
        self._opening = threading.Lock()
        self._names: list[str] = []
        self._found: dict[str, list[str]] = {}
        """Names by what was searched for: pages that are open ask the same every few seconds."""
        self._listed_at = float("-inf")
        self._read_at: datetime | None = None
        self._problem: StoreUnavailableError | None = None
        self._listing: asyncio.Task[None] | None = None

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
            known=len(self._names),
            read_at=self._read_at,
            problem=None if self._problem is None else self._problem.message,
        )

    def _matching(self, search: str) -> list[str]:
        if not search:
            return self._names
        found = self._found.get(search)
        if found is None:
            found = [name for name in self._names if search in name.casefold()]
            if len(self._found) >= _SEARCHES_KEPT:
                del self._found[next(iter(self._found))]
            self._found[search] = found
        return found

    async def _keep_names_fresh(self) -> None:
        if self._listing is None and self._clock.monotonic() - self._listed_at > LIST_EVERY_S:
            self._listing = self._tasks.start(self._list(), name="names")
        if self._listing is not None and self._read_at is None:
            await asyncio.wait([self._listing], timeout=FIRST_LIST_WAIT_S)

    async def _list(self) -> None:
        try:
            names = await self._run(self._list_now, LIST_TIMEOUT_S)
        except StoreUnavailableError as error:
            if self._problem is None:
                _log.warning("%s", error)
            self._problem = error
        else:
            self._names, self._problem, self._read_at = names, None, self._clock.now_utc()
            self._found.clear()
        finally:
            self._listed_at = self._clock.monotonic()
            self._listing = None

    def _list_now(self) -> list[str]:
        from fsspec.implementations.local import LocalFileSystem

        files, root = self._open()
        names: Iterable[str]
        if isinstance(files, LocalFileSystem):
            # fsspec asks for each file's size: that takes ten times as long, and keeps others from running.
            names = chain.from_iterable(found for _, _, found in os.walk(root, onerror=_raise))
        else:
            try:
                names = (path.rpartition("/")[2] for path in files.find(root))
            except FileNotFoundError:
                return []  # nothing was written yet
        # What a writer has under another name until it is whole has another ending.
        return sorted(name[:-5] for name in names if name.endswith(".json"))

    # --- one home -----------------------------------------------------------------------------------------

    async def home(self, name: str) -> ShownHome:
        """See ``HomesView``."""
        if len(name) > PARTITION_KEY_CHARACTERS_MAX:  # which homes' names are
            raise _no_such_home(name)
        path = summary_path(name)
        for attempt in range(_MALFORMED_TRIES):
            content, written_at = await self._run(partial(self._read_now, name, path), READ_TIMEOUT_S)
            try:
                summary = HomeSummary.from_json(content)
            except InvalidArgumentError as error:
                if attempt + 1 == _MALFORMED_TRIES:
                    raise MalformedSummaryError(
                        f"The summary of {name[:80]} cannot be read: it is being replaced, or something else "
                        f"than the pipeline wrote {path}.",
                        next_step="Wait for the pipeline to write it again, at the home's next change.",
                    ) from error
                # Where a file system shows a file before it is whole, the rest is a moment away.
                await asyncio.sleep(_MALFORMED_WAIT_S)
                continue
            # Names with unusual letters may share a file. The list knows such a home by its file's name.
            if summary.home != name and f"/{name}.json" != path[path.index("/") :]:
                raise _no_such_home(name)
            return ShownHome(summary, written_at)
        raise AssertionError("the last attempt returns or raises")

    def _read_now(self, name: str, path: str) -> tuple[bytes, datetime | None]:
        files, root = self._open()
        place = f"{root.rstrip('/')}/{path}"
        try:
            found: dict[str, Any] = files.info(place)
            size = found.get("size")
            if size is not None and size > SUMMARY_BYTES_MAX:
                return b"", None
            content: bytes = files.cat_file(place)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise _no_such_home(name) from None
        return content, _time_of(found)

    # --- the storage --------------------------------------------------------------------------------------

    def _open(self) -> tuple[Any, str]:
        with self._opening:
            if self._opened is None:
                from fsspec.core import url_to_fs

                # Lists that fsspec kept would hide what the pipeline writes.
                self._opened = url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
            return self._opened

    async def _run(self, call: Callable[[], T], timeout_s: float) -> T:
        """What ``call`` returns in a thread; NotFoundError, and StoreUnavailableError for all else."""
        if not self._free.acquire(blocking=False):
            raise self._unavailable(f"{CALLS_MAX} requests wait for it already")

        def counted() -> T:
            try:
                return call()
            except NotFoundError:
                raise
            except Exception as error:  # libraries of other people raise what they like: this is the boundary
                raise self._unavailable(_reason(error)) from error
            finally:
                self._free.release()

        try:
            async with asyncio.timeout(timeout_s):
                return await self._threads.run(counted)
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


def _page_of(matching: list[str], after: str, size: int) -> Page[str]:
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


def _time_of(found: dict[str, Any]) -> datetime | None:
    """When a file was written, in whichever way its file system says so."""
    for key in ("mtime", "last_modified", "LastModified"):
        value = found.get(key)
        if isinstance(value, datetime):
            return value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
    return None


def _raise(error: OSError) -> None:
    """A directory that cannot be read is no empty one; one that is not there yet is."""
    if not isinstance(error, FileNotFoundError):
        raise error


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
