"""A flood of dead letters over HTTP, with a policy of Send and Listen on the attackers' event hub."""

from __future__ import annotations

import json
from typing import Final

from bench.floods.attack import HUB, PARTITIONS, Attack, Flood, exchange, source_of

_EVENTS: Final = 20
_EVENT_BYTES: Final = 45_000
"""Together nearly the most that a batch may have; copies of them are written in one transaction."""


async def _fill_list_and_redrive(attack: Attack) -> None:
    token = attack.target.token().encode()
    path = f"/api/v1/event-hubs/{HUB}/consumer-groups/$Default/dead-letters"

    def request(method: str, target: str, body: object = None, kind: str = "application/json") -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        return (
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: %b\r\nContent-Type: %b\r\n"
            b"Content-Length: %d\r\n\r\n%b"
            % (method.encode(), target.encode(), token, kind.encode(), len(content), content)
        )

    batch = [{"Body": "x" * _EVENT_BYTES}] * _EVENTS
    publish = "application/vnd.microsoft.servicebus.json"

    async def attackers(number: int) -> None:
        partition_id, first = str(number % PARTITIONS), 0
        async with attack.connected(attack.target.http, source=source_of(0)) as line:
            while True:
                letters = [
                    {"partition_id": partition_id, "sequence_number": first + each, "reason": "x" * 2_000}
                    for each in range(_EVENTS)
                ]
                first += _EVENTS
                for each in (
                    request("POST", f"/{HUB}/partitions/{partition_id}/messages", batch, publish),
                    request("POST", path, {"dead_letters": letters}),
                    request("GET", f"{path}?reason=nothing&status=all&limit=100"),
                    request("POST", f"{path}/redrive", {"partition_id": partition_id}),
                ):
                    await exchange(attack, line, each)

    await attack.repeat(50, attackers)


FLOODS: Final = (
    Flood(
        "dead-letters",
        7,
        "50 connections that add, search and redrive dead letters of 45 KB",
        _fill_list_and_redrive,
        settings={"database": "sqlite:///{directory}/letters.db"},
    ),
)
