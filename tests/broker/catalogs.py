"""The catalog of a data directory, as a start would read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.broker.catalog import CatalogContents, parse_catalog
from tidegate.storage.control.log import FileControlLog
from tidegate.storage.control.reading import read_files
from tidegate.storage.files import Files, OsFiles


def read_catalog(directory: Path, files: Files | None = None) -> CatalogContents:
    """Without writing anything."""
    return parse_catalog(read_files(files or OsFiles(), directory, is_used=True).best().cells, str)


async def edit_value(directory: Path, prefix: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the first value whose key begins with ``prefix``, as another version might have written it."""
    log = FileControlLog.open(OsFiles(), directory, is_used=True, is_threaded=False)
    key, cell = next(iter((await log.read_all(prefix)).items()))
    document = json.loads(cell.value)
    edit(document)
    await log.change(key, json.dumps(document).encode(), expected_version=cell.version)
    await log.close()
