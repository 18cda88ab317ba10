"""Clients of four languages, connected at once, over what happens to a service in the course of time.

Each scenario begins with a producer and a consumer per language that have sent and received, does its worst
for a while, and ends when every client sends and receives again, or has raised the exception that its SDK
documents. A client that says nothing for 60 s has hung. What the SDKs log lies in build/interop/logs.

``TIDEGATE_LONG_RUN_S`` is how long each scenario's worst lasts, 20 s unless set.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tests.interop.suites.lasting import PREPARE, LastingProgram, Line
from tests.interop.suites.service import SuiteService
from tests.interop.suites.suite import Case, Outcome, Suite, Transport

from tidegate.client import EventHubAdministrator
from tidegate.model.connection_string import ConnectionString
from tidegate.model.sas import make_sas_token

LANGUAGES: Final = tuple(PREPARE)
HANG_S: Final = 60.0
"""Longest silence of a client that has not hung."""
START_S: Final = 60.0
"""Longest wait for the first event of each client: all of them start at once."""
TOKEN_S: Final = 25
"""For which a token is good in the scenario whose tokens run out."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, and what each client must do."""

    name: str
    disturb: Callable[[SuiteService, Sequence[str], float], None]
    """Given the service, the clients' event hubs and a time in seconds; returns once it is over."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the programs, besides the usual ones."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Language → why it cannot take part."""
    is_token_used: bool = False
    """Whether clients get a token that runs out, and not a key."""
    errors: Mapping[str, Sequence[str]] | None = None
    """Language → the codes of exceptions that end it properly; None: everybody continues."""
    is_log_kept: bool = True
    """Whether every acknowledged event must arrive."""


def _wait(service: SuiteService, hubs: Sequence[str], duration_s: float) -> None:
    time.sleep(duration_s)


def _let_tokens_expire(service: SuiteService, hubs: Sequence[str], duration_s: float) -> None:
    time.sleep(TOKEN_S)


def _let_tokens_be_renewed(service: SuiteService, hubs: Sequence[str], duration_s: float) -> None:
    time.sleep(max(duration_s, 2.5 * TOKEN_S))


def _restart(service: SuiteService, hubs: Sequence[str], duration_s: float) -> None:
    for end in (service.stop, service.kill):
        end()
        time.sleep(duration_s / 4)
        service.start()
        time.sleep(duration_s / 4)


def _delete_and_recreate(service: SuiteService, hubs: Sequence[str], duration_s: float) -> None:
    async def delete(administrator: EventHubAdministrator) -> None:
        for hub in hubs:
            await administrator.delete_event_hub(hub)

    _administer(service, delete)
    time.sleep(duration_s / 2)
    for hub in hubs:
        service.create_hub(hub, partition_count=1)


def _throttle(service: SuiteService, hubs: Sequence[str], duration_s: float) -> None:
    async def limit(administrator: EventHubAdministrator) -> None:
        await administrator.set_throughput_units(1)

    async def free(administrator: EventHubAdministrator) -> None:
        assert (await administrator.get_throughput()).throttled_requests > 0, "nobody was throttled"
        await administrator.set_throughput_units(None)

    _administer(service, limit)
    time.sleep(duration_s)
    _administer(service, free)


def _administer(service: SuiteService, change: Callable[[EventHubAdministrator], Any]) -> None:
    async def run() -> None:
        async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
            await change(administrator)

    asyncio.run(run())


UNAUTHORIZED: Final = {
    "python": ("AuthenticationError",),
    "javascript": ("UnauthorizedError",),
    "go": ("unauthorized",),
    "java": ("UNAUTHORIZED_ACCESS",),
}

SCENARIOS: Final = (
    Scenario("service restart", _restart),
    Scenario("hub deletion", _delete_and_recreate, is_log_kept=False),
    Scenario("throttling", _throttle, {"TIDEGATE_EVENT_BYTES": "400000", "TIDEGATE_SEND_INTERVAL_MS": "50"}),
    Scenario("slow consumer", _wait, {"TIDEGATE_RECEIVE_DELAY_MS": "500", "TIDEGATE_SEND_INTERVAL_MS": "20"}),
    Scenario(
        "token renewal",
        _let_tokens_be_renewed,
        {"TIDEGATE_TOKEN_S": str(TOKEN_S)},
        skipped={"go": "azeventhubs takes no credential that makes shared access signatures."},
    ),
    Scenario("token expiry", _let_tokens_expire, is_token_used=True, errors=UNAUTHORIZED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRuns(Suite):
    """A case is a scenario as one language went through it."""

    def prepare(self) -> None:
        """Build the programs."""
        for prepare in PREPARE.values():
            prepare()

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """All languages take part in a scenario of which any case is asked for."""
        for scenario in SCENARIOS:
            names = {language: f"{scenario.name}: {language}" for language in LANGUAGES}
            if cases and not set(cases) & set(names.values()):
                continue
            found = {
                language: _case(names[language], fault)
                for language, fault in _run(scenario, service, transport)
            }
            for language, why in scenario.skipped.items():
                found[language] = Case(names[language], Outcome.SKIPPED, why)
            yield from (case for case in found.values() if not cases or case.name in cases)


def _case(name: str, fault: str) -> Case:
    return Case(name, Outcome.FAILED if fault else Outcome.PASSED, fault)


def _run(scenario: Scenario, service: SuiteService, transport: Transport) -> list[tuple[str, str]]:
    """Each language with what was wrong, empty for nothing."""
    languages = [language for language in LANGUAGES if language not in scenario.skipped]
    hubs = {language: service.create_hub(partition_count=1) for language in languages}
    programs: dict[str, LastingProgram] = {}
    with ExitStack() as stack:
        for language, hub in hubs.items():
            environment = {
                "TIDEGATE_CONNECTION_STRING": _connection_string(scenario, service, transport),
                "TIDEGATE_HUB": hub,
                **scenario.settings,
            }
            log = f"{scenario.name.replace(' ', '-')}-{language}"
            programs[language] = stack.enter_context(LastingProgram(language, "client", environment, log=log))
        started = time.monotonic()
        _until(lambda: all(_last(each, "received") is not None for each in programs.values()), START_S)
        scenario.disturb(service, list(hubs.values()), float(os.environ.get("TIDEGATE_LONG_RUN_S", "20")))
        over = time.monotonic()
        judges = {name: _Judge(scenario, name, program, started, over) for name, program in programs.items()}
        _until(lambda: all(judge.is_well() for judge in judges.values()), HANG_S)
        return [(name, judge.fault()) for name, judge in judges.items()]


def _connection_string(scenario: Scenario, service: SuiteService, transport: Transport) -> str:
    text = service.connection_string_for(transport)
    if not scenario.is_token_used:
        return text
    parts = ConnectionString.parse(text)
    assert parts.shared_access_key_name is not None
    assert parts.shared_access_key is not None
    token = make_sas_token(
        audience=f"sb://{parts.host}/",
        key_name=parts.shared_access_key_name,
        key=parts.shared_access_key,
        expiry=int(time.time()) + TOKEN_S,  # noqa: TID251 - the service's clock
    )
    kept = [each for each in text.split(";") if each and not each.startswith("SharedAccessKey")]
    return ";".join([*kept, f"SharedAccessSignature={token}"])


class _Judge:
    """Whether one client went through a scenario as it must."""

    def __init__(
        self, scenario: Scenario, language: str, program: LastingProgram, started: float, over: float
    ) -> None:
        self._scenario = scenario
        self._program = program
        self._codes = () if scenario.errors is None else scenario.errors[language]
        self._started = started
        self._over = over

    def is_well(self) -> bool:
        """Whether it has sent and received again, or raised what it may, in both directions."""
        lines = self._program.lines()
        if self._codes:
            raised = {line.said["of"] for line in lines if line.said.get("code") in self._codes}
            return raised == {"send", "receive"}
        sent = [line.said["sent"] for line in lines if "sent" in line.said and line.at > self._over]
        received = [line.said["received"] for line in lines if "received" in line.said]
        if "TIDEGATE_RECEIVE_DELAY_MS" in self._scenario.settings:
            # It is far behind, and catches up while it is asked.
            later = [line for line in lines if "received" in line.said and line.at > self._over]
            return bool(sent and later)
        return bool(sent) and sent[0] in received

    def fault(self) -> str:
        """What was wrong, empty for nothing."""
        lines = self._program.lines()
        return "; ".join(filter(None, [self._silence(lines), self._ending(lines), self._losses(lines)]))

    def _silence(self, lines: Sequence[Line]) -> str:
        for of in ("send", "receive"):
            word = "sent" if of == "send" else "received"
            times = [line.at for line in lines if word in line.said or line.said.get("of") == of]
            longest = max(
                (later - earlier for earlier, later in pairwise([self._started, *times, time.monotonic()])),
            )
            if longest > HANG_S:
                return f"{of} said nothing for {longest:.0f} s"
        return ""

    def _ending(self, lines: Sequence[Line]) -> str:
        if self._program.has_ended:
            return f"it ended by itself; see {self._program.log_file.name}"
        if self.is_well():
            return ""
        errors = sorted(
            {f"{line.said['code']} ({line.said['of']})" for line in lines if "error" in line.said}
        )
        wanted = f"no {' or '.join(self._codes)}" if self._codes else "not sending and receiving again"
        return f"{wanted} after {HANG_S:.0f} s; errors: {', '.join(errors) or 'none'}"

    def _losses(self, lines: Sequence[Line]) -> str:
        if not self._scenario.is_log_kept:
            return ""
        received = {line.said["received"] for line in lines if "received" in line.said}
        missing = set(range(max(received, default=-1))) - received
        firsts = list(dict.fromkeys(line.said["received"] for line in lines if "received" in line.said))
        if missing:
            return f"{len(missing)} events did not arrive: {sorted(missing)[:5]}"
        return "" if firsts == sorted(firsts) else "events came out of order"


def _last(program: LastingProgram, word: str) -> Line | None:
    return next((line for line in reversed(program.lines()) if word in line.said), None)


def _until(is_met: Callable[[], bool], wait_s: float) -> None:
    """Wait for what other processes do; the judges say what has not come."""
    deadline = time.monotonic() + wait_s
    while not is_met() and time.monotonic() < deadline:
        time.sleep(0.2)


SUITES = (
    LongRuns(
        name="long-runs",
        sdk="azure-eventhub, @azure/event-hubs, azeventhubs, azure-messaging-eventhubs",
        version="5.15, 6.0, 2.0, 5.21",
        transports=(Transport.PLAIN,),
    ),
)
