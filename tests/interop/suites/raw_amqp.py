"""Cases of our own that speak AMQP 1.0 byte by byte, as clients do that nobody here has met."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from tests.interop.raw_amqp import cases_connection, cases_flow, cases_links, cases_tokens, cases_transfers
from tests.interop.raw_amqp.peer import Given, connector
from tests.interop.raw_amqp.run import run_cases
from tests.interop.suites.service import SuiteService
from tests.interop.suites.suite import Case, Suite, Transport

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData

CASES = {
    **cases_connection.CASES,
    **cases_links.CASES,
    **cases_flow.CASES,
    **cases_transfers.CASES,
    **cases_tokens.CASES,
}


class RawSuite(Suite):
    """Frames in every order, limits, positions, tokens."""

    def prepare(self) -> None:
        """Nothing is needed."""

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterator[Case]:
        """Each case has connections of its own; the hubs are shared."""
        full, sink = service.create_hub(partition_count=1), service.create_hub(partition_count=2)
        asyncio.run(_fill(service.connection_string, full))
        connect = connector(transport.value, service.port_for(transport), service.ca_file)
        given = Given.of(service.connection_string, connect, full, sink)
        yield from run_cases(CASES, given, cases)


async def _fill(connection_string: str, event_hub: str) -> None:
    async with EventHubProducer.from_connection_string(connection_string, event_hub) as producer:
        await producer.send([EventData(f"event {number}".encode()) for number in range(5)], partition_id="0")


SUITES = (
    RawSuite(
        name="raw-amqp",
        sdk="AMQP 1.0",
        version="OASIS 2012",
        transports=(Transport.PLAIN, Transport.TLS, Transport.WEBSOCKET),
    ),
)
