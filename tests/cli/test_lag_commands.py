"""``tidegate lag``, ``lease list`` and ``checkpoint list|set`` against a real service and real stores."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import update
from tests.cli.support import COMMAND, Result, run_tidegate
from tests.gateway.blob_client import BlobClient
from tests.support.azurite import AzuriteServer
from tests.support.blob_storage import OwnStorage

from tidegate.cli.consumers.kept import views_of
from tidegate.client import BlockingConsumer, EventHubConsumer
from tidegate.client.entities import ConsumerProperties
from tidegate.model.events import ReceivedEvent
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.position import EventPosition
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import Lag, lag_of
from tidegate.processor.lease import GroupKey, Lease
from tidegate.processor.store import ProcessorStore
from tidegate.processor.stores.blob import BlobStore
from tidegate.processor.stores.directory import DirectoryStore
from tidegate.sql import ConsumerKey, Database, DeadLetters, NewDeadLetter, SqlStore
from tidegate.sql.core.schema import dead_letter
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

T = TypeVar("T")

LEASE_COLUMNS = ["consumer_group", "partition", "owner", "acquired", "offset", "lease_age_s", "epoch"]
LAG_COLUMNS = [*LEASE_COLUMNS, "checkpoint", "end_of_log", "lag_events", "lag_s", "lost_events"]
LAG_COLUMNS += ["open_dead_letters", "new_dead_letters"]


@dataclass(frozen=True, slots=True)
class Place:
    """A hub with 10 events in partition 0 and none in partition 1, and a store that knows nothing yet."""

    hub: str
    group: GroupKey
    store_options: tuple[str, ...]
    path: Path
    environment: dict[str, str]

    def run(self, *arguments: str) -> Result:
        """Run a command on this store."""
        return run_tidegate(*arguments, *self.store_options, environment=self.environment)

    def json(self, *arguments: str) -> list[dict[str, object]]:
        """What a command that goes well says."""
        found = self.run(*arguments, "--json")
        assert found.code == 0, found.err
        records: list[dict[str, object]] = json.loads(found.out)
        return records

    def on_store(self, work: Callable[[ProcessorStore], Awaitable[T]]) -> T:
        """Do something with the store, as a host would."""

        async def run() -> T:
            async with self._open() as store:
                return await work(store)

        return asyncio.run(run())

    def process(self, event: ReceivedEvent) -> Lease:
        """A host ``host-a`` takes partition 0 and checkpoints ``event``."""
        return self.checkpoint(ProcessorCheckpoint.of_event(event))

    def checkpoint(self, checkpoint: ProcessorCheckpoint) -> Lease:
        """As ``process``, with any checkpoint."""

        async def work(store: ProcessorStore) -> Lease:
            lease = await store.acquire(self.group, "0", "host-a", expected=None)
            assert lease is not None
            await store.update_checkpoint(self.group, checkpoint, lease=lease)
            return lease

        return self.on_store(work)

    def events(self) -> list[ReceivedEvent]:
        """The ten events."""
        with BlockingConsumer(self.environment["TIDEGATE_CONNECTION_STRING"], self.hub) as consumer:
            return list(consumer.read_events(self.hub, "0", range(10)))

    def following(self) -> dict[str, int | None]:
        """Which event each partition goes on with."""
        found = self.on_store(lambda store: store.list_checkpoints(self.group))
        return {
            partition_id: None if each.sequence_number is None else each.sequence_number + 1
            for partition_id, each in found.items()
        }

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ProcessorStore]:
        if self.store_options[0] == "--checkpoint-dir":
            yield DirectoryStore(self.path)
            return
        with Database.open(self.store_options[1]) as database:
            store = SqlStore(database)
            yield store
            await store.close()


def _place(kind: str, path: Path, hub: str, environment: dict[str, str]) -> Place:
    lines = "\n".join(map(str, range(10))).encode()
    sent = run_tidegate("send", hub, "--partition", "0", environment=environment, input_bytes=lines)
    assert sent.code == 0, sent.err
    with BlockingConsumer(environment["TIDEGATE_CONNECTION_STRING"], hub) as consumer:
        namespace_id = consumer.get_event_hub_properties().namespace_id
    assert namespace_id is not None
    directory = path / "checkpoints"
    directory.mkdir()
    Database.open(f"sqlite:///{path}/hosts.db").close()
    options = {
        "sql": ("--database", f"sqlite:///{path}/hosts.db"),
        "directory": ("--checkpoint-dir", str(directory)),
    }[kind]
    return Place(hub, GroupKey(namespace_id, hub, "$Default"), options, directory, environment)


@pytest.fixture(params=["sql", "directory"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, event_hub: str, environment: dict[str, str]
) -> Place:
    """A hub, and a store of each kind."""
    return _place(request.param, tmp_path, event_hub, environment)


@pytest.fixture
def sql_place(tmp_path: Path, event_hub: str, environment: dict[str, str]) -> Place:
    """A hub, and a SQL store."""
    return _place("sql", tmp_path, event_hub, environment)


@pytest.mark.slow
def test_lag_of_each_partition(place: Place) -> None:
    """The lease table with what is still to be read, in events and in seconds; for groups by name."""
    events = place.events()
    place.process(events[6])
    owned, untouched = place.json("lag", place.hub)
    assert list(owned) == LAG_COLUMNS
    behind_s = (events[9].enqueued_time_ms - events[6].enqueued_time_ms) / 1000
    assert {name: owned[name] for name in LAG_COLUMNS if name not in ("acquired", "lease_age_s")} == {
        "consumer_group": "$Default",
        "partition": "0",
        "owner": "host-a",
        "offset": events[6].offset,
        "epoch": 1,
        "checkpoint": 6,
        "end_of_log": 9,
        "lag_events": 3,
        "lag_s": pytest.approx(behind_s),
        "lost_events": 0,
        "open_dead_letters": None if place.store_options[0] == "--checkpoint-dir" else 0,
        "new_dead_letters": None if place.store_options[0] == "--checkpoint-dir" else 0,
    }
    assert datetime.fromisoformat(str(owned["acquired"])).tzinfo is not None
    assert isinstance(owned["lease_age_s"], float)
    assert (untouched["partition"], untouched["owner"], untouched["lag_events"]) == ("1", None, 0)
    run_tidegate("group", "create", place.hub, "reports", environment=place.environment)
    both = place.json("lag", place.hub, "--group", "$Default", "--group", "reports")
    assert [(each["consumer_group"], each["partition"], each["lag_events"]) for each in both] == [
        ("$Default", "0", 3),
        ("$Default", "1", 0),
        ("reports", "0", 10),
        ("reports", "1", 0),
    ]


def test_the_lag_table_ends_with_totals(sql_place: Place) -> None:
    """As a table: the columns of the lease table first, a row for each partition, and the totals."""
    sql_place.process(sql_place.events()[9])
    with Database.open(sql_place.store_options[1]) as database:
        letters = [NewDeadLetter(number, str(number), 5, "ValueError", "") for number in (1, 2)]
        DeadLetters(database).add(ConsumerKey(sql_place.hub), "0", letters)
        with database.writing() as connection, connection.begin():
            earlier = database.clock.now_utc() - timedelta(hours=2)
            is_first = dead_letter.c.sequence_number == 1
            connection.execute(update(dead_letter).where(is_first).values(last_failed_at=earlier))
    run_tidegate("group", "create", sql_place.hub, "late", environment=sql_place.environment)
    found = sql_place.run("lag", sql_place.hub, "--table", "--group", "$Default", "--group", "late")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert (
        lines[0].split()
        == " ".join(LAG_COLUMNS).replace("_", " ").replace("checkpoint", "last processed").split()
    )
    assert len(lines) == 6
    assert lines[1].split()[:3] == ["$Default", "0", "host-a"]
    assert lines[1].split()[-5:] == ["0", "0.0", "0", "2", "1"]
    assert lines[5].split()[0] == "total"
    # A partition of which nothing is processed has no time.
    assert lines[5].split()[-5:] == ["10", "-", "0", "2", "1"]
    assert "Dead letters are not known" not in found.err


@pytest.mark.slow
def test_watching_lag_shows_it_again(sql_place: Place) -> None:
    """--watch --nl goes on until Ctrl-C, sees new events, and ends well; without --nl it needs a terminal."""
    refused = sql_place.run("lag", sql_place.hub, "--watch", "--json")
    assert (refused.code, "--watch requires a terminal" in refused.err) == (2, True)
    arguments = ["lag", sql_place.hub, "--watch", "--interval", "0.1", "--nl", *sql_place.store_options]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env=sql_place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert json.loads(watching.stdout.readline())["lag_events"] == 10
        sent = run_tidegate(
            "send", sql_place.hub, "--partition", "0", environment=sql_place.environment, input_bytes=b"new\n"
        )
        assert sent.code == 0
        while json.loads(watching.stdout.readline())["lag_events"] != 11:
            pass
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
        assert watching.stderr.read() == b""


def test_a_checkpoint_of_another_log_is_told(sql_place: Place) -> None:
    """A checkpoint beyond the log's end gives no number that could be taken for a lag, and a remark."""
    sql_place.checkpoint(ProcessorCheckpoint("0", 99, "99"))
    found = sql_place.run("lag", sql_place.hub, "--json")
    assert found.code == 0
    assert json.loads(found.out)[0]["lag_events"] is None
    assert "Partition 0 of $Default: the checkpoint belongs to another log" in found.err


@pytest.mark.slow
def test_leases_are_listed(place: Place) -> None:
    """Who has what; a released lease keeps its epoch and has no owner; a partition nobody had is absent."""
    assert place.json("lease", "list", place.hub) == []
    lease = place.process(place.events()[4])
    (listed,) = place.json("lease", "list", place.hub)
    assert list(listed) == LEASE_COLUMNS
    assert (listed["partition"], listed["owner"], listed["epoch"], listed["offset"]) == (
        "0",
        "host-a",
        1,
        "4",
    )
    place.on_store(lambda store: store.release(place.group, [lease]))
    (released,) = place.json("lease", "list", place.hub)
    assert (released["owner"], released["acquired"], released["epoch"]) == (None, None, 1)


@pytest.mark.slow
def test_checkpoints_are_listed(place: Place) -> None:
    """The last processed event, by number, offset and time."""
    assert place.json("checkpoint", "list", place.hub) == []
    event = place.events()[4]
    place.process(event)
    (listed,) = place.json("checkpoint", "list", place.hub)
    assert (listed["partition"], listed["checkpoint"], listed["offset"]) == ("0", 4, event.offset)
    assert datetime.fromisoformat(str(listed["enqueued_time"])) == event.enqueued_time
    assert "last processed" in place.run("checkpoint", "list", place.hub).out.splitlines()[0]
    for words in (("checkpoint", "list"), ("lease", "list")):
        found = place.run(*words, place.hub, "--group", "other", "--json")
        assert (found.code, found.out.strip()) == (0, "[]")
        assert f"has no lease and no checkpoint of other of {place.hub}, but of $Default." in found.err


def test_lists_of_a_database_need_no_service(sql_place: Place, lonely: dict[str, str]) -> None:
    """A database is enough to see who has what; a directory has a folder for each namespace."""
    sql_place.process(sql_place.events()[4])
    for words in (("lease", "list"), ("checkpoint", "list")):
        found = run_tidegate(*words, sql_place.hub, *sql_place.store_options, "--nl", environment=lonely)
        assert (found.code, json.loads(found.out)["partition"]) == (0, "0"), found.err
        directory = ("--checkpoint-dir", str(sql_place.path))
        assert run_tidegate(*words, sql_place.hub, *directory, environment=lonely).code == 3


@pytest.mark.slow
def test_a_group_that_is_not_there_is_told_with_those_that_are(place: Place) -> None:
    """Under which names it looked and which there are: a wrong group; in a directory a wrong namespace."""
    place.process(place.events()[6])
    is_directory = place.store_options[0] == "--checkpoint-dir"
    there = f"but of $Default as {place.group.namespace}." if is_directory else "but of $Default."
    found = place.run("lag", place.hub, "--group", "alarms")
    assert (found.code, found.out) == (1, "")
    assert f"The event hub '{place.hub}' has no consumer group alarms." in found.err
    assert f"has no lease and no checkpoint of alarms of {place.hub}, {there}" in found.err
    if is_directory:
        found = place.run("lag", place.hub, "--namespace", "elsewhere")
        looked = f"The directory, as elsewhere, has no lease and no checkpoint of $Default of {place.hub}"
        assert f"{looked}, {there}" in found.err


def test_groups_that_the_service_keeps(
    hub_service: HubService, sql_place: Place, environment: dict[str, str]
) -> None:
    """Without a store, those of official processors in its accounts; what is missing is named, and what is
    there, also if a store is given that has nothing."""
    hub, account = sql_place.hub, OwnStorage(hub_service)
    client = BlobClient(f"{account.host}:{account.port}", account.account_name, account.account_key)
    container = f"/{account.create_container()}"
    for kind, metadata in (
        ("ownership", {"x-ms-meta-ownerid": "one"}),
        ("checkpoint", {"x-ms-meta-offset": "6", "x-ms-meta-sequencenumber": "6"}),
    ):
        path = f"{container}/localhost/{hub}/$default/{kind}/0".lower()
        assert client.ask("PUT", path, {}, {"x-ms-blob-type": "BlockBlob"} | metadata).status == 201
    shown = run_tidegate("lag", hub, "--json", environment=environment)
    assert shown.code == 0, shown.err
    first, second = json.loads(shown.out)
    assert (first["consumer_group"], first["owner"], first["checkpoint"]) == ("$Default", "one", 6)
    assert (first["lag_events"], second["lag_events"], second["owner"]) == (3, 0, None)
    assert (first["epoch"], second["epoch"]) == (None, None)  # official processors have none
    there = f"Consumer groups of {hub}: $Default. The service keeps checkpoints of $Default in "
    for words in (("--group", "alarms"), ("--group", "alarms", *sql_place.store_options)):
        missing = run_tidegate("lag", hub, *words, environment=environment)
        assert missing.code == 1
        assert (
            f"has no lease and no checkpoint of alarms of {hub}. {there}blob{container} as localhost."
            in missing.err
        )


def test_of_a_group_without_anything_no_total_is_zero(
    hub_service: HubService, environment: dict[str, str]
) -> None:
    """The service keeps another group; of this one nothing is known, which is not that nothing is left."""
    hub = hub_service.create_hub(partition_count=1)
    absent = run_tidegate("lag", hub, "--group", "reports", environment=environment)
    assert (absent.code, f"{hub!r} has no consumer group reports." in absent.err) == (1, True)
    assert run_tidegate("group", "create", hub, "reports", environment=environment).code == 0

    async def report() -> None:
        string = hub_service.hub_connection_string(hub)
        async with EventHubConsumer.from_connection_string(string) as consumer:
            await consumer.report("host", {"0": 5})

    asyncio.run(report())
    shown = run_tidegate("lag", hub, "--group", "reports", environment=environment)
    assert (shown.code, "no lease and no checkpoint of reports" in shown.err) == (0, True)
    assert {*shown.out.splitlines()[-1].split()} == {"total", "all", "-"}
    assert "last processed" in shown.out.splitlines()[0]
    assert "Dead letters are not known here" in shown.err


@pytest.mark.slow
def test_a_checkpoint_is_set_by_each_position(place: Place) -> None:
    """Each of the five ways, forwards and back; and a processor starts right where it was said."""
    events = place.events()
    time = events[3].enqueued_time.isoformat()
    first_at_time = next(e.sequence_number for e in events if e.enqueued_time >= events[3].enqueued_time)
    for options, following in (
        (("--sequence-number", "5"), 5),
        (("--offset", events[6].offset), 7),
        (("--offset", events[9].offset), 10),
        (("--enqueued-time", time), first_at_time),
        (("--earliest",), 0),
        (("--latest",), 10),
        (("--enqueued-time", "2100-01-01"), 10),
    ):
        found = place.run("checkpoint", "set", place.hub, "--partition", "0", *options, "--rewind", "--json")
        assert found.code == 0, found.err
        (moved,) = json.loads(found.out)
        assert (moved["after"], moved["is_set"]) == (following, True)
        assert place.following() == {"0": following}
    stored = place.on_store(lambda store: store.list_checkpoints(place.group))["0"]
    assert (stored.offset, stored.enqueued_time_ms) == (events[9].offset, events[9].enqueued_time_ms)


def test_a_checkpoint_is_set_beside_a_host(sql_place: Place) -> None:
    """To a time that only the log knows, while an owner keeps others out of the partition."""
    sql_place.process(sql_place.events()[3])

    async def own_and_set() -> Result:
        string = sql_place.environment["TIDEGATE_CONNECTION_STRING"]
        async with (
            EventHubConsumer.from_connection_string(string, sql_place.hub) as consumer,
            await consumer.open_receiver("0", EventPosition.earliest(), owner_level=1) as receiver,
        ):
            words = ("checkpoint", "set", sql_place.hub, "--all", "--enqueued-time", "1h")
            found = await asyncio.to_thread(sql_place.run, *words, "--rewind", "--force", "--nl")
            assert len(await receiver.receive(10)) > 0  # it was not disturbed
            return found

    found = asyncio.run(own_and_set())
    assert found.code == 0, found.err
    assert sql_place.following() == {"0": 0, "1": 0}
    summary = "0 events skipped, 4 processed again. Not known for 1 partition, without a checkpoint"
    assert summary in found.err


def test_all_partitions_are_set_and_said(sql_place: Place) -> None:
    """--all takes every partition; what it skips and repeats is said; a dry run sets none."""
    sql_place.process(sql_place.events()[3])
    words = ("checkpoint", "set", sql_place.hub, "--all", "--latest", "--force")
    dry = sql_place.run(*words, "--dry-run", "--nl")
    assert dry.code == 0, dry.err
    assert "6 events skipped, 0 processed again. Not known for 1 partition, without a" in dry.err
    assert [json.loads(line)["is_set"] for line in dry.out.splitlines()] == [False, False]
    assert sql_place.following() == {"0": 4}
    assert sql_place.json(*words) == [
        {
            "consumer_group": "$Default",
            "partition": "0",
            "before": 4,
            "after": 10,
            "events": 6,
            "is_set": True,
        },
        {
            "consumer_group": "$Default",
            "partition": "1",
            "before": None,
            "after": 0,
            "events": None,
            "is_set": True,
        },
    ]
    assert sql_place.following() == {"0": 10, "1": 0}


def test_a_blob_container(
    azurite: AzuriteServer, event_hub: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    """What official processors and ours keep in a container is shown and set, by the container's name."""
    place = _place("sql", tmp_path, event_hub, environment)
    container = azurite.create_container()
    account = azurite.connection_string()
    options = ("--blob-container", container, "--namespace", "name.servicebus.windows.net")
    group = GroupKey("name.servicebus.windows.net", event_hub, "$Default")
    place = replace(
        place,
        store_options=options,
        environment=environment | {"AZURE_STORAGE_CONNECTION_STRING": account},
    )

    async def process() -> None:
        store = BlobStore.from_connection_string(account, container)
        try:
            await store.acquire(group, "0", "host-a", expected=None)
            await store.update_checkpoint(group, ProcessorCheckpoint("0", 6, "6"), lease=None)
        finally:
            await store.close()

    asyncio.run(process())
    first = place.json("lag", event_hub)[0]
    assert (first["owner"], first["acquired"], first["offset"]) == ("host-a", None, "6")
    assert (first["lag_events"], first["lag_s"]) == (3, None)
    assert [each["owner"] for each in place.json("lease", "list", event_hub)] == ["host-a"]
    options_elsewhere = ("--blob-container", container, "--namespace", "elsewhere")
    elsewhere = run_tidegate("lag", event_hub, *options_elsewhere, environment=place.environment).err
    assert f"of {event_hub}, but of $Default as name.servicebus.windows.net." in elsewhere
    words = ("checkpoint", "set", event_hub, "--partition", "0", "--force", "--rewind")
    for position, checkpoint in ((("--earliest",), (-1, "-1")), (("--sequence-number", "3"), (2, "2"))):
        assert [each["is_set"] for each in place.json(*words, *position)] == [True]
        (listed,) = place.json("checkpoint", "list", event_hub)
        assert (listed["checkpoint"], listed["offset"]) == checkpoint
    missing = run_tidegate("lag", event_hub, *options, environment=environment)
    assert (missing.code, "Unknown storage account" in missing.err) == (2, True)


@pytest.mark.slow
def test_what_speaks_against_it_is_said_at_once(place: Place) -> None:
    """Backwards and a living host are refused in one message, and nothing is set; each by its own option."""
    lease = place.process(place.events()[6])
    words = ("checkpoint", "set", place.hub, "--all", "--earliest")
    refused = place.run(*words)
    assert refused.code == 1
    assert "Nothing changed." in refused.err
    assert "0 by host-a (renewed " in refused.err
    assert "0 from 7 to 0" in refused.err
    assert place.run(*words, "--force").code == 1
    assert place.run(*words, "--rewind").code == 1
    assert place.following() == {"0": 7}
    assert place.run(*words, "--rewind", "--force").code == 0
    assert place.following() == {"0": 0, "1": 0}
    forward = ("checkpoint", "set", place.hub, "--all", "--latest")
    assert place.run(*forward).code == 1
    assert place.run(*forward, "--lease-duration", "0").code == 0
    place.on_store(lambda store: store.release(place.group, [lease]))
    assert place.run(*words, "--rewind").code == 0
    assert place.following() == {"0": 0, "1": 0}


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--database", "--checkpoint-dir"])
def test_hosts_that_never_ran_are_told_where_to_begin(
    option: str, tmp_path: Path, event_hub: str, environment: dict[str, str]
) -> None:
    """A place that does not exist is no empty one: only setting a checkpoint makes it."""
    place = _place("sql", tmp_path, event_hub, environment)
    path = tmp_path / "new"
    options = (option, f"sqlite:///{path}" if option == "--database" else str(path))
    place = replace(place, store_options=options, path=path)
    words = ("checkpoint", "set", event_hub, "--all", "--sequence-number", "0")
    for missing in (("lag", event_hub), ("checkpoint", "list", event_hub), (*words, "--dry-run")):
        found = place.run(*missing)
        assert (found.code, str(path) in found.err) == (1, True), found
        assert not path.exists()
    assert place.run(*words).code == 0
    assert place.following() == {"0": 0, "1": 0}


@pytest.mark.slow
def test_wrong_words_get_one_clear_line(sql_place: Place) -> None:
    """What is missing, unknown or given twice is one sentence, and its exit code."""
    hub, path = sql_place.hub, str(sql_place.path)
    environment = sql_place.environment
    for words, code, text in (
        (("lag", hub), 2, "No database given"),
        (("lag", hub, "--checkpoint-dir", f"{path}/none"), 1, "There is no directory"),
        (("lease", "list", hub, "--checkpoint-dir", path, *sql_place.store_options), 2, "mutually exclusive"),
        (("lag", "no-such-hub", *sql_place.store_options), 1, "no-such-hub"),
        (("checkpoint", "set", hub, "--latest"), 2, "Which partitions?"),
        (("checkpoint", "set", hub, "--all"), 2, "No position given"),
        (("checkpoint", "set", hub, "--all", "--latest", "--earliest"), 2, "2 positions given"),
        (("checkpoint", "set", hub, "--all", "--enqueued-time", "soon"), 2, "'soon' is not a valid time"),
        (("checkpoint", "set", hub, "--all", "--enqueued-time", "@4"), 2, "'@4' is not a valid time"),
        (
            ("checkpoint", "set", hub, "--partition", "7", "--latest", *sql_place.store_options),
            1,
            "no partition '7'",
        ),
        (
            ("checkpoint", "set", hub, "--all", "--sequence-number", "11", *sql_place.store_options),
            1,
            "Partition 0 cannot resume at event 11: its log begins at 0, and its next event will be 10.",
        ),
        (
            ("checkpoint", "set", hub, "--partition", "1", "--offset", "4", *sql_place.store_options),
            1,
            "Partition 1 has no event with the offset 4",
        ),
    ):
        found = run_tidegate(*words, environment=environment)
        assert (found.code, text in found.err) == (code, True), found
        assert found.err.startswith("Error: ")
        assert len(found.err.splitlines()) == 1
        assert found.out == ""


def _partition(begin: int, until: int) -> PartitionEnds:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    return PartitionEnds("hub", "0", begin, until, str(until - 1), round(at.timestamp() * 1000))


@pytest.mark.parametrize(
    ("begin", "until", "checkpoint", "expected"),
    [
        (0, 0, None, Lag(0, 0.0, 0)),
        (20, 30, None, Lag(10, None, 0)),
        (20, 30, 29, Lag(0, 0.0, 0)),
        (20, 30, 24, Lag(5, 60.0, 0)),
        (20, 30, -1, Lag(10, 60.0, 0)),
        (20, 30, 9, Lag(10, 60.0, 10)),
        (30, 30, 24, Lag(0, 0.0, 5)),
        (20, 30, 30, Lag(None, None, None, is_beyond_log=True)),
    ],
)
def test_lag_by_number(begin: int, until: int, checkpoint: int | None, expected: Lag) -> None:
    """What is held, what retention took and what is not of this log, each counted for itself."""
    partition = _partition(begin, until)
    assert partition.last_enqueued_time is not None
    time_ms = int((partition.last_enqueued_time - timedelta(seconds=60)).timestamp() * 1000)
    given = None if checkpoint is None else ProcessorCheckpoint("0", checkpoint, str(checkpoint), time_ms)
    assert lag_of(partition, given) == expected


def test_lag_where_a_store_does_not_tell_all() -> None:
    """Without a time no seconds, without a number no events; the last offset is the end all the same."""
    partition = _partition(20, 30)
    assert lag_of(partition, ProcessorCheckpoint("0", 24)) == Lag(5, None, 0)
    assert lag_of(partition, ProcessorCheckpoint("0", None, "24")) == Lag(None, None, None)
    assert lag_of(partition, ProcessorCheckpoint("0", None, "29")) == Lag(0, 0.0, 0)
    another = ProcessorCheckpoint("0", 24, event_hub_created_at_ms=1)
    assert lag_of(partition, another, event_hub_created_at_ms=2).is_beyond_log


def test_a_kept_group_without_any_time_is_shown() -> None:
    """A service may know a checkpoint without its time; there is then no lease to compare with it."""
    row = ConsumerProperties("g", "a/c", "n", "0", "", None, None, 7, None, 3, 0)
    (view,) = views_of([row]).values()
    assert (view.leases.leases, view.checkpoints["0"].sequence_number) == ({}, 7)
