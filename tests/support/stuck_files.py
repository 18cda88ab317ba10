"""Files of a service in a process of its own whose calls do not return; see ``stuck_files.c``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")


class StuckFiles:
    """Holds files of services that are started with an environment."""

    def __init__(self, directory: Path, environment: MutableMapping[str, str]) -> None:
        """directory: for a library, which is compiled with ``cc`` and put into the environment."""
        library = directory / "stuck_files.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
        self._control = directory / "stuck"
        environment["STUCK_CONTROL"] = str(self._control)
        preloaded = (str(library), environment.get("LD_PRELOAD"))
        environment["LD_PRELOAD"] = os.pathsep.join(filter(None, preloaded))

    @contextmanager
    def stuck(self, part: str) -> Iterator[None]:
        """All calls on files whose path contains ``part`` wait."""
        new = self._control.with_suffix(".new")
        new.write_text(part)
        new.rename(self._control)
        try:
            yield
        finally:
            self._control.unlink()
