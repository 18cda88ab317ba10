"""What a user's module can import when a command loads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def let_import_beside(address: str) -> None:
    """Let ``path/to/file.py:name`` import modules beside the file, and another module those of the current
    directory, as with ``python file.py`` and ``python -m``. Child processes inherit it.
    """
    place = address.rpartition(":")[0]
    directory = str(Path(place).absolute().parent) if place.endswith(".py") else os.getcwd()
    sys.path.insert(0, directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
