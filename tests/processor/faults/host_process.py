"""A program: one Event Processor Host in a process of its own, for tests that kill, pause and stop it.

Run as ``python -m tests.processor.faults.host_process SETTINGS`` (JSON of ``HostSettings``).
SIGTERM unregisters the host and ends the process with status 0. SIGUSR1 makes it kill itself during its next
commit, or the next step of its relay: a timer of 0 to 3 ms is started where that begins.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.processor.faults.work import CONSUMER_GROUP, Journal, PlainWork, TransactionalWork

from tidegate.model.errors import DatabaseUnavailableError, FencedError
from tidegate.processor import DirectoryStore, EventProcessorHost
from tidegate.processor.handlers import EventProcessor, PartitionContext, TransactionalProcessor
from tidegate.processor.options import EventProcessorOptions, PartitionManagerOptions
from tidegate.sql import Database, SqlStore, UnitOfWork
from tidegate.transport.tasks import TaskOwner

if TYPE_CHECKING:
    from tidegate.client.partition_sender import OutgoingBatch
    from tidegate.client.repeatable import RepeatableSender
    from tidegate.processor.stores.blob import BlobStore
    from tidegate.sql.outbox.lanes import LaneStep

NAME_PREFIX: Final = "TIDEGATE_TESTS_NAME_PREFIX"
"""A variable: goes before the host's name, as its group knows it."""
LEASES_APART: Final = "TIDEGATE_TESTS_LEASES_APART"
"""A variable: leases are in files, checkpoints where they are otherwise."""
CONTAINER: Final = "hosts"
FENCED_MARK: Final = "overtaken:"
"""Stands in the log before each refusal of an owner that was overtaken."""
_OPEN_S_MAX: Final = 60.0
_DEATH_DELAY_S_MAX: Final = 0.003


class Breakage(StrEnum):
    """What is made wrong on purpose, to show that the checker finds it."""

    NONE = "none"
    CHECKPOINT_APART = "checkpoint_apart"
    """The handler's effects are committed before the checkpoint, in a transaction of their own."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """All that a host process is told."""

    name: str
    connection_string: str
    event_hub: str
    database_url: str
    folder: str
    """Where the journal, the log and the ready file go."""
    seed: int
    lease_duration_s: float
    is_transactional: bool = True
    breakage: Breakage = Breakage.NONE
    target_hub: str = ""
    """Where transactional handlers publish; empty: nowhere."""
    container: str = ""
    """Connection string of a storage account with the container ``CONTAINER``, for leases and checkpoints
    instead of the database; not for transactions."""

    @property
    def ready_file(self) -> Path:
        """Made once the host is registered; holds the process id."""
        return Path(self.folder) / f"{self.name}.ready"

    def to_json(self) -> str:
        """What the program takes as its argument."""
        return json.dumps(dataclasses.asdict(self))


async def run(settings: HostSettings) -> None:
    """Process until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    database = None if settings.container else open_database(settings.database_url)
    store: BlobStore | SqlStore = (
        container_store(settings.container) if database is None else SqlStore(database)
    )
    host = EventProcessorHost(
        os.environ.get(NAME_PREFIX, "") + settings.name,
        settings.event_hub,
        CONSUMER_GROUP,
        settings.connection_string,
        store,
        EventProcessorOptions(max_batch_size=500, on_exception=report),
        manager_options=PartitionManagerOptions(
            lease_duration_s=settings.lease_duration_s, renew_interval_s=settings.lease_duration_s / 3
        ),
        leases=DirectoryStore(Path(settings.folder) / "leases") if LEASES_APART in os.environ else None,
        transactional=settings.is_transactional,
    )
    await host.register(factory=make_factory(settings))
    settings.ready_file.write_text(str(os.getpid()))
    async with TaskOwner("host process") as tasks:
        stopped = tasks.start(stopping.wait(), name="SIGTERM")
        failed = tasks.start(host.wait(), name="the host")
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()  # what it failed with ends this process
        await host.unregister()
    await store.close()
    if database is not None:
        database.close()


def make_factory(
    settings: HostSettings,
) -> Callable[[PartitionContext], EventProcessor | TransactionalProcessor]:
    """A new handler for each partition that is opened, with a journal under a name of its own."""
    counter = itertools.count()
    journal_folder = Path(settings.folder) / "journal"
    random_numbers = random.Random(f"{settings.seed}/{settings.name}/{os.getpid()}")

    def make(context: PartitionContext) -> EventProcessor | TransactionalProcessor:
        journal = Journal(journal_folder, f"{os.getpid()}.{next(counter)}")
        if settings.is_transactional:
            return TransactionalWork(journal, settings.target_hub)
        return PlainWork(journal, random_numbers)

    return make


def open_database(url: str) -> Database:
    """As ``Database.open``, again until there is a connection: a cut may hit a program's start, too."""
    deadline = time.monotonic() + _OPEN_S_MAX
    while True:
        try:
            return Database.open(url)
        except DatabaseUnavailableError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def container_store(connection_string: str) -> BlobStore:
    """Leases and checkpoints in the container ``CONTAINER``."""
    from tidegate.processor.stores.blob import BlobStore  # here: only few hosts need Azure's package

    return BlobStore.from_connection_string(connection_string, CONTAINER)


def report(error: Exception, partition_id: str | None) -> None:
    """Into the log of this process, for whoever looks for the reason of a failure."""
    where = "host" if partition_id is None else f"partition {partition_id}"
    logging.getLogger("chaos").warning("%s: %s: %s", where, type(error).__name__, error)


def note_fencing() -> None:
    """Log each transaction that is refused because its owner was overtaken.

    A host that is woken after its lease ran out is stopping already when it learns that, and tells nobody.
    """
    original = UnitOfWork.__exit__

    def leave(self: UnitOfWork, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FencedError):
            logging.getLogger("chaos").warning("%s %s", FENCED_MARK, error)
        original(self, kind, error, trace)

    UnitOfWork.__exit__ = leave  # type: ignore[method-assign]


def die_when_told(seed: str, breakage: Breakage) -> None:
    """Make SIGUSR1 end this process during its next commit; where that is broken, between its halves."""
    is_told = threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: is_told.set())
    if breakage is Breakage.CHECKPOINT_APART:
        _commit_checkpoints_apart(is_told)
    else:
        _die_in_commit(is_told, random.Random(seed))


def _die_in_commit(is_told: threading.Event, random_numbers: random.Random) -> None:
    original = UnitOfWork.commit

    def die_soon() -> None:
        if is_told.is_set():
            delay_s = random_numbers.uniform(0.0, _DEATH_DELAY_S_MAX)
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def commit(self: UnitOfWork) -> None:
        die_soon()
        original(self)

    UnitOfWork.commit = commit  # type: ignore[method-assign]
    if find_spec("tidegate.sql.outbox") is not None:  # it may be an earlier version
        _die_in_relay(die_soon)


def _die_in_relay(die_soon: Callable[[], None]) -> None:
    from tidegate.client.repeatable import RepeatableSender
    from tidegate.sql.outbox import relay
    from tidegate.sql.outbox.lanes import take_steps

    original_submit = RepeatableSender.submit

    def take(database: Database, steps: Iterable[LaneStep]) -> set[str]:
        die_soon()
        return take_steps(database, steps)

    def submit(self: RepeatableSender, batch: OutgoingBatch) -> None:
        die_soon()
        original_submit(self, batch)

    vars(relay)["take_steps"] = take
    RepeatableSender.submit = submit  # type: ignore[method-assign]


def _commit_checkpoints_apart(is_told: threading.Event) -> None:
    original: Callable[..., None] = UnitOfWork.advance_all

    def advance_all(self: UnitOfWork, *arguments: object, **options: object) -> None:
        self.connection.commit()
        if is_told.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        self.connection.begin()
        original(self, *arguments, **options)

    UnitOfWork.advance_all = advance_all  # type: ignore[method-assign]


def main() -> None:
    """See the module's text."""
    arguments = json.loads(sys.argv[1])
    settings = HostSettings(**arguments | {"breakage": Breakage(arguments["breakage"])})
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
    )
    note_fencing()
    die_when_told(f"{settings.seed}/{settings.name}/{os.getpid()}", settings.breakage)
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
