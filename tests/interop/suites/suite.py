"""A suite of cases that an official or generic client runs against a real service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interop.suites.service import SuiteService


class Transport(Enum):
    """How a client reaches the service."""

    PLAIN = "plain"
    """AMQP over TCP, without TLS."""
    TLS = "tls"
    WEBSOCKET = "websocket"
    """AMQP over WebSocket over TLS."""


class Outcome(Enum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It cannot run against a self-hosted service, or not on this machine; the detail says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a suite, run once."""

    name: str
    outcome: Outcome
    detail: str = ""
    """Why it failed or was skipped; never empty for those. Ignored for what passed."""


class ToolMissingError(Exception):
    """This machine lacks what a suite needs: a toolchain, a registry, Azurite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite(ABC):
    """What one module here adds to ``make interop``."""

    name: str
    """For ``--only`` and the table: the SDK and its generation, such as ``java-5``."""
    sdk: str
    """The package's name in its registry."""
    version: str
    transports: tuple[Transport, ...]

    @abstractmethod
    def prepare(self) -> None:
        """Fetch and build what ``run`` needs, in build/interop; quick where that was done before.

        Raises ToolMissingError.
        """

    @abstractmethod
    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """Run the cases and yield each once it has ended. It never hangs: every case has a time limit.

        cases: the names to run; empty for all.
        """
