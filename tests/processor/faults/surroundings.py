"""What every fault test has around its hosts: a service, a database, a proxy, a folder; made and removed."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url
from tests.processor.faults.host_process import Breakage, HostSettings
from tests.processor.faults.work import PARTITION_COUNT, committed_calls, sink
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer

from tidegate.sql import Database
from tidegate.testing.hub import HubProcess
from tidegate.testing.proxy import CuttingProxy

SEED_VARIABLE = "TIDEGATE_SEED"

SERVERS: Final[dict[str, type[PostgresqlServer | MariadbServer]]] = {
    "postgresql": PostgresqlServer,
    "mariadb": MariadbServer,
}
"""Databases that can be killed."""


def chosen_seed() -> int:
    """TIDEGATE_SEED, else a random one; printed, so that a failure names it."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(2**31))
    print(f"seed {seed}: run it again with {SEED_VARIABLE}={seed}")
    return seed


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A service with a hub, a database with the tables, and the proxy that hosts reach it through."""

    service: HubProcess
    event_hub: str
    target_hub: str
    """Where handlers may publish."""
    database: Database
    database_url: str
    """As the hosts are told: through the proxy, where there is one."""
    proxy: CuttingProxy | None
    folder: Path

    def host_settings(
        self,
        *,
        seed: int,
        lease_duration_s: float,
        is_transactional: bool = True,
        breakage: Breakage = Breakage.NONE,
        is_publishing: bool = False,
    ) -> HostSettings:
        """What hosts here are told; the cluster gives each its name."""
        return HostSettings(
            name="",
            connection_string=self.service.connection_string,
            event_hub=self.event_hub,
            database_url=self.database_url,
            folder=str(self.folder),
            seed=seed,
            lease_duration_s=lease_duration_s,
            is_transactional=is_transactional,
            breakage=breakage,
            target_hub=self.target_hub if is_publishing else "",
        )


@asynccontextmanager
async def surroundings(
    database_url: str | None, *, seed: int, service: HubProcess | None = None
) -> AsyncIterator[Surroundings]:
    """Make all of it.

    database_url: a server's; None: a SQLite file in the folder. service: one that was not started yet.
    """
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tidegate-faults-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        service = service or HubProcess()
        stack.callback(service.close)
        event_hub = service.create_hub(partition_count=PARTITION_COUNT)
        target_hub = service.create_hub(partition_count=4)
        service.start()
        proxy: CuttingProxy | None = None
        url = hosts_url = database_url or f"sqlite:///{folder}/chaos.db"
        if database_url is not None:
            parsed = make_url(database_url)
            assert parsed.host is not None
            assert parsed.port is not None
            proxy = await stack.enter_async_context(CuttingProxy(parsed.host, parsed.port, seed=seed))
            hosts_url = parsed.set(port=proxy.port).render_as_string(hide_password=False)
        database = stack.enter_context(Database.open(url))
        database.ensure_table(sink)
        database.ensure_table(committed_calls)
        yield Surroundings(service, event_hub, target_hub, database, hosts_url, proxy, folder)


async def wait_until(
    condition: Callable[[], bool], seconds: float, explain: Callable[[], str], *, pause_s: float = 0.05
) -> float:
    """Wait for ``condition``; returns how long it took. AssertionError (``explain()``) after ``seconds``.

    condition: is called in a thread: it may ask a database, and the hosts' proxy runs in this event loop.
    """
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        elapsed_s = time.monotonic() - began
        assert elapsed_s < seconds, f"not within {seconds:g} s: {explain()}"
        await asyncio.sleep(pause_s)
    return time.monotonic() - began
