"""A flood of live pages of the console, by a user with a policy of Send and Listen on the attackers' hub."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Final
from urllib.parse import urlencode

from bench.floods.attack import HUB, POLICY, Attack, Flood, exchange, source_of

_PAGES: Final = 64
"""As many as the console keeps up to date."""
_EVENTS: Final = 100
_BODY: Final = '"' * 200
"""The most that a list shows of a body; pages escape each character."""
_EVERY_S: Final = 0.1
_COOKIE: Final = re.compile(rb"set-cookie: ([^;]+)", re.IGNORECASE)


def _post(path: str, kind: str, body: bytes, token: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nAuthorization: {token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _cookie_of(attack: Attack) -> bytes:
    """Sign in, and return the session's cookie."""
    fields = urlencode({"policy": POLICY, "key": attack.target.key, "hub": HUB})
    async with attack.connected(attack.target.http, source=source_of(0)) as line:
        await line.send(_post("/console/sign-in", "application/x-www-form-urlencoded", fields.encode()))
        found = _COOKIE.search(await line.reader.readuntil(b"\r\n\r\n"))
    assert found is not None, "the console did not let the attacker in"
    return found[1]


async def _look(attack: Attack) -> None:
    cookie = await _cookie_of(attack)
    batch = json.dumps([{"Body": _BODY}] * _EVENTS).encode()
    kind = "application/vnd.microsoft.servicebus.json"
    events = _post(f"/{HUB}/messages", kind, batch, attack.target.token())

    async def look(number: int) -> None:
        # No two pages have the same columns, or the same query: each is drawn by itself.
        live = f"{HUB}/explorer?count=500&paths=$.x{number}" if number % 2 else f"{HUB}?x={number}"
        async with attack.connected(attack.target.http, source=source_of(0)) as line:
            head = f"GET /console/live/hubs/{live} HTTP/1.1\r\nHost: localhost\r\nCookie: "
            await line.send(head.encode() + cookie + b"\r\n\r\n")
            await line.hold()

    async def send(number: int) -> None:
        async with attack.connected(attack.target.http, source=source_of(0)) as line:
            while True:
                await exchange(attack, line, events)
                await asyncio.sleep(_EVERY_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(attack.repeat(_PAGES, look))
        group.create_task(attack.repeat(1, send))


FLOODS: Final = (
    Flood("live-pages", 8, "64 live pages of lists, beside 1,000 events a second that they show", _look),
)
