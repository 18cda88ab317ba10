"""Summaries below a URL, as the pages need them: the list of homes, and one home's summary.

An index of which home is in which file is kept; the names in changed files are read again. For a home's page,
only its file is read.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from examples.home_security.page_files import MalformedPagesError, page_of
from examples.home_security.summaries import Blob, SummaryStore
from examples.home_security.summary import HomeSummary
from examples.home_security.web.index import BLOB_BYTES_MAX, Index, updated_index
from tidegate import Fault, InvalidArgumentError, NotFoundError, TidegateError

PAGE_SIZE: Final = 50
SUMMARY_BYTES_MAX: Final = 256 * 1024

_MALFORMED_TRIES = 3
_MALFORMED_WAIT_S = 0.05


class StorageError(TidegateError):
    """The storage of the summaries does not answer, or not as expected."""

    fault = Fault.WORLD
    is_transient = True


@dataclass(frozen=True, slots=True)
class ShownHome:
    """A home's summary as it was read."""

    summary: HomeSummary
    written_at: datetime | None
    """When the pipeline last wrote the home's block, of which any page may have changed; None if the storage
    does not record it."""


@dataclass(frozen=True, slots=True)
class HomeNames:
    """A page of the list of homes."""

    names: Sequence[str]
    matching: int
    """Homes that match."""
    known: int
    """Homes in total."""
    previous: str | None
    """The name after which the previous page begins; None for the first page."""
    next: str | None
    """The name after which the next page begins; None for the last page."""
    problem: str | None
    """Why a file could not be read; its earlier homes are shown."""


class Homes:
    """The summaries below a URL. Can be used from several threads."""

    def __init__(self, url: str) -> None:
        """url: as fsspec names it; credentials come from the environment, as its library defines."""
        self.place = without_secrets(url)
        self._store = SummaryStore(url)
        self._index = Index()
        self._indexing = threading.Lock()

    def names(self, *, search: str, after: str) -> HomeNames:
        """Homes whose name contains ``search`` (ignoring case), by name, those after ``after``.

        Raises StorageError.
        """
        index = self._read_index()
        wanted = search.casefold()
        matching = [name for name in index.names if wanted in name.casefold()] if wanted else index.names
        start = bisect_right(matching, after) if after else 0
        names = matching[start : start + PAGE_SIZE]
        return HomeNames(
            names,
            matching=len(matching),
            known=len(index.names),
            previous=(matching[start - PAGE_SIZE - 1] if start > PAGE_SIZE else "") if start else None,
            next=names[-1] if start + PAGE_SIZE < len(matching) else None,
            problem=str(_malformed(index.malformed[0])) if index.malformed else None,
        )

    def home(self, name: str) -> ShownHome:
        """A home's summary. Raises NotFoundError, MalformedPagesError, StorageError."""
        for attempt in range(_MALFORMED_TRIES):
            index = self._read_index()
            path = index.path_of.get(name)
            try:
                if path is not None and (found := self._read(index.blobs[path], name)) is not None:
                    return found
            except (MalformedPagesError, InvalidArgumentError) as error:
                if attempt + 1 == _MALFORMED_TRIES:
                    raise _malformed(path or "") from error
                # If a file system shows a file before it is complete, the rest follows in a moment.
                time.sleep(_MALFORMED_WAIT_S)
                continue
            if index.malformed:  # the home may be in there
                raise _malformed(index.malformed[0])
        raise NotFoundError(
            f"There is no summary of a home {name[:80]!r}.",
            next_step="A home has one once the pipeline has seen its first reading.",
        )

    def _read(self, blob: Blob, name: str) -> ShownHome | None:
        """None if the home is no longer in the blob."""
        if blob.size > BLOB_BYTES_MAX:
            raise MalformedPagesError(f"The blob has more than {BLOB_BYTES_MAX:,} bytes.")
        with self._storage_errors():
            found = [content for _, content in self._store.contents([blob])]
        page = page_of(found[0], name) if found else None
        if page is None:
            return None
        if len(page) > SUMMARY_BYTES_MAX:
            raise MalformedPagesError(f"The page has more than {SUMMARY_BYTES_MAX:,} bytes.")
        summary = HomeSummary.from_json(page)
        if summary.home != name:
            raise MalformedPagesError("This is the summary of another home.")
        return ShownHome(summary, blob.written_at)

    def _read_index(self) -> Index:
        with self._indexing, self._storage_errors():
            self._index = updated_index(self._index, self._store)
            return self._index

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Turn anything that a storage library raises into StorageError."""
        try:
            yield
        except Exception as error:  # third-party libraries may raise anything
            raise StorageError(
                f"The storage of the summaries, {self.place}, does not serve them: {_reason(error)}.",
                next_step="Check that it runs and lets this program in.",
            ) from error


def without_secrets(url: str) -> str:
    """A URL without password and query (where Azure has its tokens), to be shown."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    user, colon, _ = user.partition(":")
    return urlunsplit((parts.scheme, f"{user}{colon and ':***'}{at}{host}", parts.path, "", ""))


def _malformed(path: str) -> MalformedPagesError:
    return MalformedPagesError(
        f"The summaries in {path.rpartition('/')[2]} cannot be read: the file is being replaced, or "
        "something else than the pipeline wrote it.",
        next_step="Wait a moment. If it stays, the pipeline's log says what to do.",
    )


def _reason(error: Exception) -> str:
    """A line for people; addresses lose their query, which may contain tokens."""
    if isinstance(error, ImportError):
        return f"{error}; install what the URL needs (the extra azure for az://)"
    text = re.sub(r"\?\S*", "", " ".join(str(error).split()))[:200].rstrip(". ")
    return text or type(error).__name__
