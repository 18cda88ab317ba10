"""Spark drivers of two versions in turn."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Final

from tests.spark.driver_process import driver_process
from tests.upgrade.versions import IS_WHOLE, TODAY, Version

KILLS: Final = 4 if IS_WHOLE else 2
"""Drivers that are killed before one may end."""


class Lives:
    """Drivers of both versions in turn, the old one first, over one checkpoint directory."""

    def __init__(self, old: Version, log_file: Path, rng: random.Random, module: str) -> None:
        self._versions = cycle((old, TODAY))
        self._log_file, self._rng, self._module = log_file, rng, module

    def killed(self, arguments: dict[str, object], is_far: Callable[[], bool]) -> None:
        """A driver that is killed a moment after ``is_far``, in the middle of its work."""
        with driver_process(*self._words(arguments), environment=next(self._versions).environment) as driver:
            driver.wait_until(is_far)
            time.sleep(self._rng.random() * 0.3)
            driver.check_running()

    def done(self, arguments: dict[str, object]) -> None:
        """A driver that does the rest."""
        with driver_process(*self._words(arguments), environment=next(self._versions).environment) as driver:
            driver.wait_done()

    def _words(self, arguments: dict[str, object]) -> tuple[Path, str, str, str]:
        return self._log_file, "-m", self._module, json.dumps(arguments)
