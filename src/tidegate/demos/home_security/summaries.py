"""Each home's summary as a blob, for the resident's page: a file in a directory, or a blob in Azure.

    <url>/042/h000042.json

Only homes whose page changes are written, and the same micro-batch gives the same bytes, so writing one twice
does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tidegate.model.home_summary import summary_path


class SummaryStore:
    """Where the summaries lie. Spark's tasks get a copy each, which connects when it first writes."""

    def __init__(self, url: str, **storage_options: str) -> None:
        """url: as fsspec names it. storage_options: the file system's, such as its connection string; secret,
        and the environment serves as well."""
        self.url = url
        self._storage_options = storage_options

    def __repr__(self) -> str:
        return f"<SummaryStore {self.url}>"

    def write(self, pages: Mapping[str, str]) -> None:
        """Write pages: home → JSON. A reader sees the old one or the new one."""
        if not pages:
            return
        files, root = fsspec.core.url_to_fs(self.url, **self._storage_options)
        contents = {f"{root}/{summary_path(home)}": text.encode() for home, text in pages.items()}
        if isinstance(files, LocalFileSystem):
            _write_files(contents)
        else:
            files.pipe(contents)  # many at a time; a blob is put whole

    def read_many(self, homes: Iterable[str]) -> dict[str, bytes]:
        """The summaries of those homes that have one."""
        files, root = fsspec.core.url_to_fs(self.url, **self._storage_options)
        paths = {f"{root}/{summary_path(home)}": home for home in homes}
        found = files.cat(list(paths), on_error="omit")
        return {paths[path]: content for path, content in found.items()}


def _write_files(contents: dict[str, bytes]) -> None:
    """Each file is renamed into its place: fsspec would write it there, and a reader could see a half."""
    for directory in {os.path.dirname(path) for path in contents}:
        os.makedirs(directory, exist_ok=True)
    for path, content in contents.items():
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
