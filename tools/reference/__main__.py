"""Writes the reference pages: ``python -m tools.reference docs/reference``."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference.pages import reference_pages


def main(arguments: list[str]) -> int:
    """Write all pages into the named directory; returns the exit code."""
    (directory,) = arguments
    for name, text in reference_pages().items():
        path = Path(directory) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
