"""The console's database: opened late, closed whatever it is at."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tidegate.console.frame import lazy_database
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.model.errors import ClosedError
from tidegate.sql import Database
from tidegate.transport.tasks import TaskOwner

DEADLINE_S = 60


async def test_the_event_loop_goes_on_while_an_opening_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that does not answer holds up its own end, and nothing else; afterwards nobody opens it."""
    url = f"sqlite:///{tmp_path}/reports.db"
    Database.open(url).close()
    is_opening, let_go = threading.Event(), threading.Event()
    opened: list[Database] = []

    def open_slowly(url: str, *, lock_wait_s: float) -> Database:
        is_opening.set()
        assert let_go.wait(DEADLINE_S)
        opened.append(Database.open(url, lock_wait_s=lock_wait_s))
        return opened[-1]

    class SlowDatabase:
        open = staticmethod(open_slowly)

    monkeypatch.setattr(lazy_database, "Database", SlowDatabase)
    lazy = LazyDatabase(url)
    async with asyncio.timeout(2 * DEADLINE_S), TaskOwner("test") as tasks:
        asking = tasks.start(lazy.ask(lambda database: database.url), name="ask")
        assert await asyncio.to_thread(is_opening.wait, DEADLINE_S)
        closing = tasks.start(lazy.close(), name="close")
        for _ in range(20):
            await asyncio.sleep(0)  # on a loop that stands still, nobody would let the opening go
        assert not closing.done()
        let_go.set()
        await asking
        await closing
        with pytest.raises(ClosedError):
            await lazy.ask(lambda database: database.url)
    assert len(opened) == 1


async def test_pages_are_read_while_changes_wait(tmp_path: Path) -> None:
    """Discards and moves wait for the locks of hosts, up to 20 s each: four of them held up every page."""
    url = f"sqlite:///{tmp_path}/reports.db"
    Database.open(url).close()
    lazy, let_go = LazyDatabase(url), threading.Event()
    async with asyncio.timeout(2 * DEADLINE_S), TaskOwner("test") as tasks:
        changes = [
            tasks.start(lazy.change(lambda _: let_go.wait(DEADLINE_S)), name="change") for _ in range(4)
        ]
        await asyncio.sleep(0)
        asking = tasks.start(lazy.ask(lambda database: database.url), name="ask")
        await asyncio.wait([asking, *changes], return_when=asyncio.FIRST_COMPLETED)
        is_read = asking.done()
        let_go.set()
        assert all([await change for change in changes])
        assert is_read
        await asking
        await lazy.close()
