"""Azure's Java SDK (tests/interop/java) and the one before it (tests/interop/java3)."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.interop import java_programs
from tests.interop.java_programs import JAVA_3, JAVA_5, QUICK_START, sources_of, trusting
from tests.interop.official_programs import check_throttled_producer
from tests.interop.suites.programs import run_program
from tests.interop.suites.service import BUILD, SuiteService
from tests.interop.suites.suite import Case, Outcome, Suite, Transport
from tests.support.http_proxy import HttpProxy, running

from tidegate.testing.proxy import CuttingProxy

_CREDENTIALS: Final = "user:password"
_THROTTLED: Final = "throttled producer backs off"
_THROTTLED_S_MAX: Final = 120.0
_STANDARD_HOST: Final = f"127.19.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
"""An address of loopback whose ports 5671 and 443 no other run on this machine uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaSuite(Suite):
    """A Java program of ours that calls the SDK, one Java process for each transport."""

    project: Path
    program: str
    shared: tuple[Path, ...] = ()
    """Sources besides the project's."""

    @property
    def _folder(self) -> Path:
        return BUILD / self.name

    def prepare(self) -> None:
        """Fetch the SDK into Maven's own repository, and compile."""
        java_programs.build(self.project, [*self.shared, *sources_of(self.project)], self._folder)

    def command(self, service: SuiteService, program: str | None = None, *options: str) -> list[str]:
        """How to run a program of the project; None: the suite's. It trusts the service's certificates."""
        path = f"{(self._folder / 'class-path').read_text().strip()}:{self._folder / 'classes'}"
        trust = trusting(service.ca_file, self._folder / "trust-store")
        return ["java", *QUICK_START, *trust, *options, "-cp", path, program or self.program]


class Java5(JavaSuite):
    """The present SDK. It is also throttled, and by WebSocket goes through a proxy with a password."""

    __slots__ = ()

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """See ``Suite``."""
        proxy = HttpProxy(credentials=_CREDENTIALS)
        with running(proxy):
            found = run_program(
                self.command(service),
                service,
                transport,
                cases,
                is_azurite_used=True,
                environment={"TIDEGATE_PROXY": f"{_CREDENTIALS}@{proxy.address}"},
            )
            yield from _through(proxy, found)
        if transport is Transport.PLAIN and (not cases or _THROTTLED in cases):
            yield self._throttled(service)

    def _throttled(self, service: SuiteService) -> Case:
        """Against a service of its own, with throughput units."""
        try:
            check_throttled_producer(self.command(service, "Throttled"), _THROTTLED_S_MAX)
        except AssertionError as error:
            return Case(_THROTTLED, Outcome.FAILED, str(error))
        return Case(_THROTTLED, Outcome.PASSED)


class Java3(JavaSuite):
    """The SDK before. It knows ports 5671 and 443 alone, so its ``localhost`` is an address that has them."""

    __slots__ = ()

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """See ``Suite``."""
        proxy = HttpProxy(ports={443: service.port_for(Transport.WEBSOCKET)})
        hosts = self._folder / "hosts"
        hosts.write_text(f"{_STANDARD_HOST} localhost\n")
        port = 443 if transport is Transport.WEBSOCKET else 5671
        try:
            with running(proxy, _forwarding(port, service.port_for(transport))):
                found = run_program(
                    self.command(service, None, f"-Djdk.net.hosts.file={hosts}"),
                    service,
                    transport,
                    cases,
                    environment={"TIDEGATE_PROXY": proxy.address},
                )
                yield from _through(proxy, found)
        except OSError as error:
            yield Case(
                "all cases", Outcome.SKIPPED, f"port {port} of {_STANDARD_HOST} is not to be had: {error}"
            )


@asynccontextmanager
async def _forwarding(port: int, target: int) -> AsyncIterator[None]:
    proxy = CuttingProxy("127.0.0.1", target)
    proxy.host = _STANDARD_HOST
    await proxy.start(port)
    try:
        yield
    finally:
        await proxy.close()


def _through(proxy: HttpProxy, cases: Iterable[Case]) -> Iterator[Case]:
    """What goes through the proxy passes only where the proxy has seen it."""
    for case in cases:
        is_missed = "proxy" in case.name and case.outcome is Outcome.PASSED and proxy.tunnels == 0
        yield replace(case, outcome=Outcome.FAILED, detail="it passed by the proxy") if is_missed else case


def _version(project: Path, artifact: str) -> str:
    """The version that the project's pom.xml pins."""
    pom = (project / "pom.xml").read_text("utf-8")
    found = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>([^<]+)</version>", pom)
    assert found is not None
    return found[1]


SUITES: Final = (
    Java5(
        name="java-5",
        sdk="azure-messaging-eventhubs",
        version=_version(JAVA_5, "azure-messaging-eventhubs"),
        transports=(Transport.PLAIN, Transport.TLS, Transport.WEBSOCKET),
        project=JAVA_5,
        program="EventHubsSuite",
    ),
    Java3(
        name="java-3",
        sdk="azure-eventhubs",
        version=_version(JAVA_3, "azure-eventhubs"),
        transports=(Transport.TLS, Transport.WEBSOCKET),
        project=JAVA_3,
        program="FormerEventHubsSuite",
        shared=tuple(sources_of(JAVA_5, "Cases", "Service")),
    ),
)
