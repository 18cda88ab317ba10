"""The broker: a namespace of event hubs over one data directory.

Everything is called on the event loop that ran ``Broker.open``. On disk:

    lock            held while a service runs
    catalog.json    event hubs, consumer groups, policies with their keys (mode 0600)
    logs/<hub id>/<partition id>/    the partition logs (see ``tidegate.storage``)
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from tidegate.broker.authorization import Authorizer, Grant
from tidegate.broker.catalog import Catalog, EventHubRecord
from tidegate.broker.event_hub import EventHub, validate_name
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    TidegateError,
)
from tidegate.model.limits import (
    HUB_NAME_CHARACTERS_MAX,
    PARTITIONS_MAX,
    RETENTION_HOURS_DEFAULT,
    RETENTION_HOURS_MAX,
)
from tidegate.storage.files import Files, OsFiles
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import PartitionLog

_logger = logging.getLogger(__name__)


class Broker:
    """A namespace; open it with ``await Broker.open(...)`` and ``await close()`` it."""

    def __init__(self, catalog: Catalog, logs: LogManager, clock: Clock) -> None:
        """Use ``open``."""
        self._catalog = catalog
        self._logs = logs
        self._clock = clock
        self._authorizer = Authorizer(catalog.contents.policies)
        self._event_hubs: dict[str, EventHub] = {}

    @classmethod
    async def open(
        cls,
        data_directory: Path,
        *,
        clock: Clock,
        options: LogOptions | None = None,
        files: Files | None = None,
    ) -> Broker:
        """Open (on first start: make) the namespace in ``data_directory`` and recover its logs.

        On first start there are no event hubs, and one policy RootManageSharedAccessKey with a random key.
        Raises DirectoryInUseError (another service runs on it), LogCorruptError (names the file, the place
        and the command that repairs), LogFullError, OSError.
        """
        files = files or OsFiles()
        logs = await LogManager.open(data_directory, options=options, files=files)
        try:
            catalog = Catalog.open(files, data_directory)
            broker = cls(catalog, logs, clock)
            for record in catalog.contents.event_hubs:
                broker._add_event_hub(record)
            known = [record.hub_id for record in catalog.contents.event_hubs]
            for hub_id in logs.unknown_hub_ids(known):
                # An older catalog may have been restored: removing the logs is for their owner to decide.
                _logger.warning("The logs %s belong to no event hub of the catalog; they are kept.", hub_id)
        except BaseException:
            await logs.close()
            raise
        return broker

    async def close(self) -> None:
        """Refuse new appends, finish those that were queued, and release the data directory. Harmless
        twice.
        """
        await self._logs.close()

    # -- authorization

    @property
    def authorizer(self) -> Authorizer:
        """The policies and the check of tokens."""
        return self._authorizer

    def authorize(self, token: str, audience: str) -> Grant:
        """What a SAS token presented for ``audience`` allows now. Raises UnauthorizedError."""
        return self._authorizer.authorize(token, audience, now_utc=self._clock.now_utc())

    # -- event hubs

    def create_event_hub(
        self,
        name: str,
        *,
        partition_count: int,
        retention_hours: int = RETENTION_HOURS_DEFAULT,
        retention_bytes: int | None = None,
    ) -> EventHub:
        """Make an event hub; durable on return.

        retention_hours: 1..2160; retention_bytes: per partition, None for no limit but time.
        Raises InvalidArgumentError, AlreadyExistsError, LogFullError.
        """
        validate_name(name, "event hub", HUB_NAME_CHARACTERS_MAX)
        if not 1 <= partition_count <= PARTITIONS_MAX:
            raise InvalidArgumentError(f"{partition_count} partitions; 1 to {PARTITIONS_MAX} are allowed.")
        if not 1 <= retention_hours <= RETENTION_HOURS_MAX:
            raise InvalidArgumentError(f"{retention_hours} hours; 1 to {RETENTION_HOURS_MAX} are allowed.")
        if retention_bytes is not None and retention_bytes < 1:
            raise InvalidArgumentError(f"{retention_bytes} bytes of retention; 1 or more are allowed.")
        if name.lower() in self._event_hubs:
            raise AlreadyExistsError(f"The event hub {name!r} exists already.")
        record = EventHubRecord(
            hub_id=secrets.token_hex(8),
            name=name,
            partition_count=partition_count,
            retention_hours=retention_hours,
            retention_bytes=retention_bytes,
            created_at_ms=int(self._clock.now_utc().timestamp() * 1000),
        )
        self._logs.create_logs(record.hub_id, partition_count)
        contents = self._catalog.contents
        self._catalog.replace_contents(replace(contents, event_hubs=(*contents.event_hubs, record)))
        return self._add_event_hub(record)

    def list_event_hubs(self) -> list[EventHub]:
        """All event hubs, in the order of their creation."""
        return list(self._event_hubs.values())

    def event_hub(self, name: str) -> EventHub:
        """The event hub of that name, in whatever letter case. Raises NotFoundError."""
        event_hub = self._event_hubs.get(name.lower())
        if event_hub is None:
            raise NotFoundError(
                f"The messaging entity '{name[:80]}' could not be found.",
                next_step="Create it first: tidegate hub create NAME.",
            )
        return event_hub

    async def delete_event_hub(self, name: str) -> None:
        """Remove an event hub with everything in it; whoever waits on its partitions gets ClosedError.

        Raises NotFoundError, LogFullError. Cancellation: the hub is gone from the catalog; files that were
        left are removed at the next start.
        """
        event_hub = self.event_hub(name)
        hub_id = event_hub.description.hub_id
        contents = self._catalog.contents
        remaining = tuple(record for record in contents.event_hubs if record.hub_id != hub_id)
        self._catalog.replace_contents(replace(contents, event_hubs=remaining))
        del self._event_hubs[name.lower()]
        await self._logs.delete_logs(hub_id)

    async def apply_retention(self) -> int:
        """Remove the segments that every limit of their hub has passed; returns how many. Call it now and
        then.

        A partition where that fails does not keep the others from it: it is told in the log, with the reason.
        """
        now_utc = self._clock.now_utc()
        removed = 0
        for event_hub in self.list_event_hubs():
            description = event_hub.description
            before_ms = _ms(now_utc - timedelta(hours=description.retention_hours))
            for partition in event_hub.partitions:
                if partition.is_closed:
                    continue  # deleted meanwhile
                try:
                    removed += await partition.apply_retention(
                        before_ms=before_ms, bytes_max=description.retention_bytes
                    )
                except ClosedError:
                    continue
                except (TidegateError, OSError) as error:
                    _logger.error("Retention of %s: %s Trying again later.", partition, error)
        return removed

    # -- load

    @property
    def is_congested(self) -> bool:
        """True while more appends wait for the disk than is good: stop reading from producers."""
        return self._logs.is_congested

    async def wait_uncongested(self) -> None:
        """Return once producers may be read from again. Cancellation: leaves no trace."""
        await self._logs.wait_uncongested()

    def _add_event_hub(self, record: EventHubRecord) -> EventHub:
        logs = self._partition_logs(record.hub_id, record.partition_count)
        event_hub = EventHub(record, logs, catalog=self._catalog, clock=self._clock)
        self._event_hubs[record.name.lower()] = event_hub
        return event_hub

    def _partition_logs(self, hub_id: str, partition_count: int) -> list[PartitionLog]:
        return [self._logs.log(hub_id, str(index)) for index in range(partition_count)]

    def __repr__(self) -> str:
        return f"<Broker event_hubs={len(self._event_hubs)}>"


def _ms(time_utc: datetime) -> int:
    return int(time_utc.timestamp() * 1000)
