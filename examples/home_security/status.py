"""How the demo's processes report to each other: small JSON files, replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace the file; a reader sees the old status or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(orjson.dumps(dict(status)))
    temporary.replace(path)


def read_status(path: Path) -> dict[str, Any]:
    """The latest status; empty if there is none yet."""
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found
