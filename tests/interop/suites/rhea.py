"""rhea, a generic AMQP 1.0 client for JavaScript, beneath Azure's own SDK."""

from __future__ import annotations

from typing import Final

from tests.interop.suites.javascript import FOLDER, javascript_suite
from tests.interop.suites.suite import Transport

SUITES: Final = (javascript_suite("rhea", "rhea", "rhea.mjs", FOLDER / "rhea", tuple(Transport)),)
